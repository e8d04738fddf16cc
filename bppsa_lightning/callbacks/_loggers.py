"""Tables, pictures and reports into Lightning's loggers, each in its own way.

W&B and TensorBoard show them; CSVLogger gets files beside its metrics, the newest of each name.
Other loggers take neither tables nor pictures, and a warning says so.
"""

import csv
import io
import os
import uuid
from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from bppsa_lightning._rank_zero import rank_zero_warn
from bppsa_lightning._trees import stand_in

if TYPE_CHECKING:
    from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger
else:
    CSVLogger = stand_in("pytorch.loggers.CSVLogger")
    Logger = stand_in("pytorch.loggers.Logger")
    TensorBoardLogger = stand_in("pytorch.loggers.TensorBoardLogger")
    WandbLogger = stand_in("pytorch.loggers.WandbLogger")

Rows = Sequence[Sequence[str]]


@singledispatch
def log_table(logger: Logger, name: str, header: Sequence[str], rows: Rows, step: int) -> None:
    """Logs a table of text; for CSVLogger into the file of its name and ".csv"."""
    _refuse(logger, "table", name)


@log_table.register
def _(logger: WandbLogger, name: str, header: Sequence[str], rows: Rows, step: int) -> None:
    logger.log_table(name, columns=list(header), data=[list(row) for row in rows], step=step)


@log_table.register
def _(logger: TensorBoardLogger, name: str, header: Sequence[str], rows: Rows, step: int) -> None:
    lines = [header, ["---"] * len(header), *rows]
    text = "\n".join(f"| {' | '.join(cell.replace('|', '¦') for cell in line)} |" for line in lines)
    logger.experiment.add_text(name, text, step)


@log_table.register
def _(logger: CSVLogger, name: str, header: Sequence[str], rows: Rows, step: int) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([header, *rows])
    write_file(logger.log_dir, f"{name}.csv", text.getvalue().encode())


@singledispatch
def log_picture(logger: Logger, name: str, png: bytes, step: int) -> None:
    """Logs a picture, the bytes of a PNG; for CSVLogger into the file of its name and ".png"."""
    _refuse(logger, "picture", name)


@log_picture.register
def _(logger: WandbLogger, name: str, png: bytes, step: int) -> None:
    logger.log_image(name, [_opened(png)], step=step)


@log_picture.register
def _(logger: TensorBoardLogger, name: str, png: bytes, step: int) -> None:
    import numpy as np

    pixels = np.asarray(_opened(png).convert("RGB"))
    logger.experiment.add_image(name, pixels, step, dataformats="HWC")


@log_picture.register
def _(logger: CSVLogger, name: str, png: bytes, step: int) -> None:
    write_file(logger.log_dir, f"{name}.png", png)


def _opened(png: bytes) -> Any:
    from PIL import Image

    return Image.open(io.BytesIO(png))


@singledispatch
def log_report(
    logger: Logger,
    name: str,
    html: str,
    tables: Mapping[str, tuple[Sequence[str], Rows]],
    step: int,
) -> None:
    """Logs a page, or its tables, where a logger shows them; the page lies in a file as well."""


@log_report.register
def _(logger: WandbLogger, name: str, html: str, tables: Any, step: int) -> None:
    import wandb

    report = wandb.Html(html, inject=False)
    logger.experiment.log({name: report, "trainer/global_step": step})


@log_report.register
def _(logger: TensorBoardLogger, name: str, html: str, tables: Any, step: int) -> None:
    for table, (header, rows) in tables.items():
        log_table(logger, f"{name}/{table}", header, rows, step)


def write_file(folder: str, name: str, content: bytes) -> str:
    """Writes beside, then renames; local or remote. Returns the file's path."""
    import fsspec  # comes with Lightning

    fs, path = fsspec.core.url_to_fs(folder)[0], os.path.join(folder, name)
    fs.makedirs(os.path.dirname(path), exist_ok=True)
    beside = f"{path}.{uuid.uuid4().hex}.tmp"
    fs.pipe_file(beside, content)
    fs.mv(beside, path)
    return os.path.join(folder, name)


def _refuse(logger: Logger, what: str, name: str) -> None:
    if type(logger).__name__ == "DummyLogger":  # fast_dev_run's, in place of the user's
        return
    rank_zero_warn(f"{type(logger).__name__} takes no {what}s: the {what} {name!r} is not logged")

"""Records: results as JSON that names hardware, versions and date; figures; whole or not there."""

import argparse
import json
import os
import platform
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from experiments import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = "BPPSA_RECORDS"  # environment variable: where --record keeps records instead
RECORDS = Path(os.environ.get(FOLDER) or Path(__file__).parent / "records")
UNRECORDED = Path("runs/records")


def add_record_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `--record`, the one switch that lets a script touch the committed records."""
    parser.add_argument(
        "--record",
        action="store_true",
        help=f"keep results in experiments/records (default: in {UNRECORDED})",
    )


def folder(record: bool) -> Path:
    """Where results go: the committed records if `record`, else a folder that git ignores."""
    return RECORDS if record else UNRECORDED


def environment() -> dict[str, Any]:
    """What a reader needs to judge a measurement: machine, versions, date."""
    import torch  # late: the page of the records is written without it

    import bppsa_lightning as bl

    found = {
        "date": date.today().isoformat(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "cpu_kernels": bl.ops.cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": version("lightning"),
        "bppsa_lightning": bl.__version__,
    }
    if find_spec("jax") is not None:
        found["jax"] = version("jax")
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["cudnn"] = torch.backends.cudnn.version()
    return found


def machine(environment: dict[str, Any]) -> str:
    """The machine of a record's "environment", in a few words."""
    cpu = f"{environment['cpu']}, {environment['cores']} cores"
    return environment.get("gpu") or f"{cpu} ({environment['cpu_kernels']} kernels)"


def file_name(text: str) -> str:
    """ "NVIDIA H100 80GB HBM3" as the name of a file: "nvidia_h100_80gb_hbm3"."""
    return re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (header, *rows)]
    return "\n".join([lines[0], "|---" * len(header) + "|", *lines[1:]])


def read(name: str, folder: Path | None = None) -> dict[str, Any]:
    """The record `name`, of the committed ones unless another folder is given."""
    return json.loads(((folder or RECORDS) / f"{name}.json").read_text())


def write(path: Path, results: dict[str, Any]) -> dict[str, Any]:
    """Writes {"environment": …, **results} to `path` by rename, and returns it."""
    record = {"environment": environment(), **results}
    write_text(path, json.dumps(record, indent=1) + "\n")
    return record


def write_text(path: Path, text: str) -> None:
    """Writes a file by rename."""
    with _beside(path) as file:
        file.write_text(text)


def pyplot() -> ModuleType:
    """matplotlib.pyplot without a display, in the style of all figures (style.py).

    Imported late, as measuring alone needs none of it.
    """
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update(style.SETTINGS)
    from matplotlib import pyplot

    return pyplot


def save_figure(
    figure: "Figure", path: Path, measured: dict[str, Any] | None = None, note: str = "",
    dpi: int = style.DPI,
) -> None:  # fmt: skip
    """Writes a figure to `path`, a .png, and as .svg beside it, each by rename, and closes it.

    Args:
        figure: any; what is below or beside its area is in the files, too.
        path: of the .png.
        measured: the "environment" of the record that is drawn, for the caption; None if nothing
            was measured.
        note: a sentence of the caption.
        dpi: dots an inch, of the .png.
    """
    parts = [note] if note else []
    if measured is not None:
        parts.append(f"{machine(measured)}; torch {measured['torch']}; {measured['date']}")
    style.caption(figure, "; ".join(parts))
    for file in (path, path.with_suffix(".svg")):
        with _beside(file) as beside:
            figure.savefig(
                beside, dpi=dpi, bbox_inches="tight", pad_inches=0.12,
                metadata=style.METADATA[file.suffix],
            )  # fmt: skip
    pyplot().close(figure)


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A file beside `path` that takes its place when the block ends, or vanishes if it raises."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.stem}.{uuid.uuid4().hex}.tmp{path.suffix}")
    try:
        yield beside
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def cpu_name() -> str:
    """The processor's model."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())

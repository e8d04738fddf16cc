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


def write(path: Path, results: dict[str, Any]) -> None:
    """Writes {"environment": …, **results} to `path` by rename."""
    write_text(path, json.dumps({"environment": environment(), **results}, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a file by rename."""
    with _beside(path) as file:
        file.write_text(text)


def pyplot() -> ModuleType:
    """matplotlib.pyplot without a display; imported late, as measuring alone needs none of it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save_figure(figure: "Figure", path: Path, dpi: int = 110) -> None:
    """Writes a figure to `path` by rename, in the format of its suffix, and closes it."""
    with _beside(path) as file:
        figure.savefig(file, dpi=dpi)
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

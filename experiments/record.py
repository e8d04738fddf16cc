"""Records: results as JSON that names hardware, versions and date; figures; whole or not there."""

import json
import os
import platform
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

import bppsa_lightning as bl

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = "BPPSA_RECORDS"  # environment variable: where records go instead
RECORDS = Path(os.environ.get(FOLDER) or Path(__file__).parent / "records")


def environment() -> dict[str, Any]:
    """What a reader needs to judge a measurement: machine, versions, date."""
    found = {
        "date": date.today().isoformat(),
        "cpu": _cpu_name(),
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


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())

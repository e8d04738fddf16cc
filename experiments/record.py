"""Records: results as JSON that names hardware, versions and date, written whole or not at all."""

import json
import os
import platform
import uuid
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import bppsa_lightning as bl

RECORDS = Path(__file__).parent / "records"


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
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
        found["cudnn"] = torch.backends.cudnn.version()
    return found


def write(path: Path, results: dict[str, Any]) -> None:
    """Writes {"environment": …, **results} to `path` by rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        beside.write_text(json.dumps({"environment": environment(), **results}, indent=1) + "\n")
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

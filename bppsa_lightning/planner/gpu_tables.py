"""What was measured on the GPU at hand: by its owner, or on another one of its model.

A table for a GPU is one of tables/ with

    "machine": {"device": "cuda", "name", "processors", "capability"}; the owner's also
               {"driver", "torch", "build"}, for which alone it holds
    "kernels": {"right": [names of kernels.py], "wrong": {name: what was found}}
    "recurrent": {"cells": {"rnn" | "gru" | "lstm": the fit that cost_cuda.py reads}}
"""

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from bppsa_lightning import _library
from bppsa_lightning.planner import tables
from bppsa_lightning.planner.machine import keeps
from bppsa_lightning.planner.tables import form

CALIBRATE = (
    'bl.calibrate(device="cuda") tests and times it (about a minute); '
    "an explicit algorithm is scanned as it is"
)
_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, eq=False)
class GpuTable:
    """What is known of a GPU.

    Attributes:
        gpu: its name.
        processors: its multiprocessors.
        source: for people: where the estimates come from.
        cells: the fit of each kind of cell that was timed.
        right: the kernels that gave right results there. wrong: what others gave.
    """

    gpu: str
    processors: int
    source: str
    cells: Mapping[str, Any]
    right: frozenset[str] = frozenset()
    wrong: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> "GpuTable":
        """From the file's contents."""
        machine, measured, kernels = table["machine"], table["measured"], table["kernels"]
        records = ", ".join(Path(record).name for record in measured.get("records", ()))
        source = f"fitted to {records}" if records else f"calibrated {measured['date']}"
        return cls(
            str(machine["name"]),
            int(machine["processors"]),
            f"{source}, {machine['name']}",
            table["recurrent"]["cells"],
            frozenset(kernels["right"]),
            dict(kernels["wrong"]),
        )


# Estimates on a GPU that nobody measured are this one's, with its own number of multiprocessors.
DEFAULT = GpuTable.of(tables.shipped()["nvidia_h200"])
# The form of the owner's.
_LIKE = {name: tables.shipped()["nvidia_h200"][name] for name in ("kernels", "recurrent")} | {
    "measured": {"date": ""}
}


@keeps
@lru_cache(maxsize=64)
def own(device: torch.device) -> GpuTable | None:
    """The table of the GPU at hand, its owner's before the one that is shipped for its model.

    None if there is none.
    """
    if not torch.cuda.is_available():
        return None
    hardware = hardware_of(device)
    path = tables.user_path(hardware)
    if path.exists():
        table = tables.read_user(machine(device))
        if table is not None and not (why := form.difference(table, _LIKE)):
            return GpuTable.of(table)
        if table is not None:
            warnings.warn(
                f"bppsa_lightning ignores the calibration {path}: it is damaged ({why}). Run "
                'bl.calibrate(device="cuda") again, or delete the file.',
                stacklevel=2,
            )
    for table in tables.shipped().values():
        found = table["machine"]
        if (found.get("device"), found.get("name")) == ("cuda", hardware["name"]):
            return GpuTable.of(table)
    return None


def nearest(device: torch.device) -> GpuTable:
    """The table for estimates: the GPU's own, else the default."""
    return own(device) or DEFAULT


@torch.compiler.assume_constant_result
def admits(device: torch.device, kernel: str) -> bool:
    """Whether nothing is known of a GPU, or a kernel of kernels.py to be right there."""
    table = own(torch.device(device))
    return table is None or kernel in table.right


def hardware_of(device: torch.device) -> dict[str, object]:
    """The fields of a table's "machine" that no update changes."""
    found = torch.cuda.get_device_properties(device)
    return {
        "device": "cuda",
        "name": found.name,
        "processors": found.multi_processor_count,
        "capability": f"{found.major}.{found.minor}",
    }


def machine(device: torch.device) -> dict[str, object]:
    """All fields of "machine" of the owner's table."""
    return hardware_of(device) | {
        "driver": driver(),
        "torch": torch.__version__,
        "build": _library.cuda_build(),
    }


def driver() -> str:
    """The version of NVIDIA's driver: "580.65.06"; where it is not told, of the CUDA it serves."""
    try:
        version = re.search(r"\b\d+\.\d+(\.\d+)?\b", _DRIVER.read_text())
    except OSError:
        version = None
    if version:
        return version[0]
    return f"CUDA {torch._C._cuda_getDriverVersion()}"  # type: ignore[attr-defined]

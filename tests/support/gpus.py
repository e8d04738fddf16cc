"""GPUs that are only claimed: what the planner is told of one, where there is none."""

from dataclasses import replace

import torch

from bppsa_lightning._cells import CELLS
from bppsa_lightning.planner import choose, gpu_tables, kernels
from bppsa_lightning.planner.gpu_tables import DEFAULT as H200
from bppsa_lightning.planner.machine import forget

HARDWARE = {"device": "cuda", "name": "NVIDIA H200", "processors": 132, "capability": "9.0"}
VERSIONS = {"driver": "580.65.06", "torch": torch.__version__, "build": "0123456789abcdef"}


def every_kernel(clusters=True):
    """All names of kernels.py."""
    return frozenset(
        name
        for cell in CELLS
        for dtype in kernels.DTYPES
        for name in (
            *(kernels.option(cell, dtype, option) for option in kernels.OPTIONS),
            *(
                kernels.sized(cell, dtype, size, clusters, part)
                for size in kernels.sizes(cell, dtype, clusters)
                for part in ("forward", "forward_one_input", *kernels.BACKWARD)
            ),
        )
    )


def with_every_kernel():
    """The H200's table, as if all kernels had been tested there."""
    return replace(H200, right=every_kernel())


def claim(monkeypatch, table=H200, processors=132, clusters=True):
    """Every CUDA device is a GPU of this table (None: of no table), which has cuDNN."""
    forget()
    monkeypatch.setattr(choose, "gpu", lambda device: (processors, clusters))
    monkeypatch.setattr(gpu_tables, "own", lambda device: table)
    monkeypatch.setattr(gpu_tables, "hardware_of", lambda device: dict(HARDWARE))
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)

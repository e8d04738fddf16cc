"""What a report says of a model, a machine and a process, as plain numbers and words."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bppsa_lightning import ops, pruned

_CELLS = 48  # rows and columns of a picture of a mask, at most


def environment() -> dict[str, str]:
    """Machine and versions, a line each."""
    found = {
        "CPU": cpu_name(),
        "cores": str(os.cpu_count()),
        "threads of torch": str(torch.get_num_threads()),
        "CPU kernels": ops.cpu_capability(),
        "system": platform.platform(),
        "Python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    for package in ("bppsa-lightning", "lightning", "pytorch-lightning"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    if torch.cuda.is_available():
        found["GPU"] = torch.cuda.get_device_name()
        found["CUDA"] = str(torch.version.cuda)
    return found


def cpu_name() -> str:
    """As the system calls it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def resident_bytes() -> int | None:
    """What the process holds in memory now; None where the system does not say."""
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return None


def peaks() -> dict[str, int]:
    """The most that the process has held so far, in memory and on its GPU."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    found = {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    if torch.cuda.is_initialized():
        found["peak_cuda_bytes"] = torch.cuda.max_memory_allocated()
    return found


def parameter_bytes(module: nn.Module) -> int:
    """Of a module's parameters."""
    return _bytes(module.parameters())


def optimizer_bytes(optimizers: Iterable[Optimizer]) -> int:
    """Of the tensors in the optimizers' states."""
    states = [state for o in optimizers for state in getattr(o, "state", {}).values()]
    return _bytes(v for s in states for v in s.values() if isinstance(v, Tensor))


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def patterns(module: nn.Module) -> list[dict[str, Any]]:
    """Pictures of the masks of all pruned layers, for `report.patterns`."""
    return [
        pattern(name, child)
        for name, child in module.named_modules()
        if pruned.is_candidate(child) and child.weight_mask.dim() >= 2
    ]


def pattern(name: str, module: Any) -> dict[str, Any]:
    """Of one layer: its mask (outputs, inputs), in at most 48 by 48 cells of mean densities."""
    mask = (module.weight_mask.detach() != 0).float().cpu()
    flat = mask.reshape(1, 1, mask.shape[0], -1)
    rows, columns = (min(n, _CELLS) for n in flat.shape[2:])
    cells = nn.functional.adaptive_avg_pool2d(flat, (rows, columns))[0, 0]
    return {
        "layer": name or "(itself)",
        "type": type(module).__name__,
        "shape": list(mask.shape),
        "weights": int(mask.sum()),
        "density": float(mask.mean()),
        "cells": [[round(value, 4) for value in row] for row in cells.tolist()],
    }

"""The peak memory of one step: on a CPU what a fresh process grows by, on CUDA the allocator's."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bppsa_lightning.cli.answer import Failed

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
WAYS = ("stock", "bppsa")


def command(asked: Any, way: str) -> list[str]:
    """The arguments with which a process measures one way of what is asked."""
    found = ["bench", *([asked.target] if asked.target else []), "--memory-of", way, "--json"]
    for option in ("args", "checkpoint", "algorithm", "device", "threads"):
        value = getattr(asked, option)
        if value is not None:
            found += [f"--{option}={value}"]
    for given in asked.inputs:
        found += ["--input", given]
    for switch in ("training_step", "trust_checkpoint"):
        found += [f"--{switch.replace('_', '-')}"] * getattr(asked, switch)
    return found


def of_process(asked: Any, way: str) -> int | None:
    """Bytes by which a fresh process grows in its first step; None where that is not known."""
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    done = subprocess.run(
        [sys.executable, "-m", "bppsa_lightning", *command(asked, way)],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    try:
        found = json.loads(done.stdout)["bytes"]
    except (ValueError, KeyError):
        raise Failed(
            f"memory: the process that measures {way} ended with status {done.returncode}: "
            f"{done.stderr.strip().splitlines()[-1:]}"
        ) from None
    return None if found is None else int(found)


def growth(step: Callable[[], object]) -> int | None:
    """Bytes by which this process grows at most during a step; None where Linux does not tell."""
    _warm_up()
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library has none
        ctypes.CDLL(None).malloc_trim(0)  # what is free already would hide what is taken
    try:
        _CLEAR.write_text("5")  # resets the peak
        before = _resident("VmRSS")
        step()
        return max(0, _resident("VmHWM") - before)
    except OSError:
        return None


def of_cuda(step: Callable[[], object], device: torch.device) -> int:
    """Bytes by which the allocator's peak exceeds what was allocated before a step."""
    gc.collect()
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device) - before)


def _warm_up() -> None:
    """What any first step sets up: threads, autograd, the libraries of products."""
    from bppsa_lightning.attach import attach

    layer, x = torch.nn.GRU(64, 64), torch.rand(64, 16, 64)
    for ours in (False, True):
        if ours:
            attach(layer, "linear")
        layer(x)[0].sum().backward()


def _resident(field: str) -> int:
    lines = _STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

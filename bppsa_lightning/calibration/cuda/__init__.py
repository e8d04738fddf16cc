"""Tests this machine's GPU, times it beside cuDNN, and keeps what it finds for the planner.

First every recurrent kernel runs on small and odd sizes, each answer held against PyTorch's
(verify.py); then the kernels that are right are timed beside cuDNN (grid.py), and the planner's
estimates are fitted to the times (fit.py). All of it runs in a process of its own (isolated.py): a
kernel that writes where it must not takes that process's use of the GPU along, and no other's.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch

from bppsa_lightning import _library
from bppsa_lightning.calibration.cuda import cases, grid, report, scans, verify
from bppsa_lightning.calibration.cuda.fit import fit
from bppsa_lightning.calibration.cuda.isolated import Isolated
from bppsa_lightning.calibration.cuda.kept import Kept
from bppsa_lightning.calibration.cuda.tasks import RUNNER
from bppsa_lightning.planner import choose, gpu_tables, tables
from bppsa_lightning.planner.gpu_tables import GpuTable
from bppsa_lightning.planner.machine import forget


@dataclass(frozen=True)
class CudaCalibration:
    """What was found; printed, all of it.

    Attributes:
        path: the file of the table.
        summary: what changed.
        issues: a ready-made report of each kernel that failed, in markdown.
    """

    path: Path
    summary: str
    issues: list[str]

    def __str__(self) -> str:
        lines = [self.summary, f"Kept in {self.path}"]
        if self.issues:
            lines += ["", "Please report what failed:", "", *self.issues]
        return "\n".join(lines)


def calibrate_cuda(
    device: torch.device | str = "cuda",
    progress: bool = True,
    runner: str = RUNNER,
    kernels: verify.Cases | None = None,
    sizes: Sequence[grid.Size] = tuple(grid.GRID),
    case_limit: float = verify.LIMIT,
    size_limit: float = grid.LIMIT,
) -> CudaCalibration:
    """Tests and times a GPU, about a minute, and writes its table for the planner.

    Whatever it has found is kept when it is interrupted; the next call goes on from there.

    Args:
        device: the GPU.
        progress: whether to show a bar.
        runner: the name of the module that runs tasks, like tasks.py.
        kernels: the cases of each kernel to be tested; None for all.
        sizes: to be timed.
        case_limit, size_limit: seconds after which a case or a size counts as hung.

    Raises:
        RuntimeError: the kernels are not built, or not for this GPU; or no process can use it.
    """
    device = _with_index(torch.device(device))
    missing = _library.missing_recurrent_kernels(device)
    if missing is not None:
        raise RuntimeError(f"calibrate: {missing}")
    processors, clusters = choose.gpu(device)
    machine = gpu_tables.machine(device)
    kernels = _every_kernel(clusters, processors) if kernels is None else kernels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an outdated table, which is about to be replaced
        before = gpu_tables.own(device)
    kept = Kept(machine)
    try:
        with (
            _bar(len(kernels) + len(sizes), progress) as bar,
            Isolated(runner, str(device)) as worker,
        ):

            def done(what: object) -> None:
                kept.write(at_once=False)
                bar.set_description_str(what if isinstance(what, str) else "timing", refresh=False)
                bar.update()

            verify.verify(kernels, kept.verdicts, worker, done, case_limit)
            grid.measure(sizes, kept.rows, kept.verdicts, clusters, worker, done, limit=size_limit)
    finally:
        kept.write()
    table = _table(machine, kept, processors)
    path = tables.user_path(machine)
    tables.write(path, table)
    kept.finish()
    forget()
    found = GpuTable.of(table)
    text = report.summary(list(kernels), kept.verdicts, kept.rows, before, found, device)
    return CudaCalibration(path, text, report.issues(kept.verdicts, machine))


def _every_kernel(clusters: bool, processors: int) -> verify.Cases:
    found: dict[str, list[Any]] = dict(cases.of_gpu(clusters, processors))
    for case in scans.of_gpu():
        found.setdefault(case.kernel, []).append(case)
    return found


def _with_index(device: torch.device) -> torch.device:
    if device.type != "cuda":
        raise ValueError(f"device: found {device}, wanted a CUDA device")
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.device("cuda", index)


def _table(machine: Mapping[str, object], kept: Kept, processors: int) -> tables.Table:
    return {
        "format": tables.FORMAT,
        "machine": dict(machine),
        "measured": {"date": date.today().isoformat(), "torch": machine["torch"]},
        "kernels": {"right": sorted(kept.verdicts.right), "wrong": kept.verdicts.wrong},
        "recurrent": {"cells": fit(kept.rows, processors)},
        "rows": kept.rows,
    }


def _bar(total: int, shown: bool) -> Any:
    from tqdm import tqdm  # Lightning's; late, as nothing else here needs it

    return tqdm(total=total, disable=not shown, desc="testing", unit="")

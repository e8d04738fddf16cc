"""Measures a CPU for the planner: which calls pay here, and what the scans take.

T steps, B batch, H input and hidden size.
"""

import os
import time
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from bppsa_lightning._cells import CELLS as _CELLS
from bppsa_lightning._cores import BUSY, OtherLoad
from bppsa_lightning.calibration import fit_cpu, least, pairs, ratios, steps
from bppsa_lightning.calibration.fit_cpu import Point, Scanned, Size
from bppsa_lightning.calibration.progress import Progress
from bppsa_lightning.planner import Plan, hand_over, machine, tables
from bppsa_lightning.recurrent import precision

CELLS = least.CELLS
NAMES = {cell.kind: name for name, cell in _CELLS.items() if cell.in_torch}
# (B, T, H) of backward passes, and the largest H of which products of Jacobians are measured.
SCANS = ((1, 100, 8), (1, 1000, 20), (16, 10, 20), (16, 100, 20), (16, 1000, 8), (2, 300, 64))
MOST_COMPOSED = 20

Found = TypeVar("Found")


def calibrate_cpu(seconds: float, progress: bool) -> str:
    """Measures this CPU with torch's present number of threads, and writes the user's table.

    Returns:
        What was found, for people.
    """
    this, threads = machine.this_cpu(), torch.get_num_threads()
    before = machine.cpu()
    shown = before["machine"]
    kept = Progress(this, f"{threads}-threads")
    start = time.perf_counter()
    others = OtherLoad()
    run = _Run(kept, seconds)
    with (
        torch.random.fork_rng(devices=[]),
        torch.enable_grad(),
        _bar(progress, run) as run.bar,
    ):
        points = dict(run.each(run.least.training()))
        spread = dict(run.each(run.least.packed()))
        scans = list(run.scans())
        by_samples = dict(run.steps())
        without_gradients = dict(run.measured_ratios(bfloat16=False))
        in_bfloat16 = (
            dict(run.measured_ratios(bfloat16=True)) if precision.multiplies_bfloat16() else {}
        )
    earlier = machine.own_cpu()
    of_other_threads = {
        section: [part for part in earlier.get(section, ()) if part["threads"] != threads]
        for section in ("hand_over", "inference", "steps", "bfloat16")
    }
    table = {
        "format": tables.FORMAT,
        "machine": dict(this),
        "measured": {"date": date.today().isoformat(), "threads": threads},
        "hand_over": [*of_other_threads["hand_over"], fit_cpu.hand_over(points, threads)],
        "inference": [*of_other_threads["inference"], *fit_cpu.ratios(without_gradients, threads)],
        "packed": fit_cpu.packed(spread),
        "scan": fit_cpu.scan(scans, threads),
        "steps": [*of_other_threads["steps"], fit_cpu.steps(by_samples, threads)],
    }
    if in_bfloat16:
        parts = fit_cpu.ratios(in_bfloat16, threads)
        table["bfloat16"] = [*of_other_threads["bfloat16"], *parts]
    old = [hand_over.pytorch_is_faster(NAMES[size.cell], *size[1:]) for size in points]
    path = tables.user_path(this)
    tables.write(path, table)
    kept.finish()
    machine.forget()
    new = [hand_over.pytorch_is_faster(NAMES[size.cell], *size[1:]) for size in points]
    took = time.perf_counter() - start
    asked = os.environ.get(machine.TABLE)
    unused = "" if asked is None else f" (unused while {machine.TABLE} is set to {asked})"
    return (
        f"{len(kept.values)} sizes measured on {this['name']}, {this['cores']} cores, with "
        f"{threads} threads, in {took:.0f} s.\n"
        f"{_changes(points, old, new, str(shown['name']))}\n{_disturbed(others.cores())}"
        f"Kept in {path}{unused}"
    )


def _disturbed(busy: float | None) -> str:
    """What to do about figures that were measured beside other programs."""
    if busy is None or busy < BUSY:
        return ""
    return (
        f"Other programs kept {busy:.1f} cores busy: these figures are not to be trusted. "
        "Calibrate again when they rest.\n"
    )


class _Run:
    """What is measured, in which order, and how long each."""

    bar: Any

    def __init__(self, kept: Progress, seconds: float) -> None:
        self.kept = kept
        self.seconds = seconds / 1500
        self.least = least.Search(kept.measured, self.seconds)

    def each(self, nodes: Iterator[list[Found]]) -> Iterator[Found]:
        """What is in all lists."""
        for node in nodes:
            yield from node
            self.bar.update()

    def steps(self) -> Iterator[tuple[steps.Key, float]]:
        """What a step takes, by how many samples it has."""
        for cell in CELLS:
            yield from steps.measured(cell, self.kept, self.seconds).items()
            self.bar.update()

    def measured_ratios(self, bfloat16: bool) -> Iterator[tuple[ratios.Key, float]]:
        """PyTorch's time over ours."""
        for node in ratios.measured(self.kept.measured, self.seconds, bfloat16):
            yield from node.items()
            self.bar.update()

    def scans(self) -> Iterator[Scanned]:
        """Backward passes by each algorithm."""
        for cell in CELLS:
            for B, T, H in SCANS:
                size = Size(cell, T, B, H)
                for algorithm in ("linear", "chunked", "blelloch"):
                    if algorithm == "linear" or H <= MOST_COMPOSED:
                        yield self._scan(size, algorithm)
            self.bar.update()

    def _scan(self, size: Size, algorithm: str) -> Scanned:
        def measure() -> list[Any]:
            plan, seconds = pairs.backward(size, algorithm, self.seconds)
            return [plan.chunk, plan.levels, seconds]

        chunk, levels, seconds = self.kept.measured(
            f"{' '.join(map(str, size))} {algorithm}", measure
        )
        return Scanned(size, Plan(algorithm, chunk=chunk, levels=levels), seconds)


def _bar(progress: bool, run: _Run) -> Any:
    grids = 1 + precision.multiplies_bfloat16()
    nodes = run.least.nodes() + 2 * len(CELLS) + grids * ratios.nodes()
    resumed = run.kept.resumed
    start = f"Going on after {resumed} sizes" if resumed else "Measuring recurrent layers"
    return tqdm(total=nodes, desc=start, unit="sizes", disable=not progress, leave=False)


def _changes(points: Mapping[Size, Point], old: list[bool], new: list[bool], name: str) -> str:
    """What the new table changes at the sizes that were measured, and what that gains."""
    changed = [(p, b) for p, a, b in zip(points.values(), old, new, strict=True) if a != b]
    here = sum(not pytorch for _, pytorch in changed)
    if not changed:
        return f"The table that was used before ({name}) chooses the same for all of them."
    gain = 1.0
    for found, pytorch in changed:
        assert found.ratio is not None
        gain *= (1 / found.ratio if pytorch else found.ratio) ** (1 / len(changed))
    return (
        f"{len(changed)} of them are computed elsewhere than with the table used before ({name}): "
        f"{here} here instead of by PyTorch, {len(changed) - here} the other way. Forward and "
        f"backward are {gain:.2f}x as fast there (geometric mean)."
    )

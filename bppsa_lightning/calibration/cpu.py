"""Measures a CPU for the planner: which calls pay here, and what the scans take.

T steps, B batch, H input and hidden size.
"""

import os
import time
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

import torch
from tqdm import tqdm

from bppsa_lightning._cells import CELLS as _CELLS
from bppsa_lightning._cores import BUSY, OtherLoad
from bppsa_lightning.calibration import bfloat16, fit_cpu, pairs, steps
from bppsa_lightning.calibration.fit_cpu import Point, Scanned, Size, point
from bppsa_lightning.calibration.progress import Progress
from bppsa_lightning.planner import Plan, hand_over, machine, tables
from bppsa_lightning.recurrent import precision

CELLS = ("RNN", "GRU", "LSTM")
NAMES = {cell.kind: name for name, cell in _CELLS.items() if cell.in_torch}
# The sizes of layers at which the least T is looked for; of samples of different lengths.
SIZES, BATCHES = (1, 8, 20, 64, 128, 256, 512), (1, 2, 16, 64, 256)
PACKED_SIZES, PACKED_BATCHES = (20, 64, 256), (2, 8, 32, 128)
# (B, T, H) of backward passes, and the largest H of which products of Jacobians are measured.
SCANS = ((1, 100, 8), (1, 1000, 20), (16, 10, 20), (16, 100, 20), (16, 1000, 8), (2, 300, 64))
MOST_COMPOSED = 20
# A size is measured twice where PyTorch's time over ours is between these; the worse one counts.
CLOSE = (1.0, 1.3)
# Seconds of a step that is not worth waiting for.
LONGEST = 0.7


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
    with (
        torch.random.fork_rng(devices=[]),
        torch.enable_grad(),
        torch.device("cpu"),
        _bar(progress, kept) as bar,
    ):
        run = _Run(kept, seconds, bar)
        points = {size: found for node in run.nodes() for size, found in node}
        spread = {key: found for node in run.packed() for key, found in node}
        scans = list(run.scans())
        by_samples = dict(run.steps())
        in_bfloat16 = {key: ratio for node in run.in_bfloat16() for key, ratio in node.items()}
    earlier = machine.own_cpu()
    of_other_threads = {
        section: [part for part in earlier.get(section, ()) if part["threads"] != threads]
        for section in ("hand_over", "steps", "bfloat16")
    }
    table = {
        "format": tables.FORMAT,
        "machine": dict(this),
        "measured": {"date": date.today().isoformat(), "threads": threads},
        "hand_over": [*of_other_threads["hand_over"], fit_cpu.hand_over(points, threads)],
        "packed": fit_cpu.packed(spread),
        "scan": fit_cpu.scan(scans, threads),
        "steps": [*of_other_threads["steps"], fit_cpu.steps(by_samples, threads)],
    }
    if in_bfloat16:
        parts = fit_cpu.bfloat16(in_bfloat16, threads)
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

    def __init__(self, kept: Progress, seconds: float, bar: Any) -> None:
        self.kept, self.bar = kept, bar
        self.each = seconds / 1500

    def nodes(self) -> Iterator[list[tuple[Size, Point]]]:
        """The numbers of steps that were measured at each H and B, around the least that pays."""
        for cell in CELLS:
            for H in SIZES:
                for B in BATCHES:
                    yield list(self._around(Size(cell, 10, B, H), (2, 1), (30, 100, 1000)))
                    self.bar.update()

    def packed(self) -> Iterator[list[tuple[tuple[Size, bool], Point]]]:
        """Likewise of samples of different lengths."""
        for cell in CELLS:
            for H in PACKED_SIZES:
                for B in PACKED_BATCHES:
                    for padded in (False, True) if B > 2 else (False,):  # two: T of 2T steps
                        around = self._around(Size(cell, 8, B, H), (5, 3), (14, 30), padded)
                        yield [((size, padded), found) for size, found in around]
                    self.bar.update()

    def _around(
        self,
        size: Size,
        shorter: tuple[int, ...],
        longer: tuple[int, ...],
        padded: bool | None = None,
    ) -> Iterator[tuple[Size, Point]]:
        """T, then fewer steps while they pay, or more until they do."""
        found, seconds = self._point(size, padded)
        yield size, found
        pays = found.pays
        for T in shorter if pays else longer:
            if T > size.T and seconds * T / size.T > LONGEST:
                return
            found, seconds = self._point(size._replace(T=T), padded)
            yield size._replace(T=T), found
            if found.pays != pays:
                return

    def _point(self, size: Size, padded: bool | None) -> tuple[Point, float]:
        kind = "" if padded is None else " padded" if padded else " even"

        def measure() -> pairs.Pair:
            first = pairs.pair(size, self.each, padded=padded)
            low, high = CLOSE
            if not low * first.ours < first.stock < high * first.ours:
                return first
            again = pairs.pair(size, 3 * self.each, padded=padded)
            return max(first, again, key=lambda pair: pair.ours / pair.stock)

        ours, stock = self.kept.measured(" ".join(map(str, size)) + kind, measure)
        return point(size.T, ours, stock), max(ours, stock)

    def steps(self) -> Iterator[tuple[steps.Key, float]]:
        """What a step takes, by how many samples it has."""
        for cell in CELLS:
            yield from steps.measured(cell, self.kept, self.each).items()
            self.bar.update()

    def in_bfloat16(self) -> Iterator[Mapping[bfloat16.Key, float]]:
        """PyTorch's time over ours; nothing where PyTorch multiplies no bfloat16."""
        if precision.multiplies_bfloat16():
            for node in bfloat16.measured(self.kept.measured, self.each):
                yield node
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
            plan, seconds = pairs.backward(size, algorithm, self.each)
            return [plan.chunk, plan.levels, seconds]

        chunk, levels, seconds = self.kept.measured(
            f"{' '.join(map(str, size))} {algorithm}", measure
        )
        return Scanned(size, Plan(algorithm, chunk=chunk, levels=levels), seconds)


def _bar(progress: bool, kept: Progress) -> Any:
    of_bfloat16 = bfloat16.nodes() if precision.multiplies_bfloat16() else 0
    nodes = len(CELLS) * (len(SIZES) * len(BATCHES) + len(PACKED_SIZES) * len(PACKED_BATCHES) + 2)
    start = f"Going on after {kept.resumed} sizes" if kept.resumed else "Measuring recurrent layers"
    return tqdm(
        total=nodes + of_bfloat16, desc=start, unit="sizes", disable=not progress, leave=False
    )


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

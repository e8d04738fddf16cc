"""What a backward did: the scans it ran, for those who ask."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from bppsa_lightning import planner


@dataclass(eq=False)  # two open logs with equal contents are still two
class ScanLog:
    """The scans of the attached layers in one backward pass, in the order of the gradients' flow.

    Attributes:
        scans: (cell, (T, B, H), plan) of each.
    """

    scans: list[tuple[str, tuple[int, int, int], planner.Plan]] = field(default_factory=list)


_open_logs: list[ScanLog] = []


@contextmanager
def scan_log() -> Iterator[ScanLog]:
    """Collects the layers' scans in backward passes run inside the block, on any thread."""
    log = ScanLog()
    _open_logs.append(log)
    try:
        yield log
    finally:
        _open_logs.remove(log)


def record_scan(cell: str, shape: tuple[int, int, int], plan: planner.Plan) -> None:
    """Adds a scan to every open log; shape (T, B, H)."""
    for log in _open_logs:
        log.scans.append((cell, shape, plan))

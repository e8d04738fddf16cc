"""Do other programs keep the cores busy?"""

from __future__ import annotations

import time
from pathlib import Path

from bppsa_lightning import _cores
from bppsa_lightning.cli.doctor.finding import NOTE, Finding

AREA = "load"
SECONDS = 0.5
BUSY = 0.3  # cores; what a machine at rest does is less
_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # the columns "idle" and "iowait"


def busy_cores(seconds: float = SECONDS) -> float | None:
    """How many of the cores that this process may use are kept busy by others meanwhile.

    None where the system does not tell.
    """
    before = _idle_and_all()
    time.sleep(seconds)
    after = _idle_and_all()
    if before is None or after is None or after[1] <= before[1]:
        return None
    idle = (after[0] - before[0]) / (after[1] - before[1])
    return round(max(0.0, 1 - idle) * len(_cores.affinity()), 2)


def findings(busy: float | None) -> list[Finding]:
    """What was measured, with a word on timings where it is much."""
    if busy is None:
        return [Finding(AREA, "other load is not known here")]
    what = f"other programs keep {busy:.1f} of {len(_cores.affinity())} cores busy"
    if busy < BUSY:
        return [Finding(AREA, what)]
    remedy = (
        "training is slower meanwhile, and timings are not to be trusted; fewer threads may be "
        "faster (docs/troubleshooting.md#busy)"
    )
    return [Finding(AREA, what, NOTE, remedy)]


def _idle_and_all() -> tuple[int, int] | None:
    """Ticks that the cores of this process were idle, and ticks of all."""
    wanted = {f"cpu{core}" for core in _cores.affinity()}
    idle = whole = 0
    try:
        for line in _STAT.read_text().splitlines():
            name, *ticks = line.split()
            if name in wanted:
                counts = [int(tick) for tick in ticks[:8]]  # guests are counted in the first ones
                idle += sum(counts[column] for column in _IDLE)
                whole += sum(counts)
    except (OSError, ValueError, IndexError):
        return None
    return idle, whole

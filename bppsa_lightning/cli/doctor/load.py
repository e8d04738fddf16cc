"""Do other programs keep the cores busy?"""

from __future__ import annotations

from bppsa_lightning import _cores
from bppsa_lightning._cores import BUSY
from bppsa_lightning.cli.doctor.finding import NOTE, Finding

AREA = "load"


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

"""The sizes that are timed beside cuDNN, and the rows that come of them.

B batch, T steps, H state.
"""

from collections.abc import Callable, Sequence
from typing import Any

from bppsa_lightning.calibration.cuda.fit import FITTED_H, OPERATORS, Row
from bppsa_lightning.calibration.cuda.isolated import Isolated, Lost
from bppsa_lightning.calibration.cuda.timing import STOCK, plan_named
from bppsa_lightning.calibration.cuda.verify import Verdicts
from bppsa_lightning.planner import cost_cuda, kernels

Size = dict[str, Any]
# B, T, H, as the fit needs them: long sequences at FITTED_H, short ones for what the host takes,
# and one size for each other H.
SIZES = [(16, T, FITTED_H) for T in (1000, 3000, 10_000, 30_000)]
SIZES += [(B, 1000, FITTED_H) for B in (2, 64, 256)]
SIZES += [(16, T, FITTED_H) for T in (10, 100)]
SIZES += [(16, 1000, H) for H in (8, 32, 64, 128, 256)]
GRID: list[Size] = [
    {"cell": cell, "B": B, "T": T, "H": H} for cell in OPERATORS for B, T, H in SIZES
]
SECONDS, LIMIT = 0.4, 60.0  # for a size: to time it, and before it counts as hung


def measure(
    grid: Sequence[Size],
    rows: list[Row],
    verdicts: Verdicts,
    clusters: bool,
    worker: Isolated,
    done: Callable[[Size], None],
    seconds: float = SECONDS,
    limit: float = LIMIT,
) -> None:
    """Times each size that has no row, under the plans whose kernels are right.

    A size is left out where the kernels of the forward or of the linear plan are not.

    Args:
        grid: the sizes.
        rows: are added to.
        verdicts: a kernel that hangs or dies here is added to the wrong ones.
        clusters: whether blocks of the GPU can share a sample.
        worker: where they are timed.
        done: is called with each size after it.
        seconds, limit: for a size.

    Raises:
        NoWorker: as `Isolated.ask`.
    """
    timed = [{name: row[name] for name in ("cell", "B", "T", "H")} for row in rows]
    for size in grid:
        if size not in timed:
            row = _measured(size, verdicts, clusters, worker, seconds, limit)
            rows += [] if row is None else [row]
        done(size)


def _measured(
    size: Size,
    verdicts: Verdicts,
    clusters: bool,
    worker: Isolated,
    seconds: float,
    limit: float,
) -> Row | None:
    cell = OPERATORS[size["cell"]]
    forward = kernels.sized(cell, "float32", size["H"], clusters, "forward_one_input")

    def kernel_of(name: str) -> str:
        plan = plan_named(name)
        return kernels.backward(cell, "float32", size["T"], size["H"], clusters, plan)

    while True:
        plans = [name for name in _plans(size) if kernel_of(name) in verdicts.right]
        if forward not in verdicts.right or "linear" not in plans:
            return None
        try:
            return worker.ask({"size": size, "plans": plans, "seconds": seconds}, limit)
        except Lost as lost:
            if lost.at in ("", STOCK):  # not the kernels' fault
                return None
            verdicts.fail(kernel_of(lost.at), f"while it was timed: {size}", lost.why)


def _plans(size: Size) -> list[str]:
    """The plans that come into question."""
    chunks = cost_cuda.chunks(size["T"]) if size["H"] <= kernels.MOST_COMPOSED else []
    return ["linear", *(f"c{chunk}" for chunk in chunks)]

"""On a CPU: what one step of a recurrent layer takes, by how many samples it has.

Windows of time are samples to the kernels (bppsa_lightning/windows/): whether they pay depends on
how much longer a step of K * B samples takes than one of B. A table has the seconds of a step,
forward and backward, by whichever kernels are faster, ours or PyTorch's, for some H and numbers of
samples of each cell; between them it is interpolated on logarithmic scales, and beyond them the
last two go on. That is for inputs of one number. The products with larger ones are computed for
many steps at once, so they take what those with as many units of the state take where there are
many samples; those of one sample by one thread, beside the one that walks.

Where no step was measured with so few threads, a step takes what those of the table take for as
many more samples: each thread has so many then. (With more threads it is taken for one of the
table's, which is too long.)

H hidden, I input.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence

import torch

from bppsa_lightning._cells import CELLS
from bppsa_lightning.planner import machine
from bppsa_lightning.planner.hand_over import nearest_threads

_known: dict[tuple[str, int, int, int, int], float] = {}
machine.keeps_in(_known)


def step_seconds(cell: str, H: int, I: int, samples: int) -> float:
    """Of a step with a gradient into every output, of the parameters and of the input.

    Args:
        cell: a name of `CELLS`. samples: at least 1.
    """
    asked = cell, H, I, samples, torch.get_num_threads()
    found = _known.get(asked)
    if found is None:
        found = _known[asked] = _step_seconds(*asked)
    return found


def measured_with_as_many_threads() -> bool:
    """Whether steps were measured with torch's number of threads."""
    return any(part["threads"] == torch.get_num_threads() for part in machine.cpu()["steps"])


def _step_seconds(cell: str, H: int, I: int, samples: int, threads: int) -> float:
    table = nearest_threads(machine.cpu()["steps"], threads)
    # A cell that was not measured is taken for an LSTM.
    seconds = table["seconds"].get(CELLS[cell].kind, table["seconds"]["LSTM"])
    most = table["samples"][-1]
    more = max(1.0, table["threads"] / threads)

    def of(samples: float) -> float:
        return _on_logs(
            table["H"], [_on_logs(table["samples"], row, samples) for row in seconds], H
        )

    of_inputs = more * samples * (I - 1) / H * of(most) / most
    return of(more * samples) + of_inputs * threads / min(threads, samples)


def _on_logs(sizes: Sequence[int], values: Sequence[float], size: float) -> float:
    """The value at a size, of those at some rising sizes."""
    i = min(max(bisect_right(sizes, size) - 1, 0), len(sizes) - 2)
    share = math.log(size / sizes[i]) / math.log(sizes[i + 1] / sizes[i])
    return values[i] * (values[i + 1] / values[i]) ** share

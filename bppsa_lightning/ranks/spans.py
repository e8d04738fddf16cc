"""Which steps of time each rank holds.

T steps, P ranks.
"""

from collections.abc import Sequence
from itertools import accumulate


class Spans:
    """T steps, divided: rank r holds [starts[r], starts[r] + lengths[r]).

    Args:
        lengths: of each rank, in the direction of time; 0 for a rank that holds none.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)
        self.starts = [0, *accumulate(self.lengths)][:-1]
        self.T = sum(self.lengths)

    @classmethod
    def equal(cls, T: int, P: int) -> "Spans":
        """As equal as they can be: the first T % P ranks hold one step more."""
        return cls([T // P + (r < T % P) for r in range(P)])

    @classmethod
    def balanced(cls, costs: Sequence[float], P: int) -> "Spans":
        """Such that the rank whose steps cost most has as little as there is to be had.

        Args:
            costs: of each step, not negative.
        """
        low, high = max(costs, default=0.0), sum(costs)
        for _ in range(60):  # what the costliest rank may cost
            most = (low + high) / 2
            if len(_filled(costs, most)) > P:
                low = most
            else:
                high = most
        lengths = _filled(costs, high)
        return cls(lengths + [0] * (P - len(lengths)))

    @property
    def longest(self) -> int:
        return max(self.lengths)

    def of(self, rank: int) -> slice:
        """The steps of a rank."""
        return slice(self.starts[rank], self.starts[rank] + self.lengths[rank])


def _filled(costs: Sequence[float], most: float) -> list[int]:
    """How many steps each rank takes that takes as many as cost no more than `most`."""
    lengths, left = [0], most
    for cost in costs:
        if cost > left and lengths[-1]:
            lengths.append(0)
            left = most
        lengths[-1] += 1
        left -= cost
    return lengths

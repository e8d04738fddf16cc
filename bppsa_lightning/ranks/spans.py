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

    @property
    def longest(self) -> int:
        return max(self.lengths)

    def of(self, rank: int) -> slice:
        """The steps of a rank."""
        return slice(self.starts[rank], self.starts[rank] + self.lengths[rank])

"""Times layers beside PyTorch's, around the least number of steps from which on they are faster:
forward and backward.

T steps, B batch, H input and hidden size.
"""

from collections.abc import Callable, Iterator
from typing import Any

from bppsa_lightning.calibration import pairs
from bppsa_lightning.calibration.fit_cpu import Point, Size, point

CELLS = ("RNN", "GRU", "LSTM")
# The sizes of layers; of samples of different lengths.
SIZES, BATCHES = (1, 8, 20, 64, 128, 256, 512), (1, 2, 16, 64, 256)
PACKED_SIZES, PACKED_BATCHES = (20, 64, 256), (2, 8, 32, 128)
# A size is measured twice where PyTorch's time over ours is between these; the worse one counts.
CLOSE = (1.0, 1.3)
MANY = 100  # steps
# Seconds of a step that is not worth waiting for.
LONGEST = 0.7

Keep = Callable[[str, Callable[[], Any]], Any]  # as `Progress.measured`


class Search:
    """What was measured at each size of layers, in one list for each H and B.

    Args:
        keep: what a name was measured to be, of what measures it.
        seconds: for each size.
    """

    def __init__(self, keep: Keep, seconds: float) -> None:
        self._keep, self._seconds = keep, seconds

    def training(self) -> Iterator[list[tuple[Size, Point]]]:
        """Forward and backward."""
        for cell in CELLS:
            for H in SIZES:
                for B in BATCHES:
                    yield list(self._around(Size(cell, 10, B, H), (2, 1), (30, 100, 1000)))

    def packed(self) -> Iterator[list[tuple[tuple[Size, bool], Point]]]:
        """Forward and backward of samples of different lengths; whether most would be padding."""
        for cell in CELLS:
            for H in PACKED_SIZES:
                for B in PACKED_BATCHES:
                    of_node: list[tuple[tuple[Size, bool], Point]] = []
                    for padded in (False, True) if B > 2 else (False,):  # two: T of 2T steps
                        around = self._around(Size(cell, 8, B, H), (5, 3), (14, 30), padded)
                        of_node += [((size, padded), found) for size, found in around]
                    yield of_node

    def nodes(self) -> int:
        """How many lists there are."""
        packed = len(PACKED_SIZES) * len(PACKED_BATCHES)
        return len(CELLS) * (len(SIZES) * len(BATCHES) + packed)

    def _around(
        self,
        size: Size,
        shorter: tuple[int, ...],
        longer: tuple[int, ...],
        padded: bool | None = None,
    ) -> Iterator[tuple[Size, Point]]:
        """T, then fewer steps while they pay, or more until they do.

        PyTorch's LSTM is one kernel over all steps, which beside ours gains with their number: of
        one that pays, many steps are measured too.
        """
        found, seconds = self._point(size, padded)
        yield size, found
        pays = found.pays
        if pays and size.cell == "LSTM" and padded is None and seconds * MANY / size.T <= LONGEST:
            many = size._replace(T=MANY)
            yield many, self._point(many, padded)[0]
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
            first = pairs.pair(size, self._seconds, padded=padded)
            low, high = CLOSE
            if not low * first.ours < first.stock < high * first.ours:
                return first
            again = pairs.pair(size, 3 * self._seconds, padded=padded)
            return max(first, again, key=lambda pair: pair.ours / pair.stock)

        ours, stock = self._keep(" ".join(map(str, size)) + kind, measure)
        return point(size.T, ours, stock), max(ours, stock)

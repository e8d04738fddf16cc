"""Where a sequence is cut, and its parts as samples of one batch.

T steps, B samples, K windows of C steps each, w steps of warm-up.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

Leaves = Sequence[Tensor]


class Cut(NamedTuple):
    """T = head + K * C: the first steps that fit no window are walked before them.

    Attributes:
        T: steps. windows: K, at least 2. span: C. warm: w, at most C.
        back: steps behind a window that its gradients are guessed by, where they are; or 0, for w.
    """

    T: int
    windows: int
    span: int
    warm: int
    back: int = 0

    @property
    def head(self) -> int:
        """Steps before the first window, fewer than K."""
        return self.T - self.windows * self.span

    @property
    def starts(self) -> range:
        """The first step of each window."""
        return range(self.head, self.T, self.span)

    @property
    def depth(self) -> int:
        """Steps one after the other, if every window meets."""
        return self.head + self.warm + self.span


def choose_cut(
    T: int,
    B: int,
    warm: int,
    cost: Callable[[int], float],
    call: float = 0.0,
    gain: float = 1.0,
    near: float = 1.0,
    rows: int = 1,
    calls: tuple[float, float] = (3, 5),
) -> Cut | None:
    """The cut that is estimated to take the least time; None where it does not gain enough.

    Args:
        warm: w.
        cost: of a step of so many samples.
        call: what a call costs beside its steps, in the same unit.
        gain: how many times as fast as the walk it must be; 0 for any that fits.
        near: of the least time, what is as good: then the fewest windows are chosen.
        rows: samples that are walked best in multiples of so many, where as many fit.
        calls: of windows, without a head and with one.
    """
    most = (call + T * cost(B)) / gain if gain else math.inf
    cuts = [Cut(T, K, T // K, warm) for K in _numbers(T // max(warm, 1), rows // math.gcd(rows, B))]
    times = [
        cut.head * cost(B)
        + call * calls[cut.head > 0]
        + (cut.warm + cut.span) * cost(cut.windows * B)
        for cut in cuts
    ]
    least = min(times, default=math.inf)
    if not least < most:
        return None
    return next(c for c, t in zip(cuts, times, strict=True) if t <= near * least and t < most)


def _numbers(most: int, multiple: int) -> Iterator[int]:
    """Of windows: multiples, if one fits, else any; many are further apart."""
    multiple = multiple if multiple <= most else 1
    K = max(multiple, 2)
    while most >= K:
        yield K
        K += multiple * max(1, K // (16 * multiple))


def side_by_side(x: Tensor, starts: Sequence[int], length: int) -> Tensor:
    """Parts of x (T, B, ...) as samples, window by window: (length, n * B, ...).

    A view where B is 1 and the parts lie at equal distances, else a copy.
    """
    n, rest = len(starts), x.shape[1:]
    if n == 1:
        return x[starts[0] : starts[0] + length]
    apart = starts[1] - starts[0]
    if apart > 0 and all(b - a == apart for a, b in pairwise(starts)):
        step, *strides = x.stride()
        offset = x.storage_offset() + starts[0] * step
        parts = x.as_strided((length, n, *rest), (step, apart * step, *strides), offset)
    else:
        parts = torch.stack([x[s : s + length] for s in starts], 1)
    return parts.flatten(1, 2)


def in_time(parts: Tensor, n: int) -> Tensor:
    """The reverse, a view: (length, n * B, ...) to (n, length, B, ...)."""
    return parts.unflatten(1, (n, parts.shape[1] // n)).transpose(0, 1)

"""Whether results are as exact as walks are: beside float64, and beside walks of the same numbers.

A walk in float32 is one of many that are as right: its numbers could have been rounded otherwise.
So what is judged is compared with the worst of two, the plain one and one whose inputs and weights
lie one spacing aside. Of what is still further off, eight more such walks tell whether walks of
this recurrence are as far apart, and nine by our kernels ("linear") whether it is these, and no
windows, that are. Else it is *wrong*.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from support.windows import ULP, far

# Names of results and of gradients, and what they are; None of a gradient that is none.
Results = dict[str, Tensor | None]

# Of up to so many numbers the largest error is one draw, and no statistics.
FEW = 3

# Walks beside the two, for what is further off than those.
_MORE = 8

# An error of a walk, relative to the result, beyond which it has lost the truth.
_LOST = 1e-2


class Call(NamedTuple):
    """One call, as it was computed and as it can be walked.

    Attributes:
        found: its results.
        walk: the results of a plain walk, of a dtype and of a seed by which numbers lie one spacing
            aside; None for those that were given.
        kernels: the same of our kernels' walk, in the call's own dtype.
        how: lines of `explain` on it.
    """

    found: Results
    walk: Callable[[torch.dtype, int | None], Results]
    kernels: Callable[[int | None], Results]
    how: list[str]


class Flag(NamedTuple):
    """A result that is further from the truth than twice the worst of two walks.

    Attributes:
        name: of the result. numbers: that it has.
        ours, walks: its error and the worst of the two; `far`'s largest or whole one.
        more: the worst of ten walks. kernels: the worst of nine by our kernels.
    """

    name: str
    numbers: int
    ours: float
    walks: float
    more: float
    kernels: float
    slack: float

    @property
    def few(self) -> bool:
        return self.numbers <= FEW

    @property
    def wrong(self) -> bool:
        """Beside all walks; else they are as far apart."""
        return not self.ours <= 2 * max(self.more, self.kernels) + self.slack

    def __str__(self) -> str:
        as_others = self.ours <= 2 * self.more + self.slack
        what = "WRONG" if self.wrong else "as other walks" if as_others else "as our kernels' walk"
        few = f", {self.numbers} number{'s' * (self.numbers != 1)}" if self.few else ""
        walks = f"two walks {self.walks:.1e}, ten {self.more:.1e}, our kernels' {self.kernels:.1e}"
        return f"{self.name}: {what}{few}; error {self.ours:.1e}, {walks}"


class Judgement(NamedTuple):
    """Of one call.

    Attributes:
        flags: the results that are further off than two walks.
        other_way: how often the plain walk is, beside ours and the one aside: of results of many
            numbers, and of those of few.
        lost: results of which no walk is near the truth, or which are not finite.
    """

    flags: list[Flag]
    other_way: tuple[int, int]
    lost: int


def aside(t: Tensor, generator: torch.Generator) -> Tensor:
    """Each number's neighbour, above or below; zeros stay."""
    if not t.is_floating_point():
        return t
    up = torch.rand(t.shape, generator=generator) < 0.5
    to = torch.where(up, float("inf"), float("-inf")).to(t.dtype)
    return torch.where(t == 0, t, torch.nextafter(t, to))


def judge(call: Call, dtype: torch.dtype) -> Judgement:
    """The verdict on a call with numbers of a dtype, float32 or float64."""
    slack = 8 * ULP if dtype == torch.float32 else 1e-10
    true = call.walk(torch.float64, None)
    plain = true if dtype == torch.float64 else call.walk(dtype, None)
    walks: list[Results] = [plain]
    kernels: list[Results] = []

    def walked(count: int) -> list[Results]:
        walks.extend(call.walk(dtype, seed) for seed in range(len(walks), count))
        return walks[:count]

    def by_kernels() -> list[Results]:
        if not kernels:
            kernels.extend(call.kernels(seed) for seed in (None, *range(1, 1 + _MORE)))
        return kernels

    flags, other_way, lost = [], [0, 0], 0
    for name, truth in true.items():
        ours = call.found[name]
        if ours is None or truth is None:
            if ours is not truth:
                nan = float("nan")
                flags.append(Flag(f"{name} (None, or not)", 9, nan, nan, nan, nan, slack))
            continue
        near, numbers = plain[name], truth.numel()
        assert near is not None
        if not truth.isfinite().all() or not near.isfinite().all():
            lost += 1
            continue
        found, least = _error(ours, truth), _error(near, truth)
        lost += max(least) > _LOST
        for i in (0, 1):
            if not found[i] <= 2 * least[i] + slack:
                two = _worst(walked(2), name, truth, i)
                if not found[i] <= 2 * two + slack:
                    more = _worst(walked(2 + _MORE), name, truth, i)
                    own = _worst(by_kernels(), name, truth, i)
                    flags.append(Flag(name, numbers, found[i], two, more, own, slack))
                    break
            elif least[i] > 2 * max(found[i], _worst(walked(2)[1:], name, truth, i)) + slack:
                other_way[numbers <= FEW] += 1
                break
    return Judgement(flags, (other_way[0], other_way[1]), lost)


def _error(found: Tensor, true: Tensor) -> tuple[float, float]:
    return far([found], [true.double()])[0] if true.numel() else (0.0, 0.0)


def _worst(walks: list[Results], name: str, true: Tensor, i: int) -> float:
    errors = [_error(t, true)[i] for walk in walks if (t := walk[name]) is not None]
    return max(e if e == e else float("inf") for e in errors)

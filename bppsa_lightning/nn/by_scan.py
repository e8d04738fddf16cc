"""One direction of a layer of any cell, by `bl.scan`, on any device; masks for all cells' noise.

T steps, B samples, F features that the steps need of the input, P state that is shown, H hidden.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bppsa_lightning import ops
from bppsa_lightning.steps import scan

Tensors = Sequence[Tensor]

# x (B, F), the old state (h, or h and c), h as it enters W_hh -> the new state.
Step = Callable[[Tensor, Tensors, Tensor], tuple[Tensor, ...]]


class Noise(NamedTuple):
    """Recurrent dropout and zoneout, probabilities as of `Recurrent`."""

    recurrent_dropout: float
    zoneout: float
    training: bool


def walk(
    step: Step, name: str, sizes: Sequence[int], noise: Noise, x: Tensor, states: Tensors,
    reverse: bool, marked: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """As `Recurrent.walk`: x (T, B, F) -> output (T, B, P), h_n (B, P), c_n (B, H).

    Args:
        step: of the cell. name: of it, for `explain`.
        sizes: P, or P and H. noise: whose masks are drawn for all steps beforehand.
    """
    T, B = x.shape[:2]
    carry = tuple(states) or tuple(x.new_zeros(B, size) for size in sizes)
    xs: dict[str, Any] = {"x": x}
    if marked:
        xs["x"], xs["padding"] = x[..., :-1], x[..., -1:] != 0
    if noise.training and noise.recurrent_dropout:
        # One row for each sample belongs into xs, as a view.
        xs["enters"] = entering_mask(noise.recurrent_dropout, carry[0]).expand(T, -1, -1)
    if noise.training and noise.zoneout:
        xs["kept"] = tuple(drawn(noise.zoneout, (T, *state.shape), state) for state in carry)
    p = 0.0 if noise.training else noise.zoneout

    def next_state(old: tuple[Tensor, ...], now: dict[str, Any]) -> tuple[Any, Tensor]:
        entering = old[0] * now["enters"] if "enters" in now else old[0]
        new = step(now["x"], old, entering)
        if "kept" in now:
            new = _where(now["kept"], old, new)
        elif p:
            new = tuple(torch.lerp(n, o, p) for n, o in zip(new, old, strict=True))
        if "padding" in now:
            new = _where([now["padding"]] * len(new), old, new)
        return new, new[0]

    next_state.__qualname__ = name  # for explain
    last, output = scan(next_state, carry, xs, reverse=reverse)
    return output, *last


def entering_mask(p: float, state: Tensor) -> Tensor:
    """(B, P) by which a state is multiplied before W_hh: 0 with probability p, or 1 / (1 - p)."""
    return (~drawn(p, tuple(state.shape), state)).to(state.dtype) / (1 - p)


def drawn(p: float, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A mask, true with probability p, on a tensor's device."""
    return ops.random_mask(p, shape, like.device)


def _where(masks: Sequence[Tensor], old: Tensors, new: Tensors) -> tuple[Tensor, ...]:
    return tuple(torch.where(m, o, n) for m, o, n in zip(masks, old, new, strict=True))

"""What the operators' autograd formulas share."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

_library = torch.library.Library("bppsa", "FRAGMENT")  # must live as long as what it registered


def define_composite(schema: str, function: Callable[..., Any]) -> None:
    """Defines an operator that torch.compile takes apart only where its symbols have values.

    Planning is Python, over sizes that may be symbols in a graph.
    """
    _library.define(schema)
    _library.impl(schema.partition("(")[0], function, "CompositeImplicitAutograd")


@cache
def bit_mask(wanted: tuple[bool, ...]) -> int:
    """Which results a kernel is to compute, bit by bit."""
    return sum(1 << i for i, want in enumerate(wanted) if want)


def only(wanted: Sequence[bool], gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """The gradients that are wanted, None for the others."""
    return tuple([g if want else None for g, want in zip(gradients, wanted, strict=True)])


def differentiable_gradients(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor | None],
    cotangents: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients with a graph behind them: of a plain formula's outputs, for second derivatives.

    Args:
        outputs: of the formula, computed with gradients enabled.
        inputs: that it was computed of.
        cotangents: of each output, None for zeros.
        wanted: for each input, whether its gradient is.
    """
    pairs = [(o, c) for o, c in zip(outputs, cotangents, strict=False) if c is not None]
    needed = [t for t, want in zip(inputs, wanted, strict=True) if want and t is not None]
    if not needed:
        return (None,) * len(inputs)
    gradients = iter(
        torch.autograd.grad(
            [o for o, _ in pairs],
            needed,
            [c for _, c in pairs],
            create_graph=True,
            allow_unused=True,
        )
    )
    return tuple(next(gradients) if want else None for want in wanted)

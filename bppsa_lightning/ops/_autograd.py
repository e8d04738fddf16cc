"""What the operators' autograd formulas share."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def register_formula(
    name: str,
    setup: Callable[[Any, tuple[Any, ...], Any], None],
    backward: Callable[..., Any],
    call: Callable[..., Any] | None = None,
) -> Any:
    """Registers an operator's formula; returns it as a Function that calls the operator directly.

    torch.library's formula takes a third more time on short calls. Under torch.compile it is the
    only one.

    Args:
        call: in place of the operator, for a Function whose arguments are others.
    """
    operator = call or getattr(torch.ops.bppsa, name).default

    # One method for both: torch takes 25 us to call a setup_context.
    def forward(ctx: Any, *inputs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            output = operator(*inputs)
        setup(ctx, inputs, output)
        return output

    torch.library.register_autograd(f"bppsa::{name}", backward, setup_context=setup)
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(f"Direct_{name}", (torch.autograd.Function,), methods)


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

    The formula was computed of the inputs, with gradients enabled. A cotangent may be None for
    zeros; `wanted` says of each input whether its gradient is.
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


@contextmanager
def primals(saved: Sequence[Tensor | None]) -> Iterator[list[Any]]:
    """For a Function's `jvp`: what it saved, without the tangents that `jvp` itself is to give.

    Those of outer transforms remain, and are computed with inside, which torch leaves out.
    """
    with forward_ad._set_fwd_grad_enabled(True):
        yield [None if t is None else forward_ad.unpack_dual(t).primal for t in saved]

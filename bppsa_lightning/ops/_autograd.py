"""What the operators' autograd formulas share."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import SavedTensor
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
    formula: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor | None],
    cotangents: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Gradients with a graph behind them: of a plain formula's outputs, for second derivatives.

    Args:
        formula: inputs -> outputs.
        inputs: tensors, or None.
        cotangents: of the first outputs; None for zeros.
        wanted: of each input, whether its gradient is.
    """
    # Views, as one input may have been computed from another (the output of a layer, and its
    # weights, where it is called twice): that one's gradient must not go through this one.
    with torch.enable_grad():
        views = [None if t is None else t.view_as(t) for t in inputs]
        return gradients_with_graph(formula(*views), views, cotangents, wanted)


def gradients_with_graph(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor | None],
    cotangents: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """As `differentiable_gradients`, of outputs that are computed, by all ways to the inputs."""
    pairs = [
        (o, c)
        for o, c in zip(outputs, cotangents, strict=False)
        if c is not None and o.requires_grad
    ]
    needed = [t for t, want in zip(inputs, wanted, strict=True) if want and t is not None]
    if not needed or not pairs:
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


def saved_tensors(ctx: Any, results: range) -> list[Any]:
    """What a Function saved, without its results that their owner has changed in place since.

    A change of any other tensor is torch's error; so is one of a result where torch (2.11) does not
    say which tensor it was. Where hooks keep what is saved, torch looks for no change, as ever.

    Args:
        results: their places.

    Returns:
        None in the place of each result if one was changed: the backward computes them again.
    """
    try:
        return list(ctx.saved_tensors)
    except RuntimeError:
        if not hasattr(SavedTensor, "unpack"):
            raise
        saved = enumerate(ctx._raw_saved_tensors)
        return [None if i in results else t.unpack() for i, t in saved]


class Gate:
    """Between the inputs of a function and what they were computed from, for its gradients.

    A function may read tensors that nobody can hand it in another's place (a step's parameters).
    Where its inputs were computed with these, too (the states of an earlier call), gradients of
    its own reading are found while the gate is closed; gradients of those gradients, later, go on
    to where the inputs come from.
    """

    def __init__(self) -> None:
        self.is_closed = False

    def through(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The same, behind the gate."""
        return [_Through.apply(self, t) if t.requires_grad else t for t in inputs]

    @contextmanager
    def closed(self) -> Iterator[None]:
        """While no gradient passes."""
        self.is_closed = True
        try:
            yield
        finally:
            self.is_closed = False


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Gate, t: Tensor) -> Tensor:
        ctx.gate = gate
        return t.view_as(t)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None]:
        return None, None if ctx.gate.is_closed else grad


Backward = Callable[..., tuple[Tensor | None, ...]]


def once_differentiable(what: str) -> Callable[[Backward], Backward]:
    """Decorates a Function's backward that has no formula: whoever differentiates it is told so.

    torch's own decorator tells only where a gradient that comes in has a graph behind it. Where
    none has (that of a sum, say), second derivatives would be left out without a word.

    Args:
        what: has no second derivatives, in words.
    """

    def decorate(backward: Backward) -> Backward:
        @wraps(backward)
        def once(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
            with torch.no_grad():
                found = backward(ctx, *gradients)
            if not torch.is_grad_enabled():  # no create_graph=True
                return found
            tensors = [t for t in found if t is not None]
            again = iter(_NoFormula.apply(what, torch.empty(0, requires_grad=True), *tensors))
            return tuple(None if t is None else next(again) for t in found)

        return once

    return decorate


class _NoFormula(torch.autograd.Function):
    """Gradients as they are; that of a gradient is an error."""

    @staticmethod
    def forward(ctx: Any, what: str, requires_grad: Tensor, *found: Tensor) -> tuple[Tensor, ...]:
        ctx.what = what
        return tuple(t.detach() for t in found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise NotImplementedError(
            f"{ctx.what} has no second derivatives: found a backward through its gradients, which "
            "were computed with create_graph=True, wanted first derivatives only"
        )


@contextmanager
def primals(saved: Sequence[Tensor | None]) -> Iterator[list[Any]]:
    """For a Function's `jvp`: what it saved, without the tangents that `jvp` itself is to give.

    Those of outer transforms remain, and are computed with inside, which torch leaves out.
    """
    with forward_ad._set_fwd_grad_enabled(True):
        yield [None if t is None else forward_ad.unpack_dual(t).primal for t in saved]

"""dropout: as PyTorch's, number by number, on a CPU in a fraction of the time."""

import os
from functools import cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bppsa_lightning._context import in_modes, is_tracing
from bppsa_lightning.ops._checks import FLOATS
from bppsa_lightning.ops._recorded import is_plain

# Held from a look at the generator's state until the next one is set.
_drawing = Lock()
# Numbers from which on the calls of ours cost less than the drawing of PyTorch's.
_LEAST = 1 << 12


def dropout(x: Tensor, p: float) -> Tensor:
    """`torch.nn.functional.dropout(x, p)`, bit by bit, and its generator is left as that leaves it.

    On most CPUs PyTorch draws a mask from its Mersenne twister one number after the other, 7 ns
    each; here vectors of them are made at once. PyTorch itself drops where that was not found to
    draw the same numbers (by its source it leaves them to MKL on Intel's processors), on other
    devices, for 16-bit floats, few numbers or those that have gaps between them, and under
    torch.compile, a transform or another mode.

    Args:
        x: of any shape, its dimensions in any order in memory.
        p: the probability, in [0, 1], of becoming 0; others are divided by 1 - p.

    Returns:
        As x. Differentiable any number of times.

    Raises:
        ValueError: p is not in [0, 1], in PyTorch's words.
    """
    if not _is_ours(x, p):
        return functional.dropout(x, p)
    order = None if x.is_contiguous() else _order(x)  # in which PyTorch draws
    rows = x if order is None else x.permute(order)
    output: Tensor = _Masked.apply(rows, _drawn(rows, 1 - p), _scale(1 - p, x.dtype))
    return output if order is None else output.permute([*map(order.index, range(x.dim()))])


def _order(x: Tensor) -> list[int]:
    """Its dimensions, as its numbers lie in memory."""
    return sorted(range(x.dim()), key=x.stride, reverse=True)


def _is_ours(x: Tensor, p: float) -> bool:
    if not isinstance(x, Tensor) or not isinstance(p, float):  # of which PyTorch will say so
        return False
    if x.device.type != "cpu" or x.dtype not in FLOATS or not _is_plain_call(x):
        return False
    if not 0 < p < 1 or x.numel() < _LEAST or not draws_as_torch():
        return False
    return x.is_contiguous() or x.permute(_order(x)).is_contiguous()


def _is_plain_call(x: Tensor) -> bool:
    """Whether nobody but autograd sees what is done to a tensor."""
    if type(x) not in (Tensor, torch.nn.Parameter) or is_tracing() or is_plain():
        return False
    return not (in_modes() or x.is_nested or x.layout is not torch.strided or x._is_zerotensor())


def _drawn(x: Tensor, p: float) -> Tensor:
    """What x.bernoulli_(p) would draw, as a mask, from PyTorch's generator.

    Other threads wait for that here; but PyTorch may draw for one of them in the meantime, as the
    interpreter is free for it: then again, and after some times by PyTorch, which holds a lock.
    """
    generator = torch.default_generator
    for _ in range(3):
        with _drawing:
            state = generator.get_state()
            before = state.numpy().tobytes()
            mask: Tensor = _draw(state, x.shape, p)
            # (No operator of torch from here on, in which other threads would run.)
            if generator.get_state().numpy().tobytes() == before:
                generator.set_state(state)
                return mask
    return torch.empty(x.shape, dtype=torch.float32, device="cpu").bernoulli_(p).bool()


def _nobody_draws() -> None:
    """A process that forks leaves its other threads behind, and with them what they held."""
    global _drawing
    _drawing = Lock()


os.register_at_fork(after_in_child=_nobody_draws)


@cache
def _scale(p: float, dtype: torch.dtype) -> float:
    """What PyTorch multiplies with: 1 / p, rounded as it rounds it."""
    return torch.ones((), dtype=dtype, device="cpu").div_(p).item()


@cache
def draws_as_torch() -> bool:
    """Whether PyTorch's numbers on this machine are those of `csrc/recurrent/dropout.h`."""
    generator = torch.Generator()
    generator.manual_seed(2147483647)
    with torch.inference_mode(False):
        for n in (1, 700):
            state, drawn = generator.get_state(), torch.empty(n, dtype=torch.float32, device="cpu")
            drawn.bernoulli_(0.7, generator=generator)
            if not torch.equal(_draw(state, (n,), 0.7), drawn.bool()):
                return False
            if not torch.equal(state, generator.get_state()):
                return False
    return True


_draw = torch.ops.bppsa.bernoulli.default
_multiply = torch.ops.bppsa.masked.default


class _Masked(torch.autograd.Function):
    """x times a mask and a number, the transpose of which it is itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        output: Tensor = _multiply(x, mask, scale)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (mask,) = ctx.saved_tensors
        if not _is_plain_call(grad):
            return grad * (mask.view(grad.shape).to(grad.dtype) * ctx.scale), None, None
        return _Masked.apply(grad.contiguous(), mask, ctx.scale), None, None


@torch.library.register_fake("bppsa::bernoulli")
def _(state: Tensor, size: list[int], p: float) -> Tensor:
    return state.new_empty(size, dtype=torch.bool)


@torch.library.register_fake("bppsa::masked")
def _(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    return x.new_empty(x.shape)

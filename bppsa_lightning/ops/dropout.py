"""dropout: as PyTorch's, number by number, on a CPU in a fraction of the time."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bppsa_lightning._context import in_modes, is_tracing
from bppsa_lightning.ops._checks import FLOATS
from bppsa_lightning.ops._recorded import is_plain

# Numbers from which on the calls of ours cost less than the drawing of PyTorch's.
_LEAST = 1 << 12


def dropout(x: Tensor, p: float) -> Tensor:
    """`torch.nn.functional.dropout(x, p)`, bit by bit, and its generator is left as that leaves it.

    On most CPUs PyTorch draws a mask from its Mersenne twister one number after the other, 7 ns
    each; here vectors of them are made at once. PyTorch itself drops where that was not found to
    draw the same numbers (by its source it leaves them to MKL on Intel's processors), on other
    devices, for 16-bit floats, few numbers or those that do not lie in a row, and under
    torch.compile, a transform or another mode.

    Args:
        x: of any shape. p: the probability, in [0, 1], of becoming 0; others are divided by 1 - p.

    Returns:
        As x. Differentiable any number of times.

    Raises:
        ValueError: p is not in [0, 1], in PyTorch's words.
    """
    if not _is_ours(x, p):
        return functional.dropout(x, p)
    return _Masked.apply(x, _drawn(x, 1 - p), _scale(1 - p, x.dtype))  # type: ignore[no-any-return]


def _is_ours(x: Tensor, p: float) -> bool:
    if not isinstance(x, Tensor) or not isinstance(p, float):  # of which PyTorch will say so
        return False
    if x.device.type != "cpu" or x.dtype not in FLOATS or not _is_plain_call(x):
        return False
    return 0 < p < 1 and x.numel() >= _LEAST and x.is_contiguous() and _draws_as_torch()


def _is_plain_call(x: Tensor) -> bool:
    """Whether nobody but autograd sees what is done to a tensor."""
    if type(x) not in (Tensor, torch.nn.Parameter) or is_tracing() or is_plain():
        return False
    return not in_modes()


def _drawn(x: Tensor, p: float) -> Tensor:
    """What x.bernoulli_(p) would draw, as a mask, from PyTorch's generator.

    Another thread may draw in the meantime, as the interpreter is free for it: then again, and
    after some times by PyTorch, which holds a lock.
    """
    generator = torch.default_generator
    for _ in range(3):
        before = generator.get_state()
        state = before.clone()
        mask: Tensor = _draw(state, x.shape, p)
        if torch.equal(generator.get_state(), before):
            generator.set_state(state)
            return mask
    return torch.empty(x.shape, dtype=torch.float32, device="cpu").bernoulli_(p).bool()


@cache
def _scale(p: float, dtype: torch.dtype) -> float:
    """What PyTorch multiplies with: 1 / p, rounded as it rounds it."""
    return torch.ones((), dtype=dtype, device="cpu").div_(p).item()


@cache
def _draws_as_torch() -> bool:
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
        output: Tensor = _multiply(x, mask, scale).view(x.shape)
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
    return x.new_empty(x.numel())

"""regularised: recurrent layers with layer normalisation, recurrent dropout or zoneout.

T steps, B batch, I input, H state, G gates.
"""

from collections.abc import Sequence
from numbers import Number
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bppsa_lightning import _library, planner
from bppsa_lightning._cells import CELLS
from bppsa_lightning.ops._autograd import (
    bit_mask,
    differentiable_gradients,
    only,
    register_formula,
)
from bppsa_lightning.ops._checks import (
    FLOATS,
    check_like,
    check_shape,
    check_tensor,
    register_fake,
    wrong_shape,
)
from bppsa_lightning.ops._recorded import is_plain
from bppsa_lightning.ops._regularised_plain import of_sums, walk
from bppsa_lightning.ops.linear import joins
from bppsa_lightning.ops.log import record_scan


class Regularised(NamedTuple):
    """The tensors of one direction of a layer, all of one dtype and device but `kept_h`, `kept_c`.

    Attributes:
        x: (T, B, GH), the input's sums, with their biases; or with w_ih (T, B, I), the input.
        h0, c0: (B, H), or None for zeros; c0 of an LSTM (with peepholes or without) alone.
        w_hh: (GH, H); of an RNN also (H,), where each unit hands its state to itself alone (an
            IndRNN, arXiv:1803.04831).
        b_hh: (GH,) or None, added to the state's sums. With peepholes in its place how much the
            gates i, f, g, o take of c (biases go into x).
        norm_hh: (GH,) or None: the gains by which these, normalised, are multiplied before. Of an
            LSTM all gates are normalised together; of a GRU r and z, and n by itself.
        norm_c, b_c: (H,), with norm_hh, of an LSTM: gains and shifts (or None) of its normalised c.
        w_ih: (GH, I) or None. b_ih: (GH,) or None, added to W_ih x. norm_ih: (GH,) or None, with
            norm_hh: the gains by which W_ih x, normalised as the state's sums, is multiplied
            before.
        enters: (B, H) or None: what h is multiplied by where it enters W_hh. It has no gradient.
        kept_h, kept_c: (T, B, H) bool, or None: which units keep their old h, or c, in a step.
    """

    x: Tensor
    h0: Tensor | None
    c0: Tensor | None
    w_hh: Tensor
    b_hh: Tensor | None = None
    norm_hh: Tensor | None = None
    norm_c: Tensor | None = None
    b_c: Tensor | None = None
    w_ih: Tensor | None = None
    b_ih: Tensor | None = None
    norm_ih: Tensor | None = None
    enters: Tensor | None = None
    kept_h: Tensor | None = None
    kept_c: Tensor | None = None


# Cells, and those whose sums may be normalised.
REGULARISED = ("rnn_tanh", "rnn_relu", "gru", "ligru", "lstm", "peephole")
NORMALISED = ("gru", "lstm")

# Of csrc/cuda/recurrent/regularised_backward.cuh: numbers in a block's shared memory, of which any
# GPU has as many bytes.
_WARPS_OF_BLOCK, _NUMBERS_OF_UNIT, _SHARED_MEMORY = 16, 9, 48 * 1024

# Of csrc/requests/regularised.h: numbers beside the rows of what is normalised, and up to how many
# inputs nothing is kept of them.
_MOMENTS, _MOST_MADE_AGAIN = 16, 32

# Of the operands, those that have gradients.
_DIFFERENTIABLE = 11


def regularised(
    cell: str, operands: Regularised, zoneout: float = 0.0, reverse: bool = False
) -> tuple[Tensor, ...]:
    """A recurrent layer whose sums are normalised, or whose states enter or follow with noise.

    With LN(v) = (v - mean(v)) / sqrt(var(v) + 1e-5), p = zoneout and ⊙ unit by unit::

        x_t     = x[t],   or W_ih x[t] + b_ih,   or norm_ih LN(W_ih x[t]) + b_ih
        s_t     = W_hh (enters ⊙ h_{t-1}) + b_hh,   or norm_hh LN(W_hh (enters ⊙ h_{t-1})) + b_hh
        new     = the cell of x_t + s_t and of the old state;
                  with norm_c, h = o tanh(norm_c LN(c) + b_c)
        state_t = the old state where it is kept, else (1 - p) new + p old

    Args:
        cell: "rnn_tanh", "rnn_relu", "gru", "ligru", "lstm" or "peephole"; with norm_hh "gru" or
            "lstm".
        operands: float32 or float64; on CUDA, of as many units as `regularised_holds` says.
        zoneout: the share of the old state, in [0, 1].
        reverse: time runs from T-1 down to 0.

    Returns:
        output (T, B, H), h_n (B, H), and of a cell with c c_n (B, H). Differentiable any number of
        times: from the second derivative on, and under a transform of torch.func, step by step in
        plain torch.

    Raises:
        TypeError: an operand is not a tensor, or of another dtype.
        ValueError: the cell, a shape, a device, `zoneout` or, on CUDA, the number of units does not
            fit.
        RuntimeError: CUDA tensors, and the CUDA kernels were not built.

    Sources: Ba et al., arXiv:1607.06450; Gal and Ghahramani, arXiv:1512.05287; Krueger et al.,
    arXiv:1606.01305.
    """
    _check(cell, operands, zoneout)
    if operands.enters is not None:
        operands = operands._replace(enters=operands.enters.detach())
    if is_plain():
        return walk(cell, operands, float(zoneout), bool(reverse))
    if operands.w_ih is not None and not joins(operands.x, operands.w_ih):
        operands = of_sums(cell, operands)
    operands = Regularised(*map(_laid_out, operands))  # type: ignore[arg-type]
    differentiated = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in operands[:_DIFFERENTIABLE]
    )
    arguments = cell, *operands, float(zoneout), bool(reverse), differentiated
    run = _forward if torch.compiler.is_compiling() else _Regularised.apply
    output, h_n, c_n, _ = run(*arguments)
    return (output, h_n, c_n) if CELLS[cell].has_c else (output, h_n)


def regularised_holds(x: Tensor, H: int) -> bool:
    """Whether there is a kernel for such an x and H units: on CUDA a block holds a sample's."""
    if x.dtype not in FLOATS or x.device.type not in ("cpu", "cuda", "meta"):
        return False
    fits = (_WARPS_OF_BLOCK + _NUMBERS_OF_UNIT * H) * x.element_size() <= _SHARED_MEMORY
    return not x.is_cuda or (_library.HAS_CUDA_KERNELS and fits)


def _check(cell: str, operands: Regularised, zoneout: float) -> None:
    known = REGULARISED if operands.norm_hh is None else NORMALISED
    if cell not in known:
        raise ValueError(f"cell: found {cell!r}, wanted one of {', '.join(map(repr, known))}")
    if not isinstance(zoneout, Number) or not 0 <= zoneout <= 1:  # type: ignore[operator]
        raise ValueError(f"zoneout: found {zoneout!r}, wanted a number in [0, 1]")
    check_tensor("x", operands.x)
    check_tensor("w_hh", operands.w_hh)
    gates, has_c, x = CELLS[cell].gates, CELLS[cell].has_c, operands.x
    if operands.w_ih is None:
        if x.dim() != 3 or x.shape[0] < 1 or x.shape[2] < gates or x.shape[2] % gates:
            raise wrong_shape("x", x, f"(T, B, {gates} H) with T >= 1 and H >= 1")
        H = x.shape[2] // gates
    else:
        if x.dim() != 3 or x.shape[0] < 1:
            raise wrong_shape("x", x, "(T, B, I) with T >= 1")
        if operands.w_hh.dim() not in (1, 2) or operands.w_hh.shape[-1] < 1:
            raise wrong_shape("w_hh", operands.w_hh, f"({gates} H, H) with H >= 1")
        H = operands.w_hh.shape[-1]
    if x.device.type not in ("cpu", "cuda", "meta"):
        raise RuntimeError(f"x: found on {x.device}, where the operator has no kernel")
    if x.is_cuda and not _library.HAS_CUDA_KERNELS:
        raise RuntimeError(f"x: found on a CUDA device, but {_library.NO_CUDA_KERNELS}")
    (T, B, I), GH = x.shape, gates * H
    if not regularised_holds(x, H):
        most = (_SHARED_MEMORY // x.element_size() - _WARPS_OF_BLOCK) // _NUMBERS_OF_UNIT
        raise ValueError(f"x: found {H} units, wanted at most {most} of {x.dtype} on CUDA")
    normalises_c = has_c and operands.norm_hh is not None
    if normalises_c and operands.norm_c is None:
        raise ValueError(f"norm_c: found None, wanted ({H},), as the sums are normalised")
    takes, normalises = operands.w_ih is not None, operands.norm_hh is not None
    shapes = {
        "h0": (B, H), "c0": (B, H) if has_c else None,
        "w_hh": (H,) if gates == 1 and operands.w_hh.dim() == 1 else (GH, H), "b_hh": (GH,),
        "norm_hh": (GH,), "norm_c": (H,) if normalises_c else None,
        "b_c": (H,) if normalises_c else None, "w_ih": (GH, I), "b_ih": (GH,) if takes else None,
        "norm_ih": (GH,) if takes and normalises else None, "enters": (B, H), "kept_h": (T, B, H),
        "kept_c": (T, B, H) if has_c else None,
    }  # fmt: skip
    for name, shape in shapes.items():
        tensor, mask = getattr(operands, name), name.startswith("kept")
        if tensor is None:
            continue
        if shape is None:
            why = "for this cell"
            if name in ("b_ih", "norm_ih"):
                why = "without norm_hh" if takes else "without w_ih"
            raise ValueError(f"{name}: found a tensor, wanted None {why}")
        check_tensor(name, tensor, (torch.bool,) if mask else FLOATS)
        check_shape(name, tensor, shape)
        if not mask:
            check_like(name, tensor, "x", x)
        elif tensor.device != x.device:
            raise ValueError(f"{name}: found on {tensor.device}, wanted on x's {x.device}")


def _laid_out(t: Tensor | None) -> Tensor | None:
    """Contiguous, or, of x, at least in its rows."""
    if t is None or (t.dim() == 3 and t.dtype != torch.bool and t.stride(-1) == 1):
        return t
    return t.contiguous()


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.cell, *tensors, ctx.zoneout, ctx.reverse, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[3])
    ctx.save_for_backward(*tensors, output[0], output[3])


def _backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
    """The gradients of the operator's arguments, from those of output, h_n and c_n."""
    incoming = cotangents[:3]
    if all(g is None for g in incoming):
        return (None,) * 18
    *tensors, output, saved = ctx.saved_tensors
    operands = Regularised(*tensors)
    wanted = ctx.needs_input_grad[1 : 1 + _DIFFERENTIABLE]
    if torch.is_grad_enabled():

        def formula(*given: Any) -> Sequence[Tensor]:
            again = Regularised(*given, *tensors[_DIFFERENTIABLE:])
            return walk(ctx.cell, again, ctx.zoneout, ctx.reverse)

        gradients = differentiable_gradients(formula, tensors[:_DIFFERENTIABLE], incoming, wanted)
    else:
        gradients = _walked(ctx, operands, output, saved, incoming, wanted)
    return (None, *gradients, *(None,) * 6)


def _walked(
    ctx: Any, operands: Regularised, output: Tensor, saved: Tensor,
    incoming: Sequence[Tensor | None], wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    T, B, H = map(int, output.shape)
    record_scan(CELLS[ctx.cell].label, (T, B, H), planner.Plan("linear", reason="one operator"))
    grads = [None if g is None else g.contiguous() for g in incoming]
    of_results = grads[: 2 + CELLS[ctx.cell].has_c] + [None] * (not CELLS[ctx.cell].has_c)
    x = None if operands.w_ih is None else operands.x  # (sums are of no use)
    results = _run_backward(
        ctx.cell, *of_results, output, saved, x, *operands[1:], ctx.zoneout, ctx.reverse,
        bit_mask(tuple(wanted)),
    )  # fmt: skip
    return only(wanted, results)


_forward = torch.ops.bppsa.regularised.default
_run_backward = torch.ops.bppsa.regularised_backward.default
_Regularised = register_formula("regularised", _setup, _backward)


def _saved_width(cell: str, H: int, normalised: bool, blends: bool, keeps_input: bool) -> int:
    """As csrc/requests/regularised.h."""
    record = CELLS[cell]
    slots = (4 if record.saved else 1) + (1 + blends) * record.has_c
    of_sums = record.gates * normalised * (1 + keeps_input)
    return (slots + of_sums) * H + _MOMENTS * normalised


@register_fake("regularised")
def _(cell: str, x: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    T, B, _ = x.shape
    o, zoneout, saves = Regularised(x, *others[:-3]), others[-3], others[-1]
    H, blends = o.w_hh.shape[-1], bool(zoneout) or o.kept_h is not None or o.kept_c is not None
    keeps_input = o.norm_ih is not None and bool(x.shape[2] > _MOST_MADE_AGAIN)
    width = _saved_width(cell, H, o.norm_hh is not None, blends, keeps_input)
    c_n = x.new_empty(B if CELLS[cell].has_c else 0, H)
    saved = x.new_empty(T if saves else 0, B, width)
    return x.new_empty(T, B, H), x.new_empty(B, H), c_n, saved


@torch.library.register_fake("bppsa::regularised_backward")
def _(
    cell: str, grad_output: Any, grad_h_n: Any, grad_c_n: Any, output: Tensor, *others: Any
) -> tuple[Tensor, ...]:
    (T, B, H), wanted, has_c = output.shape, others[-1], CELLS[cell].has_c
    o = Regularised(*others[1:-3])
    GH, takes = CELLS[cell].gates * H, o.w_ih is not None
    I = o.w_ih.shape[1] if o.w_ih is not None else GH  # noqa: E741
    if not takes:
        wanted |= 1
    of_input = GH if takes else 0
    shapes: tuple[tuple[Any, ...], ...]
    shapes = (
        (T, B, I), (B, H), (B if has_c else 0, H), tuple(o.w_hh.shape), (GH,), (GH,), (H,), (H,),
        (of_input, I), (of_input,), (of_input,),
    )  # fmt: skip
    return tuple(
        output.new_empty(rows if wanted >> bit & 1 else 0, *rest)
        for bit, (rows, *rest) in enumerate(shapes)
    )

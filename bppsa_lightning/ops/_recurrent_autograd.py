"""The gradients of a recurrent layer: a scan over its Jacobians, planned in the forward.

Letters as in ops/recurrent.py.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bppsa_lightning import planner, reference
from bppsa_lightning._cells import CELLS
from bppsa_lightning.ops._autograd import (
    bit_mask,
    differentiable_gradients,
    only,
    register_formula,
    saved_tensors,
)
from bppsa_lightning.ops._checks import register_fake
from bppsa_lightning.ops._recurrent_planned import planned_backward
from bppsa_lightning.ops.log import record_scan


class Operands(NamedTuple):
    """The tensors that one direction of one recurrent layer is computed of: see `ops.rnn`.

    Attributes:
        w_ih: None where x is already what W_ih would make of it.
    """

    x: Tensor
    h0: Tensor | None
    c0: Tensor | None
    w_ih: Tensor | None
    w_hh: Tensor
    b_ih: Tensor | None = None
    b_hh: Tensor | None = None
    w_hr: Tensor | None = None


class Ragged(NamedTuple):
    """Samples of different lengths, for the kernels: what follows an end is padding.

    Attributes:
        lengths: (B,), int64, on the CPU.
        groups: of neighbours, best with falling lengths, each of which one thread walks.
    """

    lengths: Tensor
    groups: int


class RaggedPlan(NamedTuple):
    """The plan of a layer over such samples, a linear scan."""

    plan: planner.Plan
    ragged: Ragged


def request_of(cell: str, operands: Operands, algorithm: str) -> planner.Request:
    """What the planner is asked for a layer with these operands."""
    x, (GH, P) = operands.x, operands.w_hh.shape
    T, B, I = x.shape
    H, projected = GH // CELLS[cell].gates, 0 if operands.w_hr is None else P
    return planner.Request(cell, T, B, H, x.device, algorithm, None, I, projected)


def laid_out(operands: Operands) -> tuple[Operands, bool]:
    """As the kernels take them, and whether one requires a gradient."""
    contiguous: list[Tensor | None] = []
    differentiated = False
    for t in operands:
        if t is not None:
            differentiated = differentiated or t.requires_grad
            if not t.is_contiguous():
                # x may have any strides but the last.
                t = t if not contiguous and t.stride(-1) == 1 else t.contiguous()
        contiguous.append(t)
    return Operands(*contiguous), differentiated  # type: ignore[arg-type]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.cell, *tensors, ctx.reverse, saved, plan = inputs  # or, in a graph, the algorithm
    ctx.plan, ctx.ragged = plan if isinstance(plan, RaggedPlan) else (plan, None)
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[3])
    # Saved only where the first derivative reads it: what is not may be changed in place. The
    # second derivative reads all, and looks itself whether that is still what it was.
    again = saved == planner.Saved.STATES and CELLS[ctx.cell].saved > 0
    wants_x, _, _, wants_w_ih, wants_w_hh = ctx.needs_input_grad[1:6]
    record = CELLS[ctx.cell]
    reads_h0 = wants_w_hh or again or (record.saved > 0 and not record.has_c)
    read = (wants_w_ih or again, reads_h0, True, wants_x or again, True, again, again, True)
    ctx.unread = []
    for i, t in enumerate(tensors):
        if t is not None and not read[i]:
            ctx.unread.append((i, t, _version(t)))
            tensors[i] = None
    ctx.save_for_backward(*tensors, output[0], output[3])


def _version(t: Tensor) -> int | None:
    return None if t.is_inference() else t._version


def _backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
    """The gradients of the operator's arguments, from those of output, h_n and c_n."""
    incoming = grad_output, grad_h_n, grad_c_n = cotangents[:3]
    if grad_output is None and grad_h_n is None and grad_c_n is None:
        return (None,) * 12
    places = len(Operands._fields)
    *tensors, output, saved = saved_tensors(ctx, range(places, places + 1))
    for i, t, _ in ctx.unread:  # but their shapes
        tensors[i] = t
    operands = Operands(*tensors)
    if torch.is_grad_enabled():
        _check_unread(ctx, "second derivatives need")
        gradients = _differentiable_backward(ctx, operands, incoming)
    else:
        if output is None:
            _check_unread(ctx, "the output was modified, too, and is computed again from")
            output = run_forward(ctx.cell, *operands, ctx.reverse, 0, ctx.plan.algorithm)[0]
        gradients = _scanned_backward(ctx, operands, output, saved, incoming)
    return (None, *gradients, None, None, None)


def _check_unread(ctx: Any, why: str) -> None:
    """Raises an error if one of the operands that were not saved has been changed in place."""
    if any(_version(t) != version for _, t, version in ctx.unread):
        raise RuntimeError(
            f"a recurrent layer's input or weight was modified in place; {why} the original "
            "(clone it)"
        )


def _scanned_backward(
    ctx: Any, operands: Operands, output: Tensor, saved: Tensor, cotangents: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    grad_output, grad_h_n, grad_c_n = cotangents
    wanted = ctx.needs_input_grad[1:9]
    if grad_output is None and grad_h_n is None and operands.x.shape[0] == 1:
        wanted = (*wanted[:-1], False)  # c_n of one step does not depend on the projection
    if not isinstance(ctx.plan, str):
        _log(ctx.cell, operands, ctx.plan)
    incoming = grad_output, grad_h_n, grad_c_n
    bits = bit_mask(wanted)
    results = run_planned_backward(
        ctx.cell, incoming, output, saved, operands, ctx.reverse, ctx.plan, bits, ctx.ragged
    )
    return only(wanted, results)


def run_planned_backward(
    cell: str,
    incoming: Sequence[Tensor | None],
    output: Tensor,
    saved: Tensor,
    operands: Operands,
    reverse: bool,
    plan: planner.Plan | str,
    bits: int,
    ragged: Ragged | None = None,
) -> Sequence[Tensor]:
    """The operator: gradients of all operands, empty where their bit is not set.

    Args:
        incoming: the gradients of output, h_n and c_n, or None, in any strides.
        plan: or an algorithm, in a graph, where it is planned whenever it runs.
        ragged: as the forward was given it; then nobody asks for h_n.
    """
    grad_output, grad_h_n, grad_c_n = incoming
    if grad_output is not None and grad_output.stride(-1) != 1:
        # Not contiguous(), which leaves an empty tensor's strides as they are.
        grad_output = grad_output.clone(memory_format=torch.contiguous_format)
    tensors = (
        grad_output,
        None if grad_h_n is None else grad_h_n.contiguous(),
        None if grad_c_n is None or not CELLS[cell].has_c else grad_c_n.contiguous(),
        output,
        saved,
        *operands,
    )
    if ragged is not None:
        grad_output, _, *others = tensors
        of_lengths: Sequence[Tensor] = _run_ragged_backward(
            cell, grad_output, *others, *ragged, bits
        )
        return of_lengths
    if isinstance(plan, str):
        found: Sequence[Tensor] = planned_backward(cell, *tensors, reverse, plan, bits)
    else:
        how = plan.algorithm, plan.chunk, plan.levels
        found = _run_backward(cell, *tensors, reverse, *how, bits)
    return found


def _log(name: str, operands: Operands, plan: planner.Plan) -> None:
    x, cell, (GH, size) = operands.x, CELLS[name], operands.w_hh.shape
    if x.is_cuda:  # there the state of a projected layer is what is projected
        size = GH // cell.gates
    record_scan(cell.label, (x.shape[0], x.shape[1], size), plan)


def _differentiable_backward(
    ctx: Any, operands: Operands, cotangents: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """The same gradients as functions of everything they depend on, by plain differentiation."""
    # A backward may be run under autocast; its products keep the precision of the forward.
    with torch.autocast(operands.x.device.type, enabled=False):

        def formula(*tensors: Any) -> list[Tensor]:
            return reference_outputs(ctx.cell, Operands(*tensors), ctx.reverse)

        wanted = ctx.needs_input_grad[1:9]
        return differentiable_gradients(formula, operands, cotangents, wanted)


def reference_outputs(cell: str, operands: Operands, reverse: bool) -> list[Tensor]:
    """output, h_n and, where there is one, c_n, step by step."""
    x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr = operands
    B, H = x.shape[1], w_hh.shape[0] // CELLS[cell].gates
    h0 = x.new_zeros(B, w_hh.shape[1]) if h0 is None else h0
    last = 0 if reverse else -1
    if CELLS[cell].has_c:
        c0 = x.new_zeros(B, H) if c0 is None else c0
        h, c = getattr(reference, cell)(x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr, reverse)
        return [h, h[last], c[last]]
    if cell in ("gru", "ligru"):
        h = getattr(reference, cell)(x, h0, w_ih, w_hh, b_ih, b_hh, reverse)
    else:
        h = reference.rnn(x, h0, w_ih, w_hh, b_ih, b_hh, cell.removeprefix("rnn_"), reverse)
    return [h, h[last]]


_forward = torch.ops.bppsa.recurrent.default
_run_backward = torch.ops.bppsa.recurrent_backward.default
_ragged_forward = torch.ops.bppsa.recurrent_ragged.default
_run_ragged_backward = torch.ops.bppsa.recurrent_ragged_backward.default


def run_forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The operator without torch.library's formula, which is Python even where it does nothing."""
    with torch._C._AutoDispatchBelowAutograd():
        return _forward(*arguments)


def run_ragged_forward(
    cell: str, operands: Operands, keep: int, ragged: Ragged
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The same for samples of different lengths."""
    with torch._C._AutoDispatchBelowAutograd():
        return _ragged_forward(cell, *operands, keep, *ragged)


def _planned_forward(cell: str, *others: Any) -> Any:
    *operands, reverse, keep, plan = others
    if isinstance(plan, RaggedPlan):
        return _ragged_forward(cell, *operands, keep, *plan.ragged)
    return _forward(cell, *operands, reverse, keep, plan.algorithm)


# Its last argument is the backward's plan, in place of the operator's algorithm.
RecurrentFunction = register_formula("recurrent", _setup, _backward, _planned_forward)


@register_fake("recurrent")
def _(cell: str, *arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    operands, keep = Operands(*arguments[:8]), arguments[9]
    x, record = operands.x, CELLS[cell]
    (T, B, _), (GH, P) = x.shape, operands.w_hh.shape
    cuda, H = x.device.type == "cuda", GH // record.gates
    units = 1 if cuda else 16 // x.dtype.itemsize
    padded = (H + units - 1) // units * units
    of_gates = record.saved + (cuda and operands.w_hr is not None)
    saved = (0, int(record.has_c), of_gates)[keep] * padded
    shapes = (T, B, P), (B, P), (B if record.has_c else 0, H), (T, B, saved)
    output, h_n, c_n, saved_numbers = map(x.new_empty, shapes)
    return output, h_n, c_n, saved_numbers


@register_fake("recurrent_ragged")
def _(cell: str, *arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *operands, keep, _, _ = arguments
    results: tuple[Tensor, Tensor, Tensor, Tensor] = _forward(cell, *operands, False, keep, "auto")
    return results


@torch.library.register_fake("bppsa::recurrent_ragged_backward")
def _(cell: str, grad_output: Tensor | None, *arguments: Any) -> Sequence[Tensor]:
    *others, _, _, wanted = arguments
    how = False, "linear", 0, 0
    results: Sequence[Tensor] = _run_backward(cell, grad_output, None, *others, *how, wanted)
    return results


@torch.library.register_fake("bppsa::planned_recurrent_backward")
@torch.library.register_fake("bppsa::recurrent_backward")
def _(cell: str, *arguments: Any) -> tuple[Tensor, ...]:
    operands, wanted = Operands(*arguments[5:13]), arguments[-1]
    x, (GH, P) = operands.x, operands.w_hh.shape
    B, H = x.shape[1], GH // CELLS[cell].gates
    states = (B, P), (B, H) if CELLS[cell].has_c else (0,)
    weights = ((0,) if t is None else t.shape for t in operands[3:])
    shapes = (x.shape, *states, *weights)
    return tuple(x.new_empty(s if wanted >> i & 1 else (0,)) for i, s in enumerate(shapes))

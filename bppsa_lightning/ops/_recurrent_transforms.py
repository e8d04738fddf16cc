"""A recurrent layer under torch.func: vmap, grad, jacrev, in any order, and forward mode.

Letters as in ops/recurrent.py, V members of a mapped dimension. Data that is mapped becomes batch,
(T, V * B, I); gradients of weights are then each member's own. Mapped weights are a loop over the
members, one call of the operator each. Second derivatives, tangents, and cells whose gates see c
are walked by `bppsa_lightning.reference`, step by step.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa_lightning import planner
from bppsa_lightning._cells import CELLS
from bppsa_lightning._context import is_forward_mode
from bppsa_lightning.ops._autograd import bit_mask
from bppsa_lightning.ops._mapped import fold, unfold
from bppsa_lightning.ops._member_gradients import member_gradients
from bppsa_lightning.ops._recurrent_autograd import (
    Operands,
    laid_out,
    reference_outputs,
    request_of,
    run_forward,
    run_planned_backward,
)

_SIZE = len(Operands._fields)
_BATCH = (1, 0, 0)  # where x, h0 and c0 have it, and so output, h_n and c_n


def transformed_layer(
    cell: str, operands: Operands, reverse: bool, algorithm: str
) -> tuple[Tensor, Tensor, Tensor]:
    """`ops.run_layer` under a transform."""
    # (Where gates see c, what stands in the place of b_hh has other gradients than a bias.)
    if is_forward_mode() or CELLS[cell].sees_c:
        output, h_n, *c_n = reference_outputs(cell, operands, reverse)
        return output, h_n, c_n[0] if c_n else h_n.new_empty(0, h_n.shape[-1])
    found: tuple[Tensor, ...] = _Layer.apply(cell, reverse, algorithm, *operands)
    return found[0], found[1], found[2]


class _Layer(torch.autograd.Function):
    """output, h_n, c_n and what is kept."""

    @staticmethod
    def forward(cell: str, reverse: bool, algorithm: str, *operands: Any) -> tuple[Tensor, ...]:
        contiguous = laid_out(Operands(*operands))[0]
        return run_forward(cell, *contiguous, reverse, int(planner.Saved.GATES), algorithm)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *ctx.how, _, _, _, _, _, _, _, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[3])
        ctx.save_for_backward(*inputs[3:], output[0], output[3])

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Any, ...]:
        incoming, wanted = cotangents[:3], ctx.needs_input_grad[3:]
        if all(g is None for g in incoming):
            return (None,) * (3 + _SIZE)
        cell, reverse, algorithm = ctx.how
        *tensors, output, kept = (_alive(t) for t in ctx.saved_tensors)
        operands = Operands(*tensors)
        found = gradients(cell, reverse, algorithm, wanted, incoming, output, kept, operands)
        return (None, None, None, *found)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], cell: str, reverse: bool, algorithm: str, *tensors: Any
    ) -> tuple[tuple[Tensor, ...], Any]:
        V, dims = info.batch_size, in_dims[3:]
        if _weights_are_mapped(dims):
            return _each(_Layer, V, dims, (cell, reverse, algorithm), tensors)
        operands = _folded(tensors, dims, V, _BATCH)
        found = _Layer.apply(cell, reverse, algorithm, *operands)
        places = (*_BATCH, 1)
        return tuple(unfold(t, V, k) for t, k in zip(found, places, strict=True)), places


def gradients(
    cell: str,
    reverse: bool,
    algorithm: str,
    wanted: Sequence[bool],
    incoming: Sequence[Tensor | None],
    output: Tensor,
    kept: Tensor,
    operands: Operands,
) -> tuple[Tensor | None, ...]:
    """The gradients of all operands, None for those that are not wanted, under any transform.

    Args:
        incoming: of output, h_n and c_n, or None.
        output, kept: of a forward that kept its gates.
    """
    if not any(wanted):
        return (None,) * _SIZE
    if is_forward_mode():
        found = _reference_gradients(cell, reverse, wanted, incoming, operands)
    else:
        bits = bit_mask(tuple(wanted))
        found = _Gradients.apply(cell, reverse, algorithm, bits, *incoming, output, kept, *operands)
    each = iter(found)
    return tuple(next(each) if want else None for want in wanted)


class _Gradients(torch.autograd.Function):
    """The gradients that are wanted, and no others."""

    @staticmethod
    def forward(
        cell: str, reverse: bool, algorithm: str, bits: int, *tensors: Any
    ) -> tuple[Tensor, ...]:
        incoming, (output, kept), operands = _apart(tensors)
        contiguous = laid_out(operands)[0]
        plan = planner.plan(request_of(cell, contiguous, algorithm))
        found = run_planned_backward(
            cell, incoming, output.contiguous(), kept.contiguous(), contiguous, reverse, plan, bits
        )
        return tuple(t for t, want in zip(found, _wanted(bits), strict=True) if want)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.cell, ctx.reverse, _, ctx.bits, *tensors = inputs
        incoming, _, operands = _apart(tensors)
        ctx.save_for_backward(*incoming, *operands)

    @staticmethod
    def backward(ctx: Any, *second: Tensor) -> tuple[Any, ...]:
        """As functions of everything: output and kept are themselves functions of the operands."""
        tensors = [_alive(t) for t in ctx.saved_tensors]
        there = [k for k, t in enumerate(tensors) if t is not None]

        def of(*given: Tensor) -> tuple[Tensor, ...]:
            every: list[Any] = [None] * len(tensors)
            for k, t in zip(there, given, strict=True):
                every[k] = t
            wanted = _wanted(ctx.bits)
            return _reference_gradients(
                ctx.cell, ctx.reverse, wanted, every[:3], Operands(*every[3:])
            )

        pull: Callable[..., Any] = torch.func.vjp(of, *(tensors[k] for k in there))[1]
        found: list[Any] = [None] * len(tensors)
        for k, t in zip(there, pull(tuple(second)), strict=True):
            found[k] = t
        return (None, None, None, None, *found[:3], None, None, *found[3:])

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], cell: str, reverse: bool, algorithm: str, bits: int,
        *tensors: Any,
    ) -> tuple[tuple[Tensor, ...], Any]:  # fmt: skip
        V, dims, wanted = info.batch_size, in_dims[4:], _wanted(bits)
        if _weights_are_mapped(dims[5:]):
            return _each(_Gradients, V, dims, (cell, reverse, algorithm, bits), tensors)
        incoming, (output, kept), operands = _apart(
            _folded(tensors, dims, V, (*_BATCH, 1, 1, *_BATCH))
        )

        def run(others: Operands, asked: Sequence[bool]) -> tuple[Tensor | None, ...]:
            return gradients(cell, reverse, algorithm, asked, incoming, output, kept, others)

        found = member_gradients(run, cell, reverse, wanted, incoming, output, operands, V)
        places = (*_BATCH, 0, 0, 0, 0, 0)
        results = [
            (unfold(t, V, places[k]) if k < 3 else t, places[k])
            for k, t in enumerate(found)
            if t is not None
        ]
        return tuple(t for t, _ in results), tuple(k for _, k in results)


def _reference_gradients(
    cell: str,
    reverse: bool,
    wanted: Sequence[bool],
    incoming: Sequence[Tensor | None],
    operands: Operands,
) -> tuple[Tensor, ...]:
    """Those that are wanted, in operations that every transform knows."""
    asked = [k for k, want in enumerate(wanted) if want]

    def outputs(*given: Tensor) -> tuple[Tensor, ...]:
        every = list(operands)
        for k, t in zip(asked, given, strict=True):
            every[k] = t
        return tuple(reference_outputs(cell, Operands(*every), reverse))  # type: ignore[arg-type]

    found, pull = torch.func.vjp(outputs, *(operands[k] for k in asked))[:2]
    given = zip(found, incoming, strict=False)
    result: tuple[Tensor, ...] = pull(
        tuple(torch.zeros_like(t) if g is None else g for t, g in given)
    )
    return result


def _alive(t: Tensor | None) -> Any:
    """What was saved; where the transform that wrapped it is over, what it wrapped."""
    return None if t is None else torch._C._functorch.unwrap_if_dead(t)


def _apart(tensors: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Operands]:
    """What enters a backward, what its forward left, and the operands."""
    return tensors[:3], tensors[3:5], Operands(*tensors[5:])


def _wanted(bits: int) -> tuple[bool, ...]:
    return tuple(bool(bits >> k & 1) for k in range(_SIZE))


def _weights_are_mapped(dims: Sequence[int | None]) -> bool:
    """Of the operands' mapped dimensions."""
    return any(dim is not None for dim in dims[3:])


def _folded(
    tensors: Sequence[Any], dims: Sequence[int | None], V: int, batch: Sequence[int]
) -> list[Any]:
    """Tensors with the mapped dimension in their batch; those behind are weights, and stay."""
    folded = [
        None if t is None else fold(t, dim, V, k)
        for t, dim, k in zip(tensors, dims, batch, strict=False)
    ]
    return [*folded, *tensors[len(batch) :]]


def _each(
    function: type[torch.autograd.Function], V: int, dims: Sequence[int | None],
    how: tuple[Any, ...], tensors: Sequence[Any],
) -> tuple[tuple[Tensor, ...], int]:  # fmt: skip
    """A call for each member, as each has weights of its own."""
    found = [
        function.apply(
            *how,
            *(t if dim is None else t.select(dim, v) for t, dim in zip(tensors, dims, strict=True)),
        )
        for v in range(V)
    ]
    return tuple(torch.stack(same) for same in zip(*found, strict=True)), 0

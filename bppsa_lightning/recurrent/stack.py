"""The layers and directions of a recurrent module, in turn: what an attached one and `bl.nn` share.

T steps, B batch, I input, H hidden, P state that is shown (H, or an LSTM's projection), L layers
times directions, D directions, N numbers of steps of all samples of a `PackedSequence`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from bppsa_lightning import ops, planner
from bppsa_lightning._cells import Cell
from bppsa_lightning._context import is_transformed, recorded
from bppsa_lightning.recurrent import precision
from bppsa_lightning.recurrent.config import Stack
from bppsa_lightning.recurrent.packed import PackedScan, Scan, Tensors
from bppsa_lightning.recurrent.rows import Sequences, of_similar_length

# x (T, B, I), states (L, B, P or H), weights -> output (T, B, D*P), last states: all layers.
Layers = Callable[[Tensor, Tensors, Tensors], tuple[Tensor, list[Tensor]]]


def run_layers(
    config: Stack, p: float, x: Tensor, states: Tensors, weights: Tensors, scan: Scan,
    drop: Callable[[Tensor, float], Tensor] = ops.dropout, packed: bool = False,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    """All layers: x (..., I), states (L, B, P or H) -> output (..., D*P), last states alike.

    Args:
        p: of the dropout between layers. drop: which does it.
        scan: one direction of one layer. packed: whether x is data of a `PackedSequence`.
    """
    rounded = precision.results(config, x, states, packed)
    if rounded is not None:
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        x, weights = x.to(wide), [w.to(wide) for w in weights]
        states = [state.to(wide) for state in states]
    each, firsts = config.weights_per_direction, [state.unbind(0) for state in states]
    lasts: list[Tensors] = []
    for layer in range(config.layers):
        outputs = []
        for direction in range(config.directions):
            k = len(lasts)
            first, own = [f[k] for f in firsts], weights[each * k : each * (k + 1)]
            output, *last = scan(x, first, own, direction == 1, k)
            outputs.append(output)
            lasts.append(last)
        x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
        if p and layer + 1 < config.layers:
            x = drop(x, p)
    # (Of one layer too: a view could not be detached in place, as PyTorch's can.)
    last = [torch.stack(states) for states in zip(*lasts, strict=True)]
    if rounded is None:
        return x, last
    return x.to(rounded[0]), [s.to(dtype) for s, dtype in zip(last, rounded, strict=False)]


def run_dense(
    input: Tensor, states: Tensors, weights: Tensors, batch_first: bool, layers: Layers
) -> tuple[Tensor, Any]:
    """Layers of x (T, B, I) over an input as PyTorch's modules take it, batched or not."""
    if input.dim() == 2:
        states = [state.unsqueeze(1) for state in states]
        output, last = layers(input.unsqueeze(1), states, weights)
        return output.squeeze(1), as_hx([state.squeeze(1) for state in last])
    x = input.transpose(0, 1) if batch_first else input
    learns = weights[0].requires_grad and torch.is_grad_enabled()
    if batch_first and learns and recorded() is None:
        # As PyTorch copies it: its owner may change the input in place before the backward.
        x = x.contiguous()
    output, last = layers(x, states, weights)
    return output.transpose(0, 1) if batch_first else output, as_hx(last)


def packed_scan(
    input: PackedSequence, cell: Cell, scan: Scan, padded_scan: Scan, marks: bool = False,
    grouped: Callable[[list[int]], list[int]] = of_similar_length, row_work: int = 0,
) -> Scan:  # fmt: skip
    """One direction of one layer, over the data (N, I) of a `PackedSequence`.

    Args:
        scan: the same of a tensor (T, B, I), which data is where all samples have one length.
        padded_scan, marks, grouped, row_work: of the padded tensors that it is spread over else, as
            `PackedScan` has them.
    """
    data, batch_sizes, *_ = input
    T, B = len(batch_sizes), int(batch_sizes[0])
    if len(data) != T * B:
        # (Transforms of torch.func refuse numpy().)
        sizes = np.array(batch_sizes.tolist()) if is_transformed() else batch_sizes.numpy()
        sequences = Sequences.of_packed(sizes)
        return PackedScan(padded_scan, cell, sequences, data.device, marks, grouped, row_work)

    def dense(x: Tensor, *operands: Any) -> tuple[Tensor, ...]:
        output, *last = scan(x.view(T, B, -1), *operands)
        return output.flatten(0, 1), *last

    return dense


def run_rows(
    input: PackedSequence, states: Tensors, weights: Tensors,
    layers: Callable[..., tuple[Tensor, list[Tensor]]], scan: Scan,
) -> tuple[PackedSequence, Any]:  # fmt: skip
    """Layers over a `PackedSequence`, by a scan of its data (N, I)."""
    data, batch_sizes, sorted_indices, unsorted_indices = input
    if sorted_indices is not None:
        states = [state.index_select(1, sorted_indices) for state in states]
    output, last = layers(data, states, weights, scan, packed=True)
    if unsorted_indices is not None:
        last = [state.index_select(1, unsorted_indices) for state in last]
    packed = PackedSequence(output, batch_sizes, sorted_indices, unsorted_indices)
    return packed, as_hx(last)


def run_direction(
    config: Stack, x: Tensor, states: Tensors, weights: Tensors, reverse: bool,
    algorithm: str, plan: planner.Plan | None = None, ragged: ops.Ragged | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """One direction of one layer by our operator: x (T, B, I) -> output (T, B, P), last states."""
    operands = operands_of(config, x, states, weights)
    output = ops.run_layer(config.cell.name, operands, reverse, algorithm, plan, ragged)
    return output if config.cell.has_c else output[:2]


def operands_of(config: Stack, x: Tensor, states: Tensors, weights: Tensors) -> ops.Operands:
    """One direction of one layer, as `ops.run_layer` takes it."""
    w_ih, w_hh = weights[:2]
    b_ih, b_hh = weights[2:4] if config.bias else (None, None)
    w_hr = weights[-1] if config.projected else None
    h0, c0 = (*states, None, None)[:2]
    return ops.Operands(x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr)


def as_hx(states: Tensors) -> Tensor | tuple[Tensor, ...]:
    """Last states as PyTorch's modules return them: h_n, or (h_n, c_n)."""
    return states[0] if len(states) == 1 else tuple(states)

"""Recurrent layers as chains over time: `nn.RNN`, `nn.GRU`, `nn.LSTM`, in all their options.

T steps, B batch, I input, H hidden, P state that is shown (H, or an LSTM's projection), L layers
times directions, N numbers of steps of all samples of a `PackedSequence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence

from bppsa_lightning import ops, planner
from bppsa_lightning._replacement import Chain
from bppsa_lightning.recurrent import precision, support
from bppsa_lightning.recurrent.config import Form
from bppsa_lightning.recurrent.packed import PackedScan, Scan, padded_steps


class RecurrentChain(Chain):
    """The forward of an attached recurrent layer: same arguments, same results, backward by scan.

    Each direction of each layer is a scan of its own. What a single call brings that cannot be
    scanned (arguments that PyTorch refuses, a device without kernels), or that PyTorch computes
    faster, goes to PyTorch's own forward, and `explain` says why.
    """

    module: nn.RNNBase

    def __init__(self, name: str, module: nn.RNNBase, algorithm: str = "auto") -> None:
        super().__init__(name, module, algorithm)
        self.form = Form.of(module)
        self.cell = self.form.cell_name
        self.stack = self.form.stack
        self._left: tuple[torch.Size, str] | None = None

    def __call__(
        self, input: Tensor | PackedSequence, hx: Tensor | tuple[Tensor, Tensor] | None = None
    ) -> Any:
        # First what costs least: such a call is short, and often like the one before it.
        if (
            not torch.compiler.is_compiling()
            and self._left is not None
            and input.__class__ is Tensor
            and input.shape == self._left[0]
            and input.is_cpu
        ):
            self.handed_over += 1
            self.reason = self._left[1]
            return type(self.module).forward(self.module, input, hx)
        reason = self._why_slower(input)
        if reason is not None and isinstance(input, Tensor) and input.is_cpu:
            self._left = (input.shape, reason)
        if reason is None:
            weights, states = self._weights(), self._states(hx)
            reason = support.of_call(self.form, self.module, input, states, weights)
        self.count(reason)
        if reason is not None:
            return type(self.module).forward(self.module, input, hx)
        T, B = self._steps_and_batch(input)
        self.shape, self.device = (T, B, self.form.hidden), weights[0].device
        if isinstance(input, PackedSequence):
            return self._packed(input, states, weights)
        return self._dense(input, states, weights)

    def _weights(self) -> Sequence[Any]:
        """The weights of this call: functional_call and parametrizations swap them."""
        parameters = self.module._parameters
        try:
            return [parameters[name] for name in self.form.names]
        except KeyError:
            self.module._update_flat_weights()
            return self.module._flat_weights

    def _states(self, hx: Any) -> tuple[Any, ...]:
        """(h0,), (h0, c0), () for zeros, or (None,) for what is none of these."""
        if hx is None:
            return ()
        if len(self.form.state_sizes) == 1:
            return (hx,)
        return tuple(hx) if isinstance(hx, tuple | list) and len(hx) == 2 else (None,)

    def _steps_and_batch(self, input: Tensor | PackedSequence) -> tuple[int, int]:
        if isinstance(input, PackedSequence):
            sizes = input.batch_sizes
            return sizes.shape[0], int(sizes[0])
        if input.dim() == 2:
            return input.shape[0], 1
        T, B = input.shape[:2]
        return (B, T) if self.module.batch_first else (T, B)

    def _why_slower(self, input: Any) -> str | None:
        if torch.compiler.is_compiling():  # sizes may be symbols there, and have no cost
            return None
        data = input.data if isinstance(input, PackedSequence) else input
        if not isinstance(data, Tensor) or not 2 <= data.dim() <= 3:
            return None
        form, device = self.form, data.device
        T, B = self._steps_and_batch(input)
        spread = None
        if isinstance(input, PackedSequence) and B and data.shape[0] != T * B:
            steps = padded_steps(input.batch_sizes) if device.type == "cuda" else T
            spread = (data.shape[0], steps)
        if device.type != "cuda":
            return planner.hand_over(form.cell, T, B, form.hidden, device, spread=spread)
        return ops.recurrent_kernels_missing(device) or planner.hand_over(
            form.cell, T, B, form.hidden, device, form.input_size, form.layers, form.directions,
            precision.of_pytorch(data), form.state if form.projected else 0, spread,
        )  # fmt: skip

    def plan(self) -> planner.Plan | None:
        """The plan of the last call's shape, or None before the first."""
        if self.shape is None:
            return None
        return planner.choose_recurrent(self.form.cell, *self.shape, self.device, self.algorithm)

    def _dense(
        self, input: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[Tensor, Any]:
        if input.dim() == 2:
            states = [state.unsqueeze(1) for state in states]
            output, last = self._layers(input.unsqueeze(1), states, weights, self._scan, False)
            return output.squeeze(1), self._as_hx([state.squeeze(1) for state in last])
        batch_first = self.module.batch_first
        x = input.transpose(0, 1) if batch_first else input
        output, last = self._layers(x, states, weights, self._scan, False)
        return output.transpose(0, 1) if batch_first else output, self._as_hx(last)

    def _packed(
        self, input: PackedSequence, states: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> tuple[PackedSequence, Any]:
        data, batch_sizes, sorted_indices, unsorted_indices = input
        if sorted_indices is not None:
            states = [state.index_select(1, sorted_indices) for state in states]
        T, B = len(batch_sizes), int(batch_sizes[0])
        if len(data) == T * B:  # all of one length: packed data is an ordinary tensor
            x = data.view(T, B, -1)
            output, last = self._layers(x, states, weights, self._scan, True)
            output = output.flatten(0, 1)
        else:
            scan = PackedScan(self._scan, self.form, batch_sizes, data.device)
            output, last = self._layers(data, states, weights, scan, True)
        if unsorted_indices is not None:
            last = [state.index_select(1, unsorted_indices) for state in last]
        packed = PackedSequence(output, batch_sizes, sorted_indices, unsorted_indices)
        return packed, self._as_hx(last)

    def _layers(
        self,
        x: Tensor,
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        scan: Scan,
        packed: bool,
    ) -> tuple[Tensor, list[Tensor]]:
        """All layers: x (..., I), states (L, B, P or H) -> output (..., D*P), last states alike."""
        form, rounded = self.form, precision.results(self.form, x, states, packed)
        if rounded is not None:
            wide = precision.computed(x)
            x, weights = x.to(wide), [w.to(wide) for w in weights]
            states = [state.to(wide) for state in states]
        each, firsts = form.weights_a_scan, [state.unbind(0) for state in states]
        p = self.module.dropout if self.module.training else 0.0
        lasts: list[Sequence[Tensor]] = []
        for layer in range(form.layers):
            outputs = []
            for direction in range(form.directions):
                k = len(lasts)
                first, own = [f[k] for f in firsts], weights[each * k : each * (k + 1)]
                output, *last = scan(x, first, own, direction == 1)
                outputs.append(output)
                lasts.append(last)
            x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
            if p and layer + 1 < form.layers:
                x = dropout(x, p)
        last = [_stacked(states) for states in zip(*lasts, strict=True)]
        if rounded is None:
            return x, last
        return x.to(rounded[0]), [s.to(dtype) for s, dtype in zip(last, rounded, strict=False)]

    def _scan(
        self, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], reverse: bool
    ) -> tuple[Tensor, ...]:
        """One direction of one layer: x (T, B, I) -> output (T, B, P), h_n (B, P), c_n (B, H)."""
        form = self.form
        w_ih, w_hh = weights[:2]
        b_ih, b_hh = weights[2:4] if form.bias else (None, None)
        w_hr = weights[-1] if form.projected else None
        h0, c0 = (*states, None, None)[:2]
        tensors = (x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr)
        output = ops.run_layer(form.cell, tensors, reverse, self.algorithm)
        return output if form.kind == "LSTM" else output[:2]

    def _as_hx(self, states: Sequence[Tensor]) -> Tensor | tuple[Tensor, ...]:
        return states[0] if len(states) == 1 else tuple(states)


def _stacked(states: Sequence[Tensor]) -> Tensor:
    return states[0].unsqueeze(0) if len(states) == 1 else torch.stack(list(states))

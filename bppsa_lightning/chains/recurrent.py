"""Recurrent layers as chains over time: `nn.RNN`.

T steps, B batch, H state, I input.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from bppsa_lightning import ops
from bppsa_lightning.chains.base import Chain

_COMPUTED = (torch.float32, torch.float64)
_WIDENED = (torch.bfloat16, torch.float16)


class RecurrentChain(Chain):
    """The forward of an attached `nn.RNN`: same arguments, same results, backward by scan.

    What a single call brings that cannot be scanned (a `PackedSequence`, a CUDA tensor, arguments
    that PyTorch refuses) goes to PyTorch's own forward, and `explain` says why.
    """

    module: nn.RNN

    def __init__(self, name: str, module: nn.RNN, algorithm: str = "auto") -> None:
        super().__init__(name, module, algorithm)
        self.cell = f"RNN-{module.nonlinearity}"

    @staticmethod
    def why_not(module: nn.Module) -> str | None:
        """Why a recurrent module cannot be attached; None if it can."""
        if isinstance(module, nn.RNNCellBase):
            return "one step at a time: the loop over time is in your code; nn.RNN can be scanned"
        if not isinstance(module, nn.RNN):
            return f"{type(module).__name__}: no cell for it yet"
        if type(module).forward is not nn.RNN.forward or "forward" in module.__dict__:
            return "its forward has been replaced"
        if module.num_layers > 1:
            return f"num_layers={module.num_layers}: one layer only, so far"
        if module.bidirectional:
            return "bidirectional: one direction only, so far"
        return None

    def __call__(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        self.module._update_flat_weights()  # functional_call and parametrize swap weights
        self.reason = self._why_hand_over(input, hx)
        if self.reason is not None:
            self.handed_over += 1
            return cast("tuple[Tensor, Tensor]", type(self.module).forward(self.module, input, hx))
        module = self.module
        batched = input.dim() == 3
        x = input if batched else input.unsqueeze(1)
        if batched and module.batch_first:
            x = x.transpose(0, 1)
        h0 = None if hx is None else hx[0] if batched else hx
        self.shape = (x.shape[0], x.shape[1], module.hidden_size)
        self.device = x.device
        self.calls += 1
        output, hn = self._scan(x, h0 if h0 is None or batched else h0.view(1, -1))
        if batched:
            return (output.transpose(0, 1) if module.batch_first else output), hn.unsqueeze(0)
        return output.squeeze(1), hn

    def _scan(self, x: Tensor, h0: Tensor | None) -> tuple[Tensor, Tensor]:
        w_ih, w_hh, *biases = cast("list[Tensor]", self.module._flat_weights)
        b_ih, b_hh = biases or (None, None)
        nonlinearity = self.module.nonlinearity
        dtype = self._result_dtype(x)
        if dtype not in _WIDENED:
            return ops.rnn(x, h0, w_ih, w_hh, b_ih, b_hh, nonlinearity, self.algorithm)
        # 16-bit results of a float32 recurrence: more exact than PyTorch's, never less.
        x, w_ih, w_hh = x.float(), w_ih.float(), w_hh.float()
        h0, b_ih, b_hh = (None if t is None else t.float() for t in (h0, b_ih, b_hh))
        output, hn = ops.rnn(x, h0, w_ih, w_hh, b_ih, b_hh, nonlinearity, self.algorithm)
        return output.to(dtype), hn.to(dtype)

    def _result_dtype(self, x: Tensor) -> torch.dtype:
        autocast = torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64
        return torch.get_autocast_dtype(x.device.type) if autocast else x.dtype

    def _why_hand_over(self, input: Any, hx: Any) -> str | None:
        module = self.module
        if not isinstance(input, Tensor):
            return f"input is a {type(input).__name__}: tensors only, so far"
        if input.device.type != "cpu":
            return f"input is on {input.device}: the RNN cell has no kernel there yet"
        tensors = [t for t in (*module._flat_weights, hx) if t is not None]
        if not all(isinstance(t, Tensor) and t.device == input.device for t in tensors):
            return "input, state and weights are on different devices, or no tensors"
        dtypes = {t.dtype for t in (input, *tensors)}
        mixable = torch.is_autocast_enabled("cpu") and torch.float64 not in dtypes
        if len(dtypes) > 1 and not mixable:
            return "dtypes of input, state and weights differ"
        if input.dtype not in _COMPUTED + _WIDENED:
            return f"dtype {input.dtype}"
        if not self._shapes_fit(input, hx):
            return "shapes that nn.RNN refuses"
        if not self._weights_fit():
            return "weights of unusual shapes"
        if not torch.compiler.is_compiling():
            if torch._C._are_functorch_transforms_active():
                return "inside a torch.func transform"
            if forward_ad._current_level >= 0:
                return "inside forward-mode differentiation"
        return None

    def _shapes_fit(self, input: Tensor, hx: Any) -> bool:
        module = self.module
        if input.dim() not in (2, 3) or input.shape[-1] != module.input_size:
            return False
        batched = input.dim() == 3
        time = 1 if batched and module.batch_first else 0
        if input.shape[time] == 0:
            return False
        if hx is None:
            return True
        batch = (input.shape[1 - time],) if batched else ()
        return isinstance(hx, Tensor) and tuple(hx.shape) == (1, *batch, module.hidden_size)

    def _weights_fit(self) -> bool:
        size, hidden = self.module.input_size, self.module.hidden_size
        usual = [(hidden, size), (hidden, hidden), (hidden,), (hidden,)]
        weights = self.module._flat_weights
        return [None if w is None else tuple(w.shape) for w in weights] == usual[: len(weights)]

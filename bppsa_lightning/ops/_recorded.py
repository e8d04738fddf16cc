"""What torch.jit.trace and torch.onnx.export write of a layer: PyTorch's own operators.

One operator where PyTorch has the layer, else a loop over the steps of the example.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bppsa_lightning._context import is_transformed, recorded
from bppsa_lightning.ops._recurrent_autograd import Operands, reference_outputs

_PYTORCHS: dict[str, Callable[..., tuple[Tensor, ...]]] = {
    "rnn_tanh": torch.rnn_tanh,
    "rnn_relu": torch.rnn_relu,
    "gru": torch.gru,
    "lstm": torch.lstm,
}


def is_plain() -> bool:
    """Whether this call is to be made of PyTorch's operators alone."""
    return is_transformed() or recorded() is not None


def recorded_layer(cell: str, operands: Operands, reverse: bool) -> tuple[Tensor, Tensor, Tensor]:
    """`ops.run_layer` while it is recorded."""
    if cell in _PYTORCHS and operands.w_ih is not None:
        return _pytorchs(cell, operands, reverse)
    output, h_n, *c_n = reference_outputs(cell, operands, reverse)
    return output, h_n, c_n[0] if c_n else h_n.new_empty(0, h_n.shape[-1])


def _pytorchs(cell: str, o: Operands, reverse: bool) -> tuple[Tensor, Tensor, Tensor]:
    x = o.x.flip(0) if reverse else o.x
    assert o.w_ih is not None
    weights, biases = [o.w_ih, o.w_hh], [o.b_ih, o.b_hh]
    has_biases = any(b is not None for b in biases)
    if has_biases:
        weights += [x.new_zeros(o.w_hh.shape[0]) if b is None else b for b in biases]
    if o.w_hr is not None:
        weights.append(o.w_hr)
    B, P = x.shape[1], o.w_hh.shape[1]
    h0 = x.new_zeros(1, B, P) if o.h0 is None else o.h0.unsqueeze(0)
    state: Tensor | list[Tensor] = h0
    if cell == "lstm":
        H = o.w_hh.shape[0] // 4
        state = [h0, x.new_zeros(1, B, H) if o.c0 is None else o.c0.unsqueeze(0)]
    output, *last = _PYTORCHS[cell](x, state, weights, has_biases, 1, 0.0, False, False, False)
    h_n, *c_n = (t.squeeze(0) for t in last)
    output = output.flip(0) if reverse else output
    return output, h_n, c_n[0] if c_n else h_n.new_empty(0, P)

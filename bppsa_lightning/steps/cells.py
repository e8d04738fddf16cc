"""nn.RNNCell, nn.GRUCell and nn.LSTMCell as steps: fused kernels over all time steps."""

from typing import Any

from torch import Tensor, nn

from bppsa_lightning import ops
from bppsa_lightning._context import unsupported_transform
from bppsa_lightning._library import missing_recurrent_kernels
from bppsa_lightning.steps.engine import Step
from bppsa_lightning.windows.cut import Leaves


def as_step(cell: nn.RNNCellBase) -> Step:
    """(h, x) -> (h, h), or ((h, c), x) -> ((h, c), h)."""

    def step(carry: Any, x: Tensor) -> tuple[Any, Tensor]:
        after = cell(x, carry)
        return after, after[0] if isinstance(after, tuple) else after

    step.__qualname__ = type(cell).__name__
    return step


def scan(cell: nn.RNNCellBase, init: Any, xs: Leaves, algorithm: str) -> tuple[Any, Tensor] | None:
    """The last carry and h of all steps, by fused kernels; None where they do not fit.

    Args:
        init: h (B, H), or (h, c). xs: x (T, B, I).
    """
    kind = type(cell)
    name = _name_of(cell)
    if name is None or cell._forward_hooks or cell._forward_pre_hooks:
        return None
    state = tuple(init) if isinstance(init, tuple | list) else (init,)
    if len(xs) != 1 or xs[0].dim() != 3 or len(state) != 1 + (kind is nn.LSTMCell):
        return None
    weights: list[Any] = [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]
    tensors = [t for t in (*xs, *state, *weights) if t is not None]
    x, B, H = xs[0], xs[0].shape[1], cell.hidden_size
    fits = x.shape[2] == cell.input_size and all(tuple(s.shape) == (B, H) for s in state)
    same = all(t.dtype == x.dtype and t.device == x.device for t in tensors)
    if not fits or not same or not x.is_floating_point() or missing_recurrent_kernels(x.device):
        return None
    if x.dtype.itemsize not in (4, 8) or unsupported_transform():
        return None
    h0, c0 = (*state, None)[:2]
    how = "linear" if algorithm == "speculative" else algorithm
    h, h_n, c_n = ops.run_layer(name, ops.Operands(x, h0, c0, *weights), algorithm=how)
    return (h_n, c_n) if kind is nn.LSTMCell else h_n, h


def _name_of(cell: nn.RNNCellBase) -> str | None:
    """A name of `CELLS`; None for a class of the user's own."""
    if type(cell) is nn.RNNCell:
        return f"rnn_{cell.nonlinearity}"
    return "gru" if type(cell) is nn.GRUCell else "lstm" if type(cell) is nn.LSTMCell else None

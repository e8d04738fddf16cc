"""nn.RNNCell, nn.GRUCell and nn.LSTMCell as steps: fused kernels over all time steps."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from bppsa_lightning import ops
from bppsa_lightning._context import unsupported_transform
from bppsa_lightning._library import missing_recurrent_kernels
from bppsa_lightning.steps import checkpoints
from bppsa_lightning.steps.engine import Step
from bppsa_lightning.windows import Engine, checkpointed, differentiated
from bppsa_lightning.windows.cut import Leaves

# Steps of a call by which is measured what is kept.
_MEASURED = 32


def as_step(cell: nn.RNNCellBase) -> Step:
    """(h, x) -> (h, h), or ((h, c), x) -> ((h, c), h)."""

    def step(carry: Any, x: Tensor) -> tuple[Any, Tensor]:
        after = cell(x, carry)
        return after, after[0] if isinstance(after, tuple) else after

    step.__qualname__ = type(cell).__name__
    step.__wrapped__ = cell  # type: ignore[attr-defined]
    return step


class _Fused(Engine):
    """Fused kernels over some steps.

    Args:
        name: of `CELLS`. weights: w_ih, w_hh, b_ih, b_hh, or None.
    """

    changes_state = False

    def __init__(self, name: str, weights: Sequence[Tensor | None], algorithm: str) -> None:
        self.name, self.weights, self.algorithm = name, weights, algorithm
        self.tensors = [w for w in weights if w is not None and w.requires_grad]
        self.constants = [w for w in weights if w is not None and not w.requires_grad]

    def __call__(self, xs: Leaves, state: Leaves) -> tuple[list[Tensor], list[Tensor]]:
        h0, c0 = (*state, None)[:2]
        operands = ops.Operands(xs[0], h0, c0, *self.weights)  # type: ignore[arg-type]
        h, *last = ops.run_layer(self.name, operands, algorithm=self.algorithm)
        return [h], last[: len(state)]

    def with_own_tensors(self) -> "_Fused":
        leaves = [
            None if w is None else w.detach().requires_grad_(w.requires_grad) for w in self.weights
        ]
        return _Fused(self.name, leaves, self.algorithm)


def scan(
    cell: nn.RNNCellBase, init: Any, xs: Leaves, algorithm: str, budget: int | None
) -> tuple[Any, Tensor] | None:
    """The last carry and h of all steps, by fused kernels; None where they do not fit.

    Args:
        init: h (B, H), or (h, c). xs: x (T, B, I).
        budget: bytes that may be kept for a backward; None for any number.
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
    engine = _Fused(name, weights, "linear" if algorithm == "speculative" else algorithm)
    steps = 0
    if budget is not None and differentiated(engine, xs, state):
        kept = checkpoints.kept_of(engine, xs, state, _MEASURED)
        steps = checkpoints.choose(kept, checkpoints.whole(len(x)), budget).steps
    [h], last = checkpointed(engine, xs, state, steps) if steps else engine(xs, state)
    return tuple(last) if kind is nn.LSTMCell else last[0], h


def _name_of(cell: nn.RNNCellBase) -> str | None:
    """A name of `CELLS`; None for a class of the user's own."""
    if type(cell) is nn.RNNCell:
        return f"rnn_{cell.nonlinearity}"
    return "gru" if type(cell) is nn.GRUCell else "lstm" if type(cell) is nn.LSTMCell else None

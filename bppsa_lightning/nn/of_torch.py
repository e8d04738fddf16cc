"""What RNN, GRU and LSTM of `bl.nn` share: one operator walks a direction of a layer."""

from torch import Tensor
from torch.nn.functional import linear

from bppsa_lightning.nn.base import Recurrent, Weights
from bppsa_lightning.recurrent import stack
from bppsa_lightning.recurrent.packed import Tensors

# What a step of a kernel costs beside its rows, in rows.
ROWS_OF_A_KERNEL = 4


class OfTorch(Recurrent):
    """A cell of PyTorch's. With zoneout, or recurrent dropout in training, `bl.scan` walks it."""

    @property
    def marks(self) -> bool:
        return bool(self.zoneout or (self.training and self.recurrent_dropout))

    @property
    def step_rows(self) -> int:
        return super().step_rows if self.marks else ROWS_OF_A_KERNEL

    def project(self, x: Tensor, w: Weights, place: int) -> Tensor:
        return super().project(x, w, place) if self.marks else x

    def walk(
        self, x: Tensor, states: Tensors, w: Weights, reverse: bool, marked: bool
    ) -> tuple[Tensor, ...]:
        if self.marks:
            return super().walk(x, states, w, reverse, marked)
        return stack.run_direction(self._config, x, states, list(w.values()), reverse, "auto")


def from_state(w: Weights, entering: Tensor) -> Tensor:
    """W_hh h + b_hh."""
    return linear(entering, w["weight_hh"], w.get("bias_hh"))

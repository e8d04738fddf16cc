"""Cells of which one operator walks a direction of a layer, from the input itself."""

from torch import Tensor

from bppsa_lightning.nn.base import Recurrent, Weights
from bppsa_lightning.recurrent.packed import Tensors

# What a step of a kernel costs beside its rows, in rows.
ROWS_OF_A_KERNEL = 4


class Operated(Recurrent):
    """With zoneout, or recurrent dropout in training, `bl.scan` walks it all the same."""

    def operate(self, x: Tensor, states: Tensors, w: Weights, reverse: bool) -> tuple[Tensor, ...]:
        """One direction of a layer, of its input x (T, B, I): output (T, B, P), h_n, c_n."""
        raise NotImplementedError

    @property
    def marks(self) -> bool:
        return self.is_noisy

    @property
    def step_rows(self) -> int:
        return super().step_rows if self.is_noisy else ROWS_OF_A_KERNEL

    def project(self, x: Tensor, w: Weights, place: int) -> Tensor:
        return super().project(x, w, place) if self.is_noisy else x

    def walk(
        self, x: Tensor, states: Tensors, w: Weights, reverse: bool, marked: bool
    ) -> tuple[Tensor, ...]:
        if self.is_noisy:
            return super().walk(x, states, w, reverse, marked)
        return self.operate(x, states, w, reverse)

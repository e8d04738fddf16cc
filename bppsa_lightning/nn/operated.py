"""Cells of which one operator walks a direction of a layer."""

from torch import Tensor

from bppsa_lightning.nn.base import ROWS_OF_A_KERNEL, Recurrent, Weights
from bppsa_lightning.recurrent.packed import Tensors

# Far beyond any sum, and within float32's range.
_FAR = 1e18


class _Operated(Recurrent):
    """With zoneout, or recurrent dropout in training, as other cells (`Recurrent.walk`)."""

    def operate(self, x: Tensor, states: Tensors, w: Weights, reverse: bool) -> tuple[Tensor, ...]:
        """One direction of a layer: output (T, B, P), h_n, c_n.

        Args:
            x: (T, B, I), or of what `project` makes of that.
        """
        raise NotImplementedError

    @property
    def step_rows(self) -> int:
        return super().step_rows if self.is_noisy else ROWS_OF_A_KERNEL


class OfInput(_Operated):
    """By an operator that takes the input, W_ih, and all other weights."""

    @property
    def marks(self) -> bool:
        return self.is_noisy

    def takes_input(self, x: Tensor, w: Weights) -> bool:
        return not self.is_noisy or super().takes_input(x, w)

    def walk(
        self, x: Tensor, states: Tensors, w: Weights, reverse: bool, marked: bool
    ) -> tuple[Tensor, ...]:
        if self.is_noisy:
            return super().walk(x, states, w, reverse, marked)
        return self.operate(x, states, w, reverse)


class OfSums(_Operated):
    """By an operator that takes what `project` makes of the input: no gradient passes at -inf."""

    def takes_input(self, x: Tensor, w: Weights) -> bool:
        return self.is_noisy and super().takes_input(x, w)

    def walk(
        self, x: Tensor, states: Tensors, w: Weights, reverse: bool, marked: bool
    ) -> tuple[Tensor, ...]:
        if self.is_noisy:
            return super().walk(x, states, w, reverse, marked)
        if marked:  # in padding units are dead: nothing grows there, and no gradient comes back
            x = x[..., :-1] - _FAR * x[..., -1:]
        return self.operate(x, states, w, reverse)

"""What RNN, GRU and LSTM of `bl.nn` share: one operator walks a direction of a layer."""

from typing import Any, TypeVar

from torch import Tensor, nn
from torch.nn.functional import linear

from bppsa_lightning.nn.base import Recurrent, Weights
from bppsa_lightning.recurrent import stack
from bppsa_lightning.recurrent.packed import Tensors

# What a step of a kernel costs beside its rows, in rows.
ROWS_OF_A_KERNEL = 4

Layer = TypeVar("Layer", bound="OfTorch")


class OfTorch(Recurrent):
    """A cell of PyTorch's. With zoneout, or recurrent dropout in training, `bl.scan` walks it."""

    @classmethod
    def from_torch(cls: type[Layer], layer: nn.RNNBase, **options: Any) -> Layer:
        """The same layer, with the very parameters of PyTorch's: an optimizer keeps its hold.

        Args:
            layer: of the class of torch.nn with this name.
            options: reset_to, recurrent_dropout, zoneout.

        Raises:
            TypeError: `layer` is another module.
        """
        kind = getattr(nn, cls.__name__, None)
        if kind is None or not isinstance(layer, kind):
            raise TypeError(
                f"layer: found {type(layer).__name__}, wanted a torch.nn.{cls.__name__}"
            )
        names = ["input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout"]
        names += ["bidirectional"] + ["proj_size"] * cls.projects
        names += ["nonlinearity"] * hasattr(layer, "nonlinearity")
        made = cls(**{name: getattr(layer, name) for name in names}, device="meta", **options)
        for name, parameter in layer.named_parameters():
            made.register_parameter(name, parameter)
        return made.train(layer.training)

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

"""What RNN, GRU and LSTM of `bl.nn` share: they are PyTorch's layers."""

from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn
from torch.nn.functional import linear

from bppsa_lightning import ops
from bppsa_lightning.nn import by_rows
from bppsa_lightning.nn.base import Weights
from bppsa_lightning.nn.operated import OfInput
from bppsa_lightning.recurrent import stack
from bppsa_lightning.recurrent.packed import Tensors

Layer = TypeVar("Layer", bound="OfTorch")


class OfTorch(OfInput):
    """A cell of PyTorch's."""

    walks_rows: ClassVar[bool] = True

    @classmethod
    def from_torch(cls: type[Layer], layer: nn.RNNBase, **options: Any) -> Layer:
        """The same layer, with the very parameters of PyTorch's: an optimizer keeps its hold.

        Args:
            layer: of the class of torch.nn with this name.
            options: reset_to, recurrent_dropout, zoneout.

        Raises:
            TypeError: `layer` is another module.
            ValueError: a weight of it is computed (pruned, parametrized).
        """
        kind = getattr(nn, cls.__name__, None)
        if kind is None or not isinstance(layer, kind):
            raise TypeError(
                f"layer: found {type(layer).__name__}, wanted a torch.nn.{cls.__name__}"
            )
        return _moved(layer, cls, options)

    def to_torch(self) -> nn.RNNBase:
        """The same layer of torch.nn, with the very parameters of this one.

        Raises:
            ValueError: zoneout or, in training, recurrent dropout, which PyTorch's layers lack; or
                a weight is computed (pruned, parametrized).
        """
        kind = getattr(nn, self._config.cell.name.partition("_")[0].upper())
        for name in ("zoneout", "recurrent_dropout") if self.is_noisy else ():
            if p := getattr(self, name):
                mode = "training" if self.training else "evaluation"
                raise ValueError(
                    f"{name}: found {p} in {mode}, wanted 0, as torch.nn.{kind.__name__} has none"
                )
        made: nn.RNNBase = _moved(self, kind, {})
        return made

    def __prepare_scriptable__(self) -> nn.RNNBase:
        return self.to_torch()

    def for_rows(self, w: Weights) -> by_rows.Weights | None:
        if "weight_hr" in w:
            return None
        return by_rows.Weights(
            self._config.cell.name, w["weight_hh"], w.get("bias_hh"),
            w_ih=w["weight_ih"], b_ih=w.get("bias_ih"),
        )  # fmt: skip

    def operate(self, x: Tensor, states: Tensors, w: Weights, reverse: bool) -> tuple[Tensor, ...]:
        return stack.run_direction(self._config, x, states, list(w.values()), reverse, "auto")

    @property
    def row_work(self) -> int:
        if self.is_noisy:
            return 0
        shown = self.proj_size or self.hidden_size
        return self._config.cell.row_work(self.input_size, self.hidden_size, shown)

    def walk_ragged(
        self, x: Tensor, states: Tensors, w: Weights, ragged: ops.Ragged
    ) -> tuple[Tensor, ...]:
        weights = list(w.values())
        return stack.run_direction(self._config, x, states, weights, False, "auto", ragged=ragged)


def _moved(layer: nn.Module, to: type[Any], options: dict[str, Any]) -> Any:
    """A layer of another class with the parameters of this one.

    Raises:
        ValueError: a weight is computed (pruned, parametrized), and no parameter of this layer.
    """
    names = ["input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout"]
    names += ["bidirectional"] + ["proj_size"] * (to.__name__ == "LSTM")
    names += ["nonlinearity"] * hasattr(layer, "nonlinearity")
    made = to(**{name: getattr(layer, name) for name in names}, device="meta", **options)
    for name in list(made._parameters):  # also of weights that are tied to others
        parameter = layer._parameters.get(name)
        if parameter is None:
            raise ValueError(
                f"{name}: found a weight that is computed from others, wanted a parameter; make it "
                "one first, by torch.nn.utils.prune.remove or parametrize.remove_parametrizations"
            )
        setattr(made, name, parameter)
    return made.train(layer.training)


def from_state(w: Weights, entering: Tensor) -> Tensor:
    """W_hh h + b_hh."""
    return linear(entering, w["weight_hh"], w.get("bias_hh"))

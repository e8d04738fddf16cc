"""A pruned layer whose parameter is its surviving weights, nothing else.

With the dense ``weight_orig`` a step still moves every weight: a gradient full of zeros is
written, and the optimizer reads and writes it with the weight and its own state. Compact, all of
these are as long as the weights that survive. The module's ``weight_orig`` is then (nnz,) and takes
the dense one's place in the optimizers; the module's ``state_dict`` and ``load_state_dict`` speak
dense.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from bppsa_lightning import ops
from bppsa_lightning.ops._checks import FLOATS
from bppsa_lightning.pruned.find import sparse_layers
from bppsa_lightning.pruned.layer import SparseLayer

_NAME = "weight_orig"
_WORTH = 0.4  # density; above, most layers run dense, and take and put their values
# They treat each number by itself, so that the shape of a parameter is nothing to them. A subclass
# may do otherwise.
_ELEMENTWISE = {
    optim.SGD, optim.ASGD, optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax,
    optim.Adagrad, optim.Adadelta, optim.RMSprop, optim.Rprop,
}  # fmt: skip


class CompactWeight:
    """Compact from its construction until `expand`.

    A deep copy or a pickle of the module has one of its own, of which no optimizer knows.

    Args:
        layer: attached, its ``weight_orig`` dense.
        optimizers: that may hold the weight; their state moves with it. What a state has for
            weights that do not survive is dropped: it could not change the network any more.

    Attributes:
        layer: as given.
        dense: the original parameter; `expand` puts it back.
        values: (nnz,), the parameter in its place.
    """

    def __init__(self, layer: SparseLayer, optimizers: Iterable[Optimizer] = ()) -> None:
        self.layer = layer
        self.pattern = layer.pattern
        self.dense: nn.Parameter = layer.module._parameters[_NAME]
        self.values = nn.Parameter(self.compacted(self.dense), self.dense.requires_grad)
        layer.module._parameters[_NAME] = self.values
        layer.compact = self
        self._optimizers = list(optimizers)
        swap_parameter(self._optimizers, self.dense, self.values, self.compacted)
        self.dense.grad = None
        self._hooks = (
            # torch writes an attribute on this one, which a bound method does not take.
            layer.module.register_state_dict_post_hook(partial(self._on_state_dict)),
            layer.module.register_load_state_dict_pre_hook(self._on_load_state_dict),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_optimizers": []}

    @staticmethod
    def is_compactable(layer: SparseLayer) -> bool:
        """Whether the operators take a layer's weight, it is dense so far, and few survive."""
        weight = layer.module._parameters[_NAME]
        known = weight.dtype in FLOATS and weight.device.type == "cpu"
        few = layer.pattern.density <= _WORTH
        return known and few and layer.binary and weight.shape == layer.module.weight_mask.shape

    @staticmethod
    def held_by(layer: SparseLayer, model: nn.Module, optimizers: Iterable[Optimizer]) -> str:
        """Who needs the dense parameter as it is; empty if nobody does.

        Args:
            layer: attached, its ``weight_orig`` dense.
            model: all whose modules might share the parameter.
            optimizers: all that are known and might hold it.
        """
        weight = layer.module._parameters[_NAME]
        if sum(weight is p for m in model.modules() for p in m._parameters.values()) > 1:
            return "another module has the same weight"
        if weight._backward_hooks or getattr(weight, "_post_accumulate_grad_hooks", None):
            return "its weight has a hook"
        holders = [o for o in optimizers if any(p is weight for p in _parameters_of(o))]
        for optimizer in holders:
            if type(optimizer) not in _ELEMENTWISE:
                return f"{type(optimizer).__name__} may depend on a weight's shape"
        if weight.requires_grad and not holders:  # it may be trained by one that nobody knows
            return "no optimizer of the Trainer holds it"
        return ""

    def compacted(self, dense: Tensor) -> Tensor:
        """The surviving (nnz,) of a tensor of the weight's shape."""
        return ops.surviving(dense.detach(), self.pattern)

    def expanded(self, values: Tensor) -> Tensor:
        """A tensor of the weight's shape with these survivors (nnz,), zeros elsewhere."""
        return self._put(values, values.new_zeros(self.dense.shape))

    @torch.no_grad()
    def expand(self, optimizers: Iterable[Optimizer] = ()) -> None:
        """Puts the original parameter back, with the values of now, frozen if they are.

        Args:
            optimizers: that may hold the weight, beside those it was made with.
        """
        if self.layer.compact is not self:
            return
        self.layer.compact = None
        for hook in self._hooks:
            hook.remove()
        values = self._values_in(self.layer.module)
        if values is None:
            return
        self.dense.data = self.dense.data.to(values)  # a copy may have been moved
        self._put(values, self.dense)
        self.dense.requires_grad_(values.requires_grad)
        self.layer.module._parameters[_NAME] = self.dense
        swap_parameter((*self._optimizers, *optimizers), values, self.dense, self.expanded)

    def _values_in(self, module: nn.Module) -> nn.Parameter | None:
        """The values that are a module's weight; None if its mask was made permanent since."""
        found = module._parameters.get(_NAME)
        return None if found is None or found.shape == self.dense.shape else found

    def _put(self, values: Tensor, dense: Tensor) -> Tensor:
        """Writes values (nnz,) to their places in a tensor of the weight's shape."""
        dense.view(-1).index_copy_(0, self.pattern.index.to(dense.device), values.detach())
        return dense

    def _on_state_dict(
        self, module: nn.Module, state_dict: dict[str, Any], prefix: str, _: Any
    ) -> None:
        values = self._values_in(module)
        if values is not None:
            dense = self.dense.detach().to(values.device, values.dtype, copy=True)
            state_dict[prefix + _NAME] = self._put(values, dense)

    def _on_load_state_dict(
        self, module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any
    ) -> None:
        if self._values_in(module) is None:
            return
        mask = state_dict.get(f"{prefix}weight_mask")
        own = self.layer.module.weight_mask
        if mask is not None and not torch.equal(mask.to(own.dtype), own):
            raise RuntimeError(
                f"{prefix}weight_mask: found another mask than the one that this layer is being "
                "retrained with; load before the training starts, or pass compact=False"
            )
        dense = state_dict.get(prefix + _NAME)
        if dense is not None and dense.shape == self.dense.shape:
            with torch.no_grad():
                self.dense.copy_(dense)
            state_dict[prefix + _NAME] = self.compacted(self.dense)


def expand_copies(model: nn.Module, optimizers: Iterable[Optimizer] = ()) -> None:
    """Expands the compact weights of copies that a model keeps of its layers."""
    for layer in sparse_layers(model).values():
        if layer.compact is not None:
            layer.compact.expand(optimizers)


def swap_parameter(
    optimizers: Iterable[Optimizer],
    old: nn.Parameter,
    new: nn.Parameter,
    convert: Callable[[Tensor], Tensor],
) -> None:
    """Puts a parameter in another's place, its gradient and each optimizer's state converted."""
    new.grad = None if old.grad is None else convert(old.grad)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"] = [new if p is old else p for p in group["params"]]
        if old in optimizer.state:
            optimizer.state[new] = converted(optimizer.state.pop(old), old, convert)


def converted(
    state: dict[str, Any], old: Tensor, convert: Callable[[Tensor], Tensor]
) -> dict[str, Any]:
    """One parameter's optimizer state, what has the parameter's shape converted."""
    return {
        key: convert(value) if isinstance(value, Tensor) and value.shape == old.shape else value
        for key, value in state.items()
    }


def expanded_state(
    optimizer: Optimizer, state_dict: dict[str, Any], weights: Iterable[CompactWeight]
) -> dict[str, Any]:
    """An optimizer's `state_dict` as if no weight were compact; the given one is left as it is."""
    compact = {id(weight.values): weight for weight in weights}
    state = dict(state_dict["state"])
    for index, parameter in enumerate(_parameters_of(optimizer)):
        weight = compact.get(id(parameter))
        if weight is not None and index in state:
            state[index] = converted(state[index], weight.values, weight.expanded)
    return {**state_dict, "state": state}


def _parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """In the order that `Optimizer.state_dict` numbers them."""
    return (p for group in optimizer.param_groups for p in group["params"])

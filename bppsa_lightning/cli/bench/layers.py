"""Each attached layer by itself, on the input and the gradients that it has in the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bppsa_lightning._replacement import Replacement, replacements
from bppsa_lightning.chain import Chain
from bppsa_lightning.cli.bench import tensors
from bppsa_lightning.cli.bench.clock import Seconds, timed
from bppsa_lightning.cli.bench.step import SEED
from bppsa_lightning.explain import ChainRow, PrunedRow
from bppsa_lightning.pruned import SparseLayer


@dataclass
class Recorded:
    """The first call of a layer in a step of the model.

    Attributes:
        args, kwargs: what it was given, detached.
        grads: of each tensor in its output, None where no gradient came.
        calls: how many there were.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    grads: list[Tensor | None] = field(default_factory=list)
    calls: int = 0


def attached(model: nn.Module) -> dict[str, Replacement]:
    """The chains and pruned layers of a model, by name."""
    found = replacements(model, Replacement)
    return {name: r for name, r in found.items() if isinstance(r, Chain | SparseLayer)}


def record(model: nn.Module, names: list[str], step: Callable[[], object]) -> dict[str, Recorded]:
    """What the layers of these names get in one step of a model that is not attached."""
    found = {name: Recorded() for name in names}
    handles: list[Any] = []
    for name in names:
        module = model.get_submodule(name)
        handles += [
            module.register_forward_pre_hook(_before(found[name]), with_kwargs=True),
            module.register_forward_hook(_after(found[name])),
        ]
    try:
        step()
    finally:
        for handle in handles:
            handle.remove()
    return found


def _before(recorded: Recorded) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        recorded.calls += 1
        if recorded.calls == 1:
            recorded.args, recorded.kwargs = tensors.fresh(args), tensors.fresh(kwargs)

    return hook


def _after(recorded: Recorded) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if recorded.calls > 1:
            return
        for place, tensor in enumerate(tensors.within(output)):
            recorded.grads.append(None)
            if tensor.requires_grad:
                tensor.register_hook(_keeps(recorded.grads, place))

    return hook


def _keeps(grads: list[Tensor | None], place: int) -> Callable[[Tensor], None]:
    def hook(grad: Tensor) -> None:
        grads[place] = grad.detach().clone()

    return hook


class LayerStep:
    """Forward and backward of one layer as it was recorded."""

    def __init__(self, module: nn.Module, recorded: Recorded, device: torch.device) -> None:
        self._module, self._recorded, self._device = module, recorded, device
        self._given: Any = None
        self._found: list[Tensor] = []

    def __call__(self) -> Seconds:
        """Runs one, without gradients of an earlier one."""
        self._module.zero_grad()
        self._found = []
        self._given = tensors.fresh((self._recorded.args, self._recorded.kwargs))
        torch.manual_seed(SEED)
        return timed(self._device, self._forward, self._backward)

    def _forward(self) -> None:
        args, kwargs = self._given
        self._found = list(tensors.within(self._module(*args, **kwargs)))

    def _backward(self) -> None:
        pairs = zip(self._found, self._recorded.grads, strict=True)
        wanted = [(tensor, grad) for tensor, grad in pairs if grad is not None]
        if wanted:
            outputs, grads = zip(*wanted, strict=True)
            torch.autograd.backward(outputs, grads)


def described(name: str, layer: Replacement) -> dict[str, str]:
    """What is said of a layer: {"name", "type", "size", "runs on", "how"}."""
    kernels = "PyTorch" if layer.reason else "bppsa"
    if isinstance(layer, SparseLayer):
        pruned = PrunedRow.of(name, layer)
        kind, size, how = f"pruned {pruned.type}", f"{pruned.weights} weights", pruned.path
    else:
        assert isinstance(layer, Chain)
        chain = ChainRow.of(name, layer)
        kind, how = chain.type, chain.backward
        size = f"T {chain.seq_len}, B {chain.batch}, H {chain.hidden}" if layer.plan else "?"
    return {
        "name": name or "(itself)",
        "type": kind,
        "size": size,
        "runs on": kernels,
        "how": layer.reason or how,
    }

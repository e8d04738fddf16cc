"""The calls of accelerated layers in one training step: what went in, and which gradient came back.

While a step is recorded, the step computes what it always does: the layers of the model run, and
tensors that they get and give are kept until the step has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from functools import cache
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves, tree_map_only

from bppsa_lightning._context import autocast_as_now
from bppsa_lightning._replacement import Replacement, replacement_of
from bppsa_lightning.chain import Chain
from bppsa_lightning.pruned import LayerStack, SparseLayer, sparse_layers
from bppsa_lightning.recurrent import RecurrentChain

_PIECES = 16
_LEAST_STEPS = 64


class Call:
    """One forward of an accelerated layer, and the gradients of its outputs.

    Attributes:
        replacement: of the layer.
        grads: by the place of a tensor among the outputs.
        device: of the first input.
        autocast: makes contexts with the autocast of the call.
    """

    def __init__(self, replacement: Replacement, args: tuple, kwargs: dict[str, Any]) -> None:
        self.replacement = replacement
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        self._wants = [x.requires_grad for x in inputs]
        self._inputs = tree_map_only(Tensor, lambda x: x.detach(), (args, kwargs))
        self._versions = self._counted()
        self.grads: dict[int, Tensor] = {}
        self.device = inputs[0].device if inputs else torch.device("cpu")
        self.autocast = autocast_as_now(self.device.type)

    def watch(self, output: Any) -> None:
        """Keeps the gradients of an output's tensors when they come."""
        for place, tensor in enumerate(tensors_of(output)):
            if tensor.requires_grad:
                tensor.register_hook(lambda grad, place=place: self._keep(place, grad))

    def _keep(self, place: int, grad: Tensor | None) -> None:
        if grad is not None:  # as autograd calls the hooks of an output that nobody used
            self.grads[place] = grad.detach()

    def _counted(self) -> list[int]:
        found = [x for x in tree_leaves(self._inputs) if isinstance(x, Tensor)]
        return [-1 if x.is_inference() else x._version for x in found]

    @property
    def intact(self) -> bool:
        """Whether nobody has changed an input in place since the call."""
        return self._counted() == self._versions

    def inputs(self) -> tuple[tuple, dict[str, Any], list[Tensor]]:
        """Arguments for one more such call; and those that want a gradient."""
        wants = iter(self._wants)
        inputs: list[Tensor] = []

        def fresh(x: Tensor) -> Tensor:
            x = x.detach()
            if next(wants):
                inputs.append(x.requires_grad_())
            return x

        args, kwargs = tree_map_only(Tensor, fresh, self._inputs)
        return args, kwargs, inputs

    def piece(self) -> Call | None:
        """The same over a 16th of the steps; None where there are few, or no plain sequence."""
        chain, x = self.replacement, (tree_leaves(self._inputs) or [None])[0]
        if not isinstance(chain, RecurrentChain) or not self._inputs[0]:
            return None
        if isinstance(self._inputs[0][0], PackedSequence) or x.dim() != 3:
            return None
        time = int(chain.module.batch_first)
        steps = x.shape[time]
        if steps < _LEAST_STEPS:
            return None
        args, kwargs = self._inputs
        short = x.narrow(time, 0, steps // _PIECES)
        call = Call(chain, (short, *args[1:]), kwargs)
        call._wants = self._wants
        call.grads = dict(self.grads)
        if 0 in call.grads:
            call.grads[0] = call.grads[0].narrow(time, 0, steps // _PIECES)
        return call


PIECES = _PIECES


def tensors_of(output: Any) -> list[Tensor]:
    """The tensors of what a layer returns, in order."""
    return [x for x in tree_leaves(output) if isinstance(x, Tensor)]


class Recording:
    """Records the calls of layers, from its making until `stop`.

    Args:
        replacements: see `recordable`.

    Attributes:
        calls: in order, those that were computed here, with gradients to come.
    """

    def __init__(self, replacements: Collection[Replacement]) -> None:
        self.calls: list[Call] = []
        self._replacements = {r: type(r) for r in replacements}
        for replacement, kind in self._replacements.items():
            _RECORDED[replacement] = self
            replacement.__class__ = _recorded(cast(Hashable, kind))

    def stop(self) -> None:
        for replacement, kind in self._replacements.items():
            replacement.__class__ = kind
            _RECORDED.pop(replacement, None)
        self._replacements = {}


_RECORDED: WeakKeyDictionary[Replacement, Recording] = WeakKeyDictionary()


@cache
def _recorded(kind: Any) -> Any:
    """A class of replacements that tell the recording of their calls."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        recording = _RECORDED.get(self)
        if recording is None or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return kind.__call__(self, *args, **kwargs)
        record, before = Call(self, args, kwargs), accelerated_calls(self)
        output = kind.__call__(self, *args, **kwargs)
        if accelerated_calls(self) > before:
            record.watch(output)
            recording.calls.append(record)
        return output

    def reduce(self: Any, protocol: Any) -> Any:
        """A copy, or a pickle, is of the class that it had, and is not recorded."""
        _, (_, *arguments), *rest = kind.__reduce_ex__(self, protocol)
        return _made, (kind, *arguments), *rest

    methods = {"__call__": call, "__reduce_ex__": reduce}
    return type(kind.__name__, (kind,), {"__module__": kind.__module__, **methods})


def _made(kind: Any, *arguments: Any) -> Any:
    return kind.__new__(kind, *arguments)


def accelerated_calls(replacement: Replacement) -> int:
    """How many calls were computed here so far; of a stack, by any of its layers."""
    if isinstance(replacement, LayerStack):
        return sum(layer.calls for layer in sparse_layers(replacement.module).values())
    return replacement.calls


def recordable(module: nn.Module, refused: Collection[nn.Module] = ()) -> list[Replacement]:
    """The replacements in a module whose calls can be run again: the outermost, each once.

    Those whose modules are in `refused` are left out, what is inside of them is not.
    """
    found: list[Replacement] = []
    inside: set[nn.Module] = set()
    for child in module.modules():
        replacement = replacement_of(child, Replacement)
        if child in inside or child in refused or not _stands_alone(replacement):
            continue
        assert replacement is not None
        found.append(replacement)
        inside |= set(child.modules())
    return found


def _stands_alone(replacement: Replacement | None) -> bool:
    """Whether a call is one layer's work, in this process."""
    if isinstance(replacement, RecurrentChain):
        return replacement.divided is None
    return isinstance(replacement, Chain | LayerStack | SparseLayer)

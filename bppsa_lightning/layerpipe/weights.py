"""The weights that the backward of a mini-batch sees, while the optimizer goes on.

Autograd saves a layer's weights for its backward, and refuses to run it once they were changed in
place. Here it saves where they were found and as which version, and gets, when it asks, the stashed
copy of that version ("stash", PipeDream's), or what a moving average of the updates makes of the
newest ("average", LayerPipe2's). Forwards always use the parameters themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

VERSIONS = ("stash", "average")


class _Saved(NamedTuple):
    """A view of a parameter, as it was saved; `offset` from where the parameter begins."""

    parameter: nn.Parameter
    version: int
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class Weights(ABC):
    """The versions of a stage's parameters.

    Args:
        parameters: the stage's.

    Attributes:
        version: the number of updates by now.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self._by_storage: dict[int, list[nn.Parameter]] = {}
        self.version = 0
        self.locate()

    def locate(self) -> None:
        """Looks where the parameters are: their ``.data`` may have been exchanged since."""
        self._by_storage = {}
        for p in self.parameters:  # several may lie in one storage
            self._by_storage.setdefault(p.untyped_storage()._cdata, []).append(p)

    @abstractmethod
    def of(self, parameter: nn.Parameter, version: int) -> Tensor:
        """A parameter as it was after `version` updates, or what is taken for it."""

    @abstractmethod
    def before_update(self, in_flight: Collection[int]) -> None:
        """To be called before the optimizer changes the parameters.

        Args:
            in_flight: the versions that a backward will still ask for.
        """

    def after_update(self, in_flight: Collection[int]) -> None:
        """To be called after the optimizer has changed the parameters; argument as above."""
        self.version += 1

    def saving(self) -> AbstractContextManager[Any]:
        """Forwards in here save their weights as what they are now."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def used(self, version: int, layer: nn.Module) -> AbstractContextManager[Any]:
        """Backwards in here that walk a layer again (checkpoints) do so with an older version."""
        return nullcontext()

    def _pack(self, tensor: Tensor) -> Tensor | _Saved:
        for parameter in self._by_storage.get(tensor.untyped_storage()._cdata, ()):
            offset = int(tensor.storage_offset() - parameter.storage_offset())
            if offset >= 0 and offset + _extent(tensor) <= _extent(parameter):
                where = tensor.size(), tensor.stride(), offset
                return _Saved(parameter, self.version, *where)
        return tensor

    def _unpack(self, saved: Tensor | _Saved) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        found = self.of(saved.parameter, saved.version)
        offset = int(found.storage_offset()) + saved.offset
        return found.as_strided(saved.size, saved.stride, offset)


class Stash(Weights):
    """Every version that is still needed, as a copy."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters)
        self._copies: dict[int, dict[int, Tensor]] = {}

    def of(self, parameter: nn.Parameter, version: int) -> Tensor:
        if version == self.version:
            return parameter.detach()
        return self._copies[version][id(parameter)]

    @contextmanager
    def used(self, version: int, layer: nn.Module) -> Iterator[None]:
        copies = {} if version == self.version else self._copies[version]
        newest = [(p, p.data) for p in layer.parameters() if id(p) in copies]
        for parameter, _ in newest:
            parameter.data = copies[id(parameter)]
        try:
            yield
        finally:
            for parameter, data in newest:
                parameter.data = data

    def before_update(self, in_flight: Collection[int]) -> None:
        if self.version in in_flight:
            self._copies[self.version] = {id(p): p.detach().clone() for p in self.parameters}

    def after_update(self, in_flight: Collection[int]) -> None:
        super().after_update(in_flight)
        self._copies = {v: kept for v, kept in self._copies.items() if v in in_flight}


class Average(Weights):
    """No copies but a moving average of the updates, one number for each weight.

    The formula is that of `reference.MovingAverage`.

    Args:
        parameters: the stage's.
        delay: d of the stage, in updates.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], delay: int) -> None:
        super().__init__(parameters)
        self._beta = (delay - 1) / (delay + 1) if delay else 0.0
        self._delay = delay
        self._mean = {id(p): torch.zeros_like(p) for p in self.parameters if delay}
        self._before: dict[int, Tensor] = {}

    def of(self, parameter: nn.Parameter, version: int) -> Tensor:
        back = self.version - version
        now = parameter.detach()
        if not back:
            return now
        scale = back / (1 - self._beta**self.version)
        return now - scale * self._mean[id(parameter)]

    def before_update(self, in_flight: Collection[int]) -> None:
        if self._delay:
            self._before = {id(p): p.detach().clone() for p in self.parameters}

    def after_update(self, in_flight: Collection[int]) -> None:
        super().after_update(in_flight)
        for parameter in self.parameters:
            if id(parameter) in self._before:
                change = parameter.detach() - self._before.pop(id(parameter))
                self._mean[id(parameter)].lerp_(change, 1 - self._beta)


def _extent(t: Tensor) -> int:
    """Numbers from its first to its last in memory."""
    if not t.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))


def weights_of(versions: str, parameters: Iterable[nn.Parameter], delay: int) -> Weights:
    """What `versions` of a `LayerPipeStrategy` names."""
    return Stash(parameters) if versions == "stash" else Average(parameters, delay)

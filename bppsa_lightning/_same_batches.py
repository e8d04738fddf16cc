"""The same mini-batches in every process: random numbers of the loaders, apart from the model's.

Each process of a pipeline reads the whole data and has to meet the same batches. What shuffles and
augments draws from torch's, Python's and NumPy's global generators, from which the stages draw
differently (dropout). So loaders, and the hooks that move a batch to its device, run with
generators of their own, which start as those of rank 0. What has been drawn before, as a
`random_split`, may still differ: a sample of each batch's numbers shows it.
(The processes of a chain draw the same everywhere, and begin with the same generators.)
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

SAMPLED = 64  # numbers of a tensor
AT_AN_END = 8  # tensors of a batch, the first and the last, that are looked at; all are counted


def generators(device: torch.device | None = None) -> dict[str, Any]:
    """The states of torch's, Python's and NumPy's generators, and of that of a GPU."""
    states = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    if device is not None and device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_generators(states: dict[str, Any], device: torch.device | None = None) -> None:
    """Sets torch's, Python's and NumPy's, and that of a GPU."""
    torch.set_rng_state(states["torch"])
    if device is not None and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
    random.setstate(states["python"])
    if "numpy" in states and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(states["numpy"])


class LoaderRandomness:
    """The generators of all loaders of a training.

    Args:
        states: of `generators`, with which they begin; by default those of this process now.
        device: whose generator is one of them, if it is a GPU.
    """

    def __init__(
        self, states: dict[str, Any] | None = None, device: torch.device | None = None
    ) -> None:
        self._device = device
        self.states = generators(device) if states is None else states

    @contextmanager
    def used(self) -> Iterator[None]:
        """What draws in here draws from them."""
        before = generators(self._device)
        set_generators(self.states, self._device)
        try:
            yield
        finally:
            self.states = generators(self._device)
            set_generators(before, self._device)


class SameBatches:
    """A loader whose iterations draw from the generators of a `LoaderRandomness`.

    All else is the loader's own.
    """

    def __init__(self, loader: Any, randomness: LoaderRandomness) -> None:
        self._loader, self._randomness = loader, randomness

    def __getattr__(self, name: str) -> Any:
        if name in ("_loader", "_randomness"):  # while it is unpickled
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_loader", "_randomness"):
            super().__setattr__(name, value)
        else:  # as Lightning does with the workers of a run that has ended
            setattr(self._loader, name, value)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        with self._randomness.used():
            batches = iter(self._loader)
        return self._each(batches)

    def _each(self, batches: Iterator[Any]) -> Iterator[Any]:
        end = object()
        while True:
            with self._randomness.used():
                batch = next(batches, end)
            if batch is end:
                return
            yield batch


def sample_of(batch: Any) -> Tensor:
    """Some numbers of a batch's tensors, with their shapes: of other samples they are others.

    Args:
        batch: tensors in tuples, lists, dicts, …; all else is left out, as sparse tensors are.
    """
    found = list(_tensors(batch))
    looked_at = found[:AT_AN_END] + found[AT_AN_END:][-AT_AN_END:]
    parts = [torch.tensor([len(found)], dtype=torch.float64, device="cpu")]
    for tensor in looked_at:
        shape = torch.tensor([tensor.ndim, *tensor.shape], dtype=torch.float64, device="cpu")
        parts += [shape, _numbers(tensor)]
    return torch.cat(parts)


def is_same_sample(one: Tensor, other: Tensor) -> bool:
    """Whether two results of `sample_of` are of one batch, up to rounding."""
    return one.shape == other.shape and torch.allclose(one, other, 1e-3, 1e-6, equal_nan=True)


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        dense = tree.layout == torch.strided and not (tree.is_nested or tree.is_quantized)
        if dense and not tree.is_meta:
            yield tree.as_subclass(Tensor)
    elif isinstance(tree, (Mapping, tuple, list)):
        for part in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _tensors(part)


@torch.no_grad()
def _numbers(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    count = tensor.numel()
    if count > SAMPLED:  # (To flatten it might copy all of it.)
        places = torch.arange(SAMPLED, device=tensor.device) * (count - 1) // (SAMPLED - 1)
        tensor = tensor[torch.unravel_index(places, tensor.shape)]
    return tensor.detach().reshape(-1).to("cpu", torch.float64)

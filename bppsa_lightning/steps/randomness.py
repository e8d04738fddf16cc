"""Random number generators: whether a step draws from them, and as they were before it was tried.

By their states, not by results: a mask over zeros is not to be seen in what comes of it. A state
may have been changed by another thread, too, whose numbers must not come a second time: of
PyTorch's generators it is seen who draws (`Draws`), of Python's and NumPy's it is not.
"""

import random
import sys
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bppsa_lightning._same_batches import generators
from bppsa_lightning.windows.cut import Leaves


class Kinds(NamedTuple):
    """Of generators: PyTorch's, of the CPU and of some devices; Python's and NumPy's."""

    of_torch: bool = False
    others: bool = False


class Generators:
    """PyTorch's, of the CPU and of some tensors' devices; Python's and NumPy's; as they are now."""

    def __init__(self, leaves: Leaves) -> None:
        self._devices = sorted({t.device.index or 0 for t in leaves if t.is_cuda})
        self._states, self._of_devices = self._now()

    def moved(self) -> Kinds:
        """Where numbers were drawn since then, by anybody."""
        now, then = _comparable(*self._now()), _comparable(self._states, self._of_devices)
        return Kinds(*(a != b for a, b in zip(now, then, strict=True)))

    def restore(self, kinds: Kinds) -> None:
        """Puts them back."""
        if kinds.of_torch:
            torch.set_rng_state(self._states["torch"])
            for device, state in zip(self._devices, self._of_devices, strict=True):
                torch.cuda.set_rng_state(state, device)
        if kinds.others:
            random.setstate(self._states["python"])
            if "numpy" in self._states:
                sys.modules["numpy"].random.set_state(self._states["numpy"])

    def _now(self) -> tuple[dict[str, Any], list[torch.Tensor]]:
        return generators(), [torch.cuda.get_rng_state(device) for device in self._devices]


class Draws(TorchDispatchMode):
    """Notes whether this thread draws from PyTorch's own generators."""

    seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None:
            self.seen = True
        return func(*args, **kwargs)


def _comparable(states: dict[str, Any], of_devices: list[torch.Tensor]) -> list[list[Any]]:
    of_torch = [state.numpy().tobytes() for state in (states["torch"], *of_devices)]
    _name, key, *place = states.get("numpy", ("", None))
    return [of_torch, [states["python"], None if key is None else key.tobytes(), *place]]

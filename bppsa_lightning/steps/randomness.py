"""Random number generators: whether a step draws from them, and as they were before it was tried.

By their states, not by results: a mask over zeros is not to be seen in what comes of it.
"""

from typing import Any

import torch

from bppsa_lightning._same_batches import generators, set_generators
from bppsa_lightning.windows.cut import Leaves


class Generators:
    """PyTorch's, of the CPU and of some tensors' devices; Python's and NumPy's; as they are now."""

    def __init__(self, leaves: Leaves) -> None:
        self._devices = sorted({t.device.index or 0 for t in leaves if t.is_cuda})
        self._states, self._of_devices = self._now()

    def drew(self) -> bool:
        """Whether numbers were drawn since then."""
        return _comparable(*self._now()) != _comparable(self._states, self._of_devices)

    def restore(self) -> None:
        """Puts them back."""
        set_generators(self._states)
        for device, state in zip(self._devices, self._of_devices, strict=True):
            torch.cuda.set_rng_state(state, device)

    def _now(self) -> tuple[dict[str, Any], list[torch.Tensor]]:
        return generators(), [torch.cuda.get_rng_state(device) for device in self._devices]


def _comparable(states: dict[str, Any], of_devices: list[torch.Tensor]) -> list[Any]:
    of_torch = [state.numpy().tobytes() for state in (states["torch"], *of_devices)]
    _name, key, *place = states.get("numpy", ("", None))
    return [*of_torch, states["python"], None if key is None else key.tobytes(), *place]

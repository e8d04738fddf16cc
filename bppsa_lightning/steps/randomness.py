"""Random number generators: whether a step draws from them, and as they were before it was tried.

By their states, not by results: a mask over zeros is not to be seen in what comes of it.
"""

import pickle
import random
import sys
from typing import Any

import torch

from bppsa_lightning.windows.cut import Leaves


class Generators:
    """PyTorch's, of the CPU and of some tensors' devices; Python's and NumPy's; as they are now."""

    def __init__(self, leaves: Leaves) -> None:
        self._devices = sorted({t.device.index or 0 for t in leaves if t.is_cuda})
        self._torch = self._of_torch()
        self._python = random.getstate()
        self._numpy = _of_numpy()

    def drew(self) -> bool:
        """Whether numbers were drawn since then."""
        same = all(map(torch.equal, self._of_torch(), self._torch))
        return not same or random.getstate() != self._python or _of_numpy() != self._numpy

    def restore(self) -> None:
        """Puts them back."""
        cpu, *others = self._torch
        torch.set_rng_state(cpu)
        for device, state in zip(self._devices, others, strict=True):
            torch.cuda.set_rng_state(state, device)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(pickle.loads(self._numpy))

    def _of_torch(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self._devices)]


def _of_numpy() -> bytes | None:
    numpy: Any = sys.modules.get("numpy")
    return None if numpy is None else pickle.dumps(numpy.random.get_state())

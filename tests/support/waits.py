"""Where the host waits for a device: as torch says on one, and counted without one."""

import traceback
import warnings
from collections import Counter
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

# What asks for the numbers of a tensor.
_ASKS = ("tolist", "item", "__bool__", "__float__", "__int__", "__index__", "nonzero")


@contextmanager
def waits(answer=None):
    """Counts, by the package's files, what makes the host wait for a device.

    Args:
        answer: what a tensor without numbers is taken to hold.
    """
    found = Counter()

    def note():
        names = [f.filename for f in traceback.extract_stack() if "/bppsa_lightning/" in f.filename]
        if names:
            found[names[-1].rpartition("/")[2]] += 1

    def asking(name, function):
        def ask(t, *more):
            note()
            if t.is_meta:
                return [answer] * len(t) if name == "tolist" else answer
            return function(t, *more)

        return ask

    def indexed(t, index, function=Tensor.__getitem__):
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, (list, Tensor)) for part in parts):  # it is sent to the device
            note()
        return function(t, index)

    with pytest.MonkeyPatch.context() as patch:
        for name in _ASKS:
            patch.setattr(Tensor, name, asking(name, getattr(Tensor, name)))
        patch.setattr(Tensor, "__getitem__", indexed)
        yield found


@contextmanager
def sync_debug_mode(mode):
    """torch.cuda's, for a while: "warn" or "error" where the host waits for a CUDA device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is a prototype
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")

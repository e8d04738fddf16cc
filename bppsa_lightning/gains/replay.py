"""Runs a recorded call once more, as it was and by stock PyTorch, and takes the time of both.

Only torch's layers and ours run, on copies that share the weights: see `bare`. Random numbers are
given back as they were found.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from bppsa_lightning._replacement import Replacement
from bppsa_lightning.attach import attach_chains
from bppsa_lightning.chain import Chain, named_chains
from bppsa_lightning.gains.bare import bare
from bppsa_lightning.gains.clock import clock_of
from bppsa_lightning.gains.recording import Call, tensors_of
from bppsa_lightning.pruned.layout import samples_innermost


class Seconds(NamedTuple):
    """Of the forward and the backward of a call, or of several."""

    forward: float
    backward: float

    def plus(self, other: Seconds) -> Seconds:
        return Seconds(self.forward + other.forward, self.backward + other.backward)


class Twins:
    """Two bare copies of a layer: one accelerated as the layer is, one stock.

    Raises:
        ValueError: as `bare`.
    """

    def __init__(self, replacement: Replacement) -> None:
        self.state = state_of(replacement.module)
        with untouched(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch says of a layer, it has said of the first
            self.ours, self.stock = bare(replacement), bare(replacement)
            algorithm = replacement.algorithm if isinstance(replacement, Chain) else "auto"
            attach_chains(self.ours, algorithm)
        if isinstance(replacement, Chain):
            for chain in named_chains(self.ours).values():
                chain.load_state_dict(replacement.state_dict())

    def fit(self, replacement: Replacement) -> bool:
        """Whether they are still what the layer is."""
        return self.state == state_of(replacement.module)


def state_of(module: nn.Module) -> Any:
    """What a copy takes from a module, to be compared with what another moment's would."""
    weights = [(id(p), p.data_ptr(), p.shape, p.requires_grad) for p in module.parameters()]
    masks = [(id(b), b._version) for n, b in module.named_buffers() if n.endswith("_mask")]
    return weights, masks, [m.training for m in module.modules()]


@contextmanager
def untouched() -> Iterator[None]:
    """Random numbers are as before afterwards."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        yield


def run(call: Call, twin: nn.Module, stock: bool) -> Seconds:
    """Forward and backward of a call by one of its layer's twins.

    Args:
        stock: whether by the stock one: it gets images laid out as PyTorch has them.
    """
    clock = clock_of(call.device)
    with untouched(), warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        args, kwargs, wanted = call.inputs()
        grads = call.grads
        if stock:
            with torch.no_grad():
                args, kwargs = tree_map_only(Tensor, _as_pytorch, (args, kwargs))
                grads = tree_map_only(Tensor, _as_pytorch, grads)
            wanted = [x for x in tensors_of((args, kwargs)) if x.requires_grad]
        wanted = [*wanted, *(p for p in twin.parameters() if p.requires_grad)]
        start = clock.now()
        with call.autocast():
            output = twin(*args, **kwargs)
        middle = clock.now()
        pairs = [
            (x, grads[place])
            for place, x in enumerate(tensors_of(output))
            if place in grads and x.requires_grad and grads[place].shape == x.shape
        ]
        if pairs and wanted:
            outputs, given = zip(*pairs, strict=True)
            torch.autograd.grad(outputs, wanted, given, allow_unused=True)
        end = clock.now()
        return Seconds(clock.between(start, middle), clock.between(middle, end))


def _as_pytorch(x: Tensor) -> Tensor:
    if not samples_innermost(x):
        return x
    return x.detach().contiguous().requires_grad_(x.requires_grad)

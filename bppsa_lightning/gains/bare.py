"""Layers without what their owner put around them: torch's own classes, the same weights.

To run a layer of somebody's training once more, and change nothing: no code and no hook of theirs
is called, no gradient reaches a parameter, no buffer is written to.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import BasePruningMethod

from bppsa_lightning import pruned
from bppsa_lightning._context import overrides_forward
from bppsa_lightning._replacement import Replacement, replacement_of
from bppsa_lightning.recurrent import RecurrentChain

_SETTINGS = (
    "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional"
)  # fmt: skip


def bare(replacement: Replacement) -> nn.Module:
    """A module that computes what a replacement's module computes without it.

    Weights are in the memory of the original's, buffers are copies.

    Raises:
        ValueError: a layer of the user's own is inside, or weights are not here as plain tensors
            (sharded, freed, on no device), or are computed by the user's own parametrization, or
            one that keeps something, as spectral_norm does.
    """
    if isinstance(replacement, RecurrentChain):
        return _recurrent(replacement)
    return _feedforward(replacement.module)


def _recurrent(chain: RecurrentChain) -> nn.RNNBase:
    module: Any = chain.module
    if is_parametrized(module):
        _check_parametrizations(module)
    settings = {name: getattr(module, name) for name in _SETTINGS}
    if module.mode.startswith("RNN"):
        settings["nonlinearity"] = module.nonlinearity
    elif module.proj_size:
        settings["proj_size"] = module.proj_size
    new = chain.torch_class(**settings, device="meta")
    for name, weight in zip(chain.config.names, chain.weights(), strict=True):
        setattr(new, name, _shared(name, weight))
    return new.train(module.training)


def _check_parametrizations(module: Any) -> None:
    """Raises ValueError unless all can be evaluated once more, and nothing is changed by it."""
    for name, parametrizations in module.parametrizations.items():
        for each in parametrizations:
            torchs = type(each).__module__ == "torch.nn.utils.parametrizations"
            if not torchs or next(each.buffers(), None) is not None:
                raise ValueError(
                    f"{name}: found the parametrization {type(each).__name__}, which may change "
                    "what it keeps; wanted none, or weight_norm"
                )


def _feedforward(module: Any) -> Any:
    """Of an nn.Sequential of torch's layers, or of one such layer."""
    kinds = (nn.Sequential, nn.Conv2d, nn.Linear)
    kind: Any = next((k for k in kinds if isinstance(module, k)), type(module))
    children = dict(module._modules)
    torchs = kind.__module__.startswith("torch.nn.modules.") and (
        kind is nn.Sequential or not children
    )
    if not torchs or overrides_forward(module, kind, Replacement):
        found = type(module).__name__
        raise ValueError(f"{found}: found a layer of the user's own, wanted one of torch's")
    new = kind.__new__(kind)
    nn.Module.__init__(new)
    own = {name: value for name, value in module.__dict__.items() if name not in _NOT_COPIED}
    new.__dict__.update({name: value for name, value in own.items() if name not in new.__dict__})
    new.training = module.training
    for name, child in children.items():
        new.add_module(name, _feedforward(child))
    for name, buffer in module._buffers.items():
        # A mask is never written to by a forward; as the same tensor it keeps its count of changes.
        same = buffer is None or name.endswith("_mask")
        new.register_buffer(name, buffer if same else buffer.detach().clone())
    for name, weight in module._parameters.items():
        if name == "weight_orig" and weight.shape != module.weight_mask.shape:
            sparse = replacement_of(module, pruned.SparseLayer)
            assert sparse is not None  # it alone makes such a parameter
            weight = sparse.pattern.dense(weight.detach()).view(module.weight_mask.shape)
            weight.requires_grad_(module.weight_orig.requires_grad)
        new.register_parameter(name, None if weight is None else _shared(name, weight))
    for key, hook in module._forward_pre_hooks.items():
        if isinstance(hook, BasePruningMethod):
            hook = copy(hook)
            hook.__dict__.pop("apply_mask", None)  # which is a sparse layer's
            new._forward_pre_hooks[key] = hook
    return new


_NOT_COPIED = ("forward", "weight", "bias")


def _shared(name: str, weight: Any) -> nn.Parameter:
    """A parameter in the memory of another."""
    alias = weight.detach()
    wanted = alias.numel() * alias.element_size()
    if type(alias) is not torch.Tensor or alias.is_meta or alias.layout != torch.strided:
        raise ValueError(f"{name}: found a {type(alias).__name__}, wanted a dense tensor")
    if alias.untyped_storage().nbytes() < wanted:
        raise ValueError(f"{name}: found no memory behind it, wanted {wanted} bytes")
    return nn.Parameter(alias, weight.requires_grad)

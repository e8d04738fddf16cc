"""What a checkpoint holds of a pruned model beside plain weights: its masks, its first values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.utils.prune as prune
from torch import Tensor, nn


def masks_of(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every mask of a model, with the dotted name of its parameter."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for mask_name, mask in model.named_buffers():
        name = mask_name.removesuffix("_mask")
        if name != mask_name and f"{name}_orig" in parameters:
            yield name, mask


def packed_masks(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Every mask of a model, by the dotted name of its parameter, a bit a weight."""
    return {
        name: {
            "shape": list(mask.shape),
            "bits": torch.from_numpy(np.packbits(mask.bool().cpu().numpy().reshape(-1))),
        }
        for name, mask in masks_of(model)
    }


def _unpacked(packed: Mapping[str, Any]) -> Tensor:
    shape = packed["shape"]
    bits = np.unpackbits(packed["bits"].numpy(), count=int(np.prod(shape, dtype=np.int64)))
    return torch.from_numpy(bits.astype(np.float32)).view(shape)


def put_masks(model: nn.Module, masks: Mapping[str, Mapping[str, Any]]) -> None:
    """Gives a model these packed masks, and no others."""
    here = dict(masks_of(model))
    for name in [*masks, *(here.keys() - masks.keys())]:
        path, _, parameter = name.rpartition(".")
        module = model.get_submodule(path)
        order = list(module._parameters)
        if name not in masks:
            prune.remove(module, parameter)
        elif name not in here:
            prune.custom_from_mask(module, parameter, _unpacked(masks[name]))
        elif not here[name].bool().cpu().equal((mask := _unpacked(masks[name])).bool()):
            here[name].copy_(mask)
        reorder(module, order)


def reorder(module: nn.Module, names: Sequence[str]) -> None:
    """Brings the parameters of a module, some masked or plain by now, into this order.

    torch.nn.utils.prune puts them last; callbacks that keep a copy of the model, as weight
    averaging does, go through both side by side.
    """
    own = module._parameters
    for name in [name.removesuffix("_orig") for name in names]:
        kept = name if name in own else f"{name}_orig"
        own[kept] = own.pop(kept)


def accept_other_masks(module: nn.Module, state_dict: dict[str, Any], *_: Any) -> None:
    """Lets a model load the weights of one that is pruned where it is not, or is not where it is.

    A hook for `register_load_state_dict_pre_hook`. Plain weights have the zeros of their mask.
    """
    for key in [key for key in state_dict if key.endswith("_mask")]:
        name = key.removesuffix("_mask")
        path, _dot, parameter = name.rpartition(".")
        if f"{name}_orig" in state_dict and parameter in module.get_submodule(path)._parameters:
            mask, orig = state_dict.pop(key), state_dict.pop(f"{name}_orig")
            state_dict[name] = mask.to(orig.dtype) * orig
    for name, mask in masks_of(module):
        if name in state_dict:
            weight = state_dict.pop(name)
            # A weight that survived may be 0, too: the mask that is here stays where it can.
            fits = weight.shape == mask.shape and not weight[mask.to(weight.device) == 0].any()
            state_dict[f"{name}_orig"] = weight
            state_dict[f"{name}_mask"] = mask if fits else (weight != 0).to(mask.dtype)


def first_values(
    model: nn.Module, originals: Sequence[tuple[nn.Module, str, nn.Module]]
) -> dict[str, Tensor]:
    """Values to go back to, by the dotted names of parameters.

    Args:
        model: what the names are of.
        originals: a module of it, the name of its parameter, and its copy that holds the values.
    """
    names = {module: name for name, module in model.named_modules()}
    return {
        f"{names[module]}.{parameter}": getattr(copy, parameter).detach()
        for module, parameter, copy in originals
    }


@torch.no_grad()
def put_first_values(
    model: nn.Module,
    originals: Sequence[tuple[nn.Module, str, nn.Module]],
    values: Mapping[str, Tensor],
) -> None:
    """Writes those of `first_values` into the copies, as far as they are known."""
    for name, copied in first_values(model, originals).items():
        if name in values:
            copied.copy_(values[name])

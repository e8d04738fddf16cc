"""Chains over time: `nn.RNN`, `nn.GRU` and `nn.LSTM`, and classes that derive from them."""

from torch import nn

from bppsa_lightning.recurrent import overridden, support
from bppsa_lightning.recurrent.layer import RecurrentChain
from bppsa_lightning.recurrent.overridden import OverriddenChain
from bppsa_lightning.recurrent.support import is_candidate


def unsupported(module: nn.Module) -> str | None:
    """Why a module cannot be attached as a chain over time; None if it can."""
    reason = support.unsupported_module(module)
    if reason != support.OVERRIDES_FORWARD or not isinstance(module, nn.RNNBase):
        return reason
    return overridden.unsupported_class(module)


def replace(name: str, module: nn.RNNBase) -> RecurrentChain:
    """The chain of a module that can be attached."""
    overrides = support.unsupported_module(module) == support.OVERRIDES_FORWARD
    return (OverriddenChain if overrides else RecurrentChain)(name, module)

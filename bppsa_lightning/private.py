"""Opacus: differentially private training of models whose recurrent layers are attached.

Opacus' `PrivacyEngine` refuses nn.LSTM and nn.GRU, whose gradients it cannot take apart, and has
layers of its own, a loop over time in Python. An attached layer gives the gradients of each sample
itself. Once Opacus has been imported:

- its validator accepts nn.LSTM and nn.GRU that are attached, and refuses others as ever;
- its hooks leave attached layers out, which write `grad_sample` themselves. They are not told all
  that a layer gives: only the gradient of `output`, not those of the last states.
"""

from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from bppsa_lightning._replacement import replacement_of
from bppsa_lightning.recurrent import RecurrentChain
from bppsa_lightning.recurrent.sampled import wanted_by

HOOKS = "opacus.grad_sample.grad_sample_module"
VALIDATORS = "opacus.validators"


class OfOpacus:
    """What Opacus' hooks want of an attached layer.

    Args:
        hooks: Opacus' own, of the model.
        opacus: the module in which it keeps gradients.
    """

    def __init__(self, hooks: Any, opacus: Any) -> None:
        self._hooks, self._opacus = hooks, opacus

    def now(self, module: nn.Module) -> bool:
        """Under the conditions under which its hooks look at a call."""
        on = self._hooks.hooks_enabled and module.training and torch.is_grad_enabled()
        return bool(on) and any(p.requires_grad for p in module.parameters())

    def begin(self, weights: Sequence[Tensor]) -> None:
        """Opacus counts the calls whose gradients are outstanding."""
        for weight in weights:
            weight._forward_counter += 1  # type: ignore[attr-defined]

    def end(self, weight: Any, gradients: Tensor) -> None:
        """Adds gradients up over calls; when none is outstanding, they are those of the batch."""
        if self._hooks.loss_reduction == "mean":
            gradients.mul_(len(gradients))
        if hasattr(weight, "_current_grad_sample"):
            weight._current_grad_sample += gradients
        else:
            weight._current_grad_sample = gradients
        weight._forward_counter -= 1
        if weight._forward_counter == 0:
            self._opacus.promote_current_grad_sample(weight)
        kept = weight.grad_sample
        if not self._hooks.grad_accumulation_allowed and isinstance(kept, list) and len(kept) > 1:
            raise ValueError(
                "Poisson sampling is not compatible with grad accumulation. Call optimizer.step() "
                "after every backward pass, or use Opacus' BatchMemoryManager"
            )


def leave_out_attached(opacus: ModuleType) -> None:
    """Opacus' hooks, as they are added to a model, leave its attached layers out."""
    hooks = opacus.GradSampleHooks
    all_of: Callable[[Any, nn.Module], Iterator[nn.Module]] = hooks.iterate_submodules

    def iterate_submodules(self: Any, module: nn.Module) -> Iterator[nn.Module]:
        if replacement_of(module, RecurrentChain) is None:
            yield from all_of(self, module)
            return
        if type(self).capture_backprops_hook is not hooks.capture_backprops_hook:
            raise NotImplementedError(
                f"grad_sample_mode: found that of {type(self).__name__}, which clips by norms "
                "alone; wanted 'hooks', as recurrent layers are attached"
            )
        if any(p.requires_grad for p in module.parameters()):
            wanted_by[module] = OfOpacus(self, opacus)

    hooks.iterate_submodules = iterate_submodules


def accept_attached(validators: ModuleType) -> None:
    """Opacus' validator asks of a layer whether it is attached, before it refuses it."""
    known = validators.ModuleValidator.VALIDATORS
    for kind in (nn.LSTM, nn.GRU):
        known[kind] = _unless_attached(known[kind])


def _unless_attached(refuse: Callable[[nn.Module], list[Any]]) -> Callable[[nn.Module], list[Any]]:
    def validate(module: nn.Module) -> list[Any]:
        return [] if replacement_of(module, RecurrentChain) is not None else refuse(module)

    return validate

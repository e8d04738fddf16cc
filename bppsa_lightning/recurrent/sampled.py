"""Recurrent layers that give the gradients of their weights sample by sample.

Differentially private training needs them: somebody (see `bppsa_lightning.private`) wants to be
given those of a module's calls, and says so in `wanted_by`.
"""

from collections.abc import Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bppsa_lightning import ops
from bppsa_lightning.recurrent.config import RecurrentConfig
from bppsa_lightning.recurrent.packed import Tensors
from bppsa_lightning.recurrent.stack import operands_of


class Wants(Protocol):
    """Who wants the gradients of each sample."""

    def now(self, module: nn.Module) -> bool:
        """Whether those of a call that begins now."""

    def begin(self, weights: Sequence[Tensor]) -> None:
        """A call has begun that reads these weights, once each."""

    def end(self, weight: Tensor, gradients: Tensor) -> None:
        """A weight's gradients of one such call, (B, *shape), in the order of the samples."""


# A copy of a module is not in here: nobody has asked for its gradients.
wanted_by: WeakKeyDictionary[nn.Module, Wants] = WeakKeyDictionary()


def wants_of(module: nn.Module) -> Wants | None:
    """Who wants those of a call that begins now, or None."""
    wants = wanted_by.get(module) if wanted_by else None
    return wants if wants is not None and wants.now(module) else None


class SampledScan:
    """The scans of one call: each is `RecurrentChain._scan`, and keeps each sample's gradients.

    Args:
        weights: of the module, as it holds them, in the order of ``config.names``.
        samples: B of the call. order: (B,), where each sample that is scanned stands among those of
            the caller; None where that is the same.
    """

    def __init__(
        self, config: RecurrentConfig, algorithm: str, wants: Wants, weights: Sequence[Tensor],
        samples: int, order: Tensor | None,
    ) -> None:  # fmt: skip
        self._config, self._algorithm, self._wants = config, algorithm, wants
        self._weights, self._samples, self._order = weights, samples, order
        self._begun: dict[int, int] = {}  # samples whose scans have begun, at a place
        self._parts: dict[int, dict[int, Tensors]] = {}  # by place, and by the first sample
        wants.begin([w for w in weights if w.requires_grad])

    def __call__(
        self, x: Tensor, states: Tensors, weights: Tensors, reverse: bool, place: int
    ) -> tuple[Tensor, ...]:
        operands = operands_of(self._config, x, states, weights)
        begun = self._begun.get(place, 0) % max(1, self._samples)  # a scan may be done again
        self._begun[place] = begun + x.shape[1]

        def keep(found: tuple[Tensor | None, ...]) -> None:
            self._keep(place, begun, found)

        output = ops.run_sampled_layer(
            self._config.cell.name, operands, reverse, self._algorithm, keep
        )
        return output if self._config.cell.has_c else output[:2]

    def _keep(self, place: int, first: int, found: tuple[Tensor | None, ...]) -> None:
        """Those of some samples: hands out those of all, when they are there."""
        each = self._config.weights_per_direction
        w_ih, w_hh, b_ih, b_hh, w_hr = found
        there = [w_ih, w_hh]
        there += [b_ih, b_hh] if self._config.bias else []
        there += [w_hr] if self._config.projected else []
        weights = self._weights[place * each : (place + 1) * each]
        wanted = [
            (w, g) for w, g in zip(weights, there, strict=True) if g is not None and w.requires_grad
        ]
        parts = self._parts.setdefault(place, {})
        parts[first] = [g for _, g in wanted]
        if sum(len(part[0]) for part in parts.values()) < self._samples:
            return
        del self._parts[place]
        ordered = [parts[k] for k in sorted(parts)]
        for (weight, _), same in zip(wanted, zip(*ordered, strict=True), strict=True):
            gradients = torch.cat(same) if len(same) > 1 else same[0]
            if gradients.dim() > 1 and gradients.shape[1:] != weight.shape:
                gradients = gradients[..., : weight.shape[-1]]  # the column that freezes padding
            if self._order is not None:
                gradients = gradients.index_select(0, self._order)
            self._wants.end(weight, gradients)

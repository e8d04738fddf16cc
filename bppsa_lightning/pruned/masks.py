"""What can be wrong with a mask, said once: it leaves nothing, or it changes and nobody knows."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bppsa_lightning import ops
from bppsa_lightning._advice import advise

_MANY_CHANGES, _CALLS_A_CHANGE = 10, 10
LOOKS = 256  # calls


class MaskWatch:
    """Of one layer's mask, from call to call."""

    def __init__(self) -> None:
        self._changes = 0  # as far as they were seen
        self._unlooked = 0  # calls since somebody compared the mask itself

    def saw_another(
        self, name: str, module: Any, pattern: ops.SparsePattern, again: bool, calls: int
    ) -> None:
        """A mask was seen that is not the one of the call before.

        Args:
            again: whether there was one before. calls: of the layer so far.

        Raises:
            RuntimeError: the layer's parameter holds the surviving weights of another mask.
        """
        _check_compact(name, module, pattern)
        advise_emptied(name, module)
        self._changes += again
        if self._changes >= _MANY_CHANGES and calls < _CALLS_A_CHANGE * self._changes:
            advise(
                module,
                "changed-mask",
                f"The mask of {_named(name)} changed {self._changes} times in {calls} calls, and "
                "each time its pattern was made anew, which takes longer than a step. Prune less "
                "often (at_epochs), or bl.detach(model) until the mask stays.",
            )

    def differs(self, name: str, module: Any, known: ops.SparsePattern) -> bool:
        """Whether a mask is another one than is known, though autograd has counted no change.

        Looks at one call of 256, which costs less than a hundredth of them.
        """
        self._unlooked += 1
        if self._unlooked < LOOKS:
            return False
        self._unlooked = 0
        mask = module.weight_mask.detach()
        if mask.device.type != "cpu" or known.dense(_ones(known)).equal(_as_known(mask)):
            return False
        advise(
            module,
            "changed-mask",
            f"The mask of {_named(name)} was changed where nobody could see it (weight_mask.data, "
            f"NumPy): up to {LOOKS} calls used the one before. From now on the new one is used. "
            "Change a mask by weight_mask.copy_(...), or prune again.",
        )
        return True


def _as_known(mask: torch.Tensor) -> torch.Tensor:
    """1 where it keeps a weight, in the four dimensions of a pattern."""
    return (mask != 0).float().reshape(*mask.shape, *[1] * (4 - mask.dim()))


def _named(name: str) -> str:
    return name or "the layer"


def advise_emptied(name: str, module: nn.Module) -> None:
    """Warns if a mask has left no weight of a module."""
    mask = module._buffers.get("weight_mask")
    if mask is None or not mask.numel() or mask.is_meta or mask.any():
        return
    advise(
        module,
        "emptied",
        f"Pruning has left no weight of {_named(name)} ({type(module).__name__}): its output does "
        "not depend on its input, and the layers before it learn nothing through it. Prune each "
        "layer by itself (use_global_unstructured=False), or less.",
    )


def _check_compact(name: str, module: Any, pattern: ops.SparsePattern) -> None:
    weight = module._parameters.get("weight_orig")
    compact = weight is not None and weight.shape != module.weight_mask.shape
    if compact and weight.numel() != pattern.nnz:
        raise RuntimeError(
            f"{name}.weight_mask: found a mask of {pattern.nnz} weights, wanted that of the "
            f"{weight.numel()} which weight_orig holds since SparseJacobianPruning pruned. Change "
            "masks through it, or pass it compact=False"
        )


def _ones(pattern: ops.SparsePattern) -> torch.Tensor:
    return torch.ones(pattern.nnz, dtype=torch.float32, device="cpu")

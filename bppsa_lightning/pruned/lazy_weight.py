"""`module.weight` of a pruned layer, computed only if somebody reads it.

`torch.nn.utils.prune` writes ``weight_orig * mask`` there before every forward: at 97 % sparsity
that product moves more memory than the sparse layer itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


class MaskedWeight(Tensor):
    """Stands for a weight; whatever reads it gets the weight itself, with its graph."""

    _compute: Callable[[], Tensor]

    @staticmethod
    def of(compute: Callable[[], Tensor]) -> MaskedWeight:
        """The result of `compute`, called at each use."""
        self = torch.empty(0).as_subclass(MaskedWeight)
        self._compute = compute
        return self

    def is_of(self, compute: Callable[[], Tensor]) -> bool:
        """Whether it is the result of this very function."""
        return self.__dict__["_compute"] == compute

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__:  # of a module: what has a graph cannot be copied
            with torch.no_grad():
                return args[0].__dict__["_compute"]().clone()
        with torch._C.DisableTorchFunctionSubclass():
            args, kwargs = tree_map_only(
                MaskedWeight, lambda lazy: lazy.__dict__["_compute"](), (args, kwargs or {})
            )
        return func(*args, **kwargs)

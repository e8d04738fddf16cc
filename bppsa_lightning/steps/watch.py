"""Watches the functions that a step calls: which tensors it reads, which it changes."""

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from bppsa_lightning.windows.cut import Leaves

# What makes Python numbers of tensors, or shapes: a step that asks for them may go one way or
# another.
_NUMBERS = {
    Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__index__, Tensor.__contains__,
    Tensor.__array__, Tensor.item, Tensor.tolist, Tensor.numpy, torch.equal, torch.allclose,
    torch.is_nonzero, Tensor.equal, Tensor.allclose, Tensor.is_nonzero, torch.nonzero,
    Tensor.nonzero, torch.argwhere, Tensor.argwhere, torch.masked_select, Tensor.masked_select,
    torch.unique, Tensor.unique, torch.unique_consecutive, Tensor.unique_consecutive,
    torch.bincount, Tensor.bincount,
}  # fmt: skip


def _makes_numbers(func: Any, args: Any) -> bool:
    if func is Tensor.__getitem__:  # by a mask
        return any(_is_mask(t) for t in pytree.tree_leaves(args[1]))
    return func in _NUMBERS or (func in (torch.where, Tensor.where) and len(args) == 1)


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


class Watch(TorchFunctionMode):
    """Collects the tensors that functions are given and that none of them returned.

    Attributes:
        found: by their id.
        number: the function that made a Python number of what depends on the arguments; or None.
        transforms: whether functions were called within a transform of torch.func, whose tensors
            are not what they are elsewhere.
    """

    def __init__(self, arguments: Leaves) -> None:
        super().__init__()
        self._inside = {id(t): t for t in arguments}  # (which keeps them, and their numbers)
        self._dependent = set(self._inside)
        self.found: dict[int, Tensor] = {}
        self.number: str | None = None
        self.transforms = False
        self._generators: dict[int, tuple[torch.Generator, Tensor]] = {}
        self._before: dict[int, tuple[int | None, Tensor]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves = pytree.tree_leaves((args, kwargs))
        for leaf in leaves:
            if isinstance(leaf, torch.Generator) and id(leaf) not in self._generators:
                self._generators[id(leaf)] = leaf, leaf.get_state()
        self.transforms = self.transforms or torch._C._are_functorch_transforms_active()
        given = [t for t in leaves if isinstance(t, Tensor) and not _is_wrapped(t)]
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for t in given:
                if id(t) not in self._inside and id(t) not in self.found:
                    self.found[id(t)] = t
                    if not (t.is_leaf and t.requires_grad):
                        self._before[id(t)] = _version(t), t.clone()
        result = func(*args, **kwargs)
        dependent = any(id(t) in self._dependent for t in given)
        if dependent and _makes_numbers(func, args):
            self.number = func.__name__
        for t in pytree.tree_leaves(result):
            if isinstance(t, Tensor) and id(t) not in self.found:
                self._inside[id(t)] = t
                if dependent:
                    self._dependent.add(id(t))
        return result

    def depends(self, t: Tensor) -> bool:
        """Whether it was computed from the arguments."""
        return id(t) in self._dependent

    def restore(self) -> bool:
        """Undoes what was changed of them; whether anything was.

        Parameters, which a graph holds, are not looked after.
        """
        changed = False
        with torch.no_grad():
            for key, (version, copy) in self._before.items():
                t = self.found[key]
                if _version(t) != version or (version is None and not torch.equal(t, copy)):
                    t.copy_(copy)
                    changed = True
        return changed

    def restore_generators(self) -> bool:
        """Puts generators that functions were given back; whether there were any."""
        for generator, state in self._generators.values():
            generator.set_state(state)
        return bool(self._generators)


def _is_wrapped(t: Tensor) -> bool:
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(t))


def _version(t: Tensor) -> int | None:
    return None if t.is_inference() else t._version

"""Watches the functions that a step calls: which tensors it reads, which it changes."""

import sys
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from bppsa_lightning.windows.cut import Leaves

# What makes Python numbers of tensors, or shapes: a step that asks for them may go one way or
# another.
_NUMBERS = {
    Tensor.__bool__, Tensor.__int__, Tensor.__float__, Tensor.__complex__, Tensor.__index__,
    Tensor.__contains__, Tensor.__array__, Tensor.item, Tensor.tolist, Tensor.numpy, torch.equal,
    torch.allclose, torch.is_nonzero, Tensor.equal, Tensor.allclose, Tensor.is_nonzero,
    torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere, torch.masked_select,
    Tensor.masked_select, torch.unique, Tensor.unique, torch.unique_consecutive,
    Tensor.unique_consecutive, torch.bincount, Tensor.bincount, Tensor.__dlpack__,
    Tensor.__repr__, Tensor.__format__,
}  # fmt: skip


_INDEXING = Tensor.__getitem__, Tensor.__setitem__

_DATA = Tensor.data.__get__, Tensor.data.__set__  # type: ignore[attr-defined]

# Tensors of more numbers are copied before a function that may write to them, not before any.
_LARGE = 1 << 20


def _checks(func: Any, caller: str) -> bool:
    """Whether it is a check of arguments, which raises."""
    return func is Tensor.__bool__ and caller.startswith("torch.distributions")


def _makes_numbers(func: Any, args: Any, caller: str) -> bool:
    if _checks(func, caller):
        return False
    if func is Tensor.__getitem__:  # by a mask
        return any(_is_mask(t) for t in pytree.tree_leaves(args[1]))
    if func in (torch.repeat_interleave, Tensor.repeat_interleave):
        return any(isinstance(t, Tensor) for t in args[1:])
    return func in _NUMBERS or (func in (torch.where, Tensor.where) and len(args) == 1)


def _in_slices(func: Any, args: Any) -> list[Tensor]:
    """The tensors in the slices of an index."""
    if func not in _INDEXING:
        return []
    slices = [part for part in pytree.tree_leaves(args[1]) if isinstance(part, slice)]
    ends = [end for part in slices for end in (part.start, part.stop, part.step)]
    return [end for end in ends if isinstance(end, Tensor)]


class _Numbers(TorchDispatchMode):
    """Notes whether a function makes Python numbers of tensors, as it does of `alpha=t`."""

    made = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.made = self.made or func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def _may_write(func: Any, kwargs: Any) -> bool:
    if func in _DATA:  # what is written to that
        return True
    name = getattr(func, "__name__", "")
    reads = name.startswith("__") and not name.startswith("__i") and name != "__setitem__"
    return not reads and (name.endswith("_") or "out" in kwargs)


def _is_mask(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


class Hooks(TorchFunctionMode):
    """Notes whether gradients of a tensor are given a hook."""

    given = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.given = self.given or func is Tensor.register_hook
        return func(*args, **(kwargs or {}))


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
        self._before: dict[int, tuple[int | None, Tensor | None]] = {}
        self._made_of: dict[int, frozenset[int]] = {}  # of results: which were found
        self._by_data: set[int] = set()  # read by `.data`, whose changes have a count of their own

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        in_slices = _in_slices(func, args)
        leaves = [*pytree.tree_leaves((args, kwargs)), *in_slices]
        for leaf in leaves:
            if isinstance(leaf, torch.Generator) and id(leaf) not in self._generators:
                self._generators[id(leaf)] = leaf, leaf.get_state()
        self.transforms = self.transforms or torch._C._are_functorch_transforms_active()
        given = [t for t in leaves if isinstance(t, Tensor) and not _is_wrapped(t)]
        with torch._C.DisableTorchFunction(), torch.no_grad():
            writes = _may_write(func, kwargs)
            for t in given:
                if id(t) not in self._inside and id(t) not in self.found:
                    self.found[id(t)] = t
                    self._before[id(t)] = _version(t), None
                parameter = t.is_leaf and t.requires_grad
                if id(t) in self._before and (writes or not (parameter or t.numel() > _LARGE)):
                    version, copy = self._before[id(t)]
                    if copy is None:
                        self._before[id(t)] = version, t.detach().clone()
        dependent = [t for t in given if id(t) in self._dependent]
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if dependent and _makes_numbers(func, args, caller):
            self.number = func.__name__
        # (A place that depends on them is no shape: that of one sample mixes them, as is tried.)
        may_be_numbers = not _checks(func, caller) and (func not in _INDEXING or in_slices)
        if may_be_numbers and any(not t.dim() for t in dependent):
            with _Numbers() as numbers:
                result = func(*args, **kwargs)
            self.number = func.__name__ if numbers.made else self.number
        else:
            result = func(*args, **kwargs)
        if func in _DATA:
            self._by_data |= {id(t) for t in given}
        sources = frozenset().union(
            *(self._made_of.get(id(t), (id(t),) if id(t) in self.found else ()) for t in given)
        )
        for t in pytree.tree_leaves(result):
            if isinstance(t, Tensor) and id(t) not in self.found:
                self._inside[id(t)] = t
                self._made_of[id(t)] = sources
                if dependent:
                    self._dependent.add(id(t))
        return result

    @property
    def by_data(self) -> bool:
        """Whether `.data` of any tensor was read, whose changes nobody counts."""
        return bool(self._by_data)

    def follows(self, old: Tensor, new: Tensor) -> bool:
        """Whether a tensor in another's place was computed from the arguments, or from that."""
        return id(new) in self._dependent or id(old) in self._made_of.get(id(new), ())

    def restore(self) -> bool:
        """Undoes what was changed of them; whether anything was.

        Of parameters, and of large tensors that no function seemed to write to, only whether.
        """
        changed = False
        with torch.no_grad():
            for key, (version, copy) in self._before.items():
                t = self.found[key]
                same = copy is None or (t.shape == copy.shape and torch.equal(t, copy))
                counts = version is not None and key not in self._by_data
                if _version(t) == version and (counts or same):
                    continue
                changed = True
                if copy is not None and not same:
                    (t.data if key in self._by_data else t).copy_(copy)
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

"""What a step does, found out by calling it for one time step before it is walked in windows.

B samples.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from bppsa_lightning.steps.engine import Step
from bppsa_lightning.windows.cut import Leaves

MIXES = "it mixes samples"

# How far results of other samples beside them may move a sample's: of its dtype's spacing.
_SPACINGS = 64


class Probe:
    """One call of a step.

    Args:
        step: as it is walked. in_python: without what torch.compile made of it.
        state, x: of the first time step.

    Attributes:
        reason: why the step cannot be walked in windows, for people; None if it can.
        repeats: whether a walk of it can be repeated for the backward.
        tensors: that it reads beside its arguments, and that require a gradient.
        constants: those that do not.

    Raises:
        TypeError, ValueError: it does not return (state, y) with a state like the one it was given.
    """

    def __init__(self, step: Step, in_python: Step, state: Any, x: Any) -> None:
        own = pytree.tree_map(_copy, (state, x))
        leaves, tree = pytree.tree_flatten(state)
        outside = _Outside(pytree.tree_leaves(own))
        oldest = _newest_node()
        with _same_random_numbers(leaves):
            with outside:
                result = plain = in_python(*own)
            check_result(result, tree, leaves)
            changed = outside.restore()
            if step is not in_python:
                result = step(*pytree.tree_map(_copy, (state, x)))
                outside.restore()
            found = [t for t in outside.found.values() if t.requires_grad]
            unseen = _leaves_of_graph(result, found, oldest)
            self.tensors = found + (unseen or [])
            self.constants = [t for t in outside.found.values() if not t.requires_grad]
            self.reason = "it changes tensors of its own" if changed else None
            if unseen is None:
                self.reason = "it reads a tensor with a history that could not be found"
            self.reason = self.reason or self._unfit(result, leaves[0].shape[0])
            self.reason = self.reason or _mixes_samples(in_python, state, x, plain)
            self.repeats = self.reason in (None, MIXES)

    def _unfit(self, result: Any, B: int) -> str | None:
        if any(t._backward_hooks for t in self.tensors):
            return "a tensor that it reads has hooks"
        ys = [y for y in pytree.tree_leaves(result[1]) if y is not None]
        if not all(isinstance(y, Tensor) and y.dim() and y.shape[0] == B for y in ys):
            return "its y does not have the samples in dimension 0"
        return None


def check_result(result: Any, tree: Any, leaves: Leaves) -> None:
    """Raises the error that says what a step returned instead of (state, y)."""
    if not isinstance(result, tuple) or len(result) != 2:
        tuples = isinstance(result, tuple)
        found = f"a tuple of {len(result)}" if tuples else type(result).__name__
        raise TypeError(f"step: found {found} as its result, wanted (state, y)")
    after, after_tree = pytree.tree_flatten(result[0])
    if after_tree != tree or not all(isinstance(s, Tensor) for s in after):
        raise TypeError(f"step: found the state {after_tree} in its result, wanted {tree}, as init")
    for old, new in zip(leaves, after, strict=True):
        if old.shape != new.shape or (old.dtype != new.dtype and not _casts(old)):
            raise ValueError(
                f"step: found a state of {tuple(new.shape)}, {new.dtype} in its result, wanted "
                f"{tuple(old.shape)}, {old.dtype}, as init"
            )


def _casts(t: Tensor) -> bool:
    return torch.is_autocast_enabled(t.device.type)


def _mixes_samples(step: Step, state: Any, x: Any, result: Any) -> str | None:
    """Why a step is not one for each sample by itself, as far as two more calls show; or None."""
    with torch.no_grad():
        again = step(*pytree.tree_map(_copy, (state, x)))
        # With other samples beside these.
        beside = step(*pytree.tree_map(lambda t: torch.cat([t, _other(t)]).detach(), (state, x)))
    first, second, larger = map(_tensors_of, (result, again, beside))
    for a, b in zip(first, second, strict=True):
        if not torch.equal(a.nan_to_num(), b.nan_to_num()):
            return "it draws random numbers, which depend on the order of the steps"
    for a, b in zip(first, larger, strict=True):
        B = a.shape[0]
        if b.shape[0] != 2 * B or not _close(a, b[:B]):
            return MIXES
    return None


def _tensors_of(result: Any) -> list[Tensor]:
    return [t.detach() for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]


def _copy(t: Tensor) -> Tensor:
    return t.detach().clone()


def _newest_node() -> int:
    """The number of autograd's next node in this thread."""
    with torch.inference_mode(False), torch.enable_grad():
        node = torch.zeros((), requires_grad=True).exp().grad_fn
    assert node is not None
    return int(node._sequence_nr())


def _other(t: Tensor) -> Tensor:
    return (2 * t + 1 if t.is_floating_point() else t).flip(0)


def _close(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    near = _SPACINGS * torch.finfo(a.dtype).eps
    scale = float(a.abs().nan_to_num(0.0, 0.0, 0.0).max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=near, atol=near * scale, equal_nan=True)


@contextmanager
def _same_random_numbers(leaves: Leaves) -> Iterator[None]:
    """Leaves the generators as they were."""
    devices = {t.device.index or 0 for t in leaves if t.is_cuda}
    with torch.random.fork_rng(sorted(devices)):
        yield


class _Outside(TorchFunctionMode):
    """Collects the tensors that functions are given and that none of them returned."""

    def __init__(self, arguments: Leaves) -> None:
        super().__init__()
        self._inside = {id(t): t for t in arguments}  # (which keeps them, and their numbers)
        self.found: dict[int, Tensor] = {}
        self._before: dict[int, tuple[int, Tensor]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunction(), torch.no_grad():
            for t in pytree.tree_leaves((args, kwargs)):
                if isinstance(t, Tensor) and id(t) not in self._inside and id(t) not in self.found:
                    self.found[id(t)] = t
                    if not t.requires_grad:
                        self._before[id(t)] = t._version, t.clone()
        result = func(*args, **kwargs)
        for t in pytree.tree_leaves(result):
            if isinstance(t, Tensor) and id(t) not in self.found:
                self._inside[id(t)] = t
        return result

    def restore(self) -> bool:
        """Undoes what was changed of them; whether anything was."""
        changed = False
        for key, (version, copy) in self._before.items():
            t = self.found[key]
            if t._version != version:
                with torch.no_grad():
                    t.copy_(copy)
                changed = True
        return changed


def _leaves_of_graph(result: Any, found: Sequence[Tensor], first: int) -> list[Tensor] | None:
    """The leaves that results depend on and that are not in `found`.

    None if they depend on something older than `first` (a number of autograd's nodes) that is no
    leaf and not in `found`.
    """
    known = {t.grad_fn for t in found if t.grad_fn is not None}
    have, unseen = {id(t) for t in found}, []
    waiting = [t.grad_fn for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]
    visited = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in visited or node in known:
            continue
        visited.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            if id(variable) not in have:
                unseen.append(variable)
                have.add(id(variable))
        elif node._sequence_nr() < first:
            return None
        waiting += [following for following, _ in node.next_functions]
    return unseen

"""What a step does, found out by calling it for one time step before it is walked in windows.

B samples.
"""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from threading import RLock
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from bppsa_lightning.steps.engine import Step
from bppsa_lightning.steps.randomness import Generators
from bppsa_lightning.steps.trees import Tree, flatten, mapped
from bppsa_lightning.steps.variables import Variables
from bppsa_lightning.steps.watch import Hooks, Watch
from bppsa_lightning.windows import forget_casts
from bppsa_lightning.windows.cut import Leaves

MIXES = "it mixes samples, or tells them apart by their place"
_DRAWS = "it draws random numbers, which depend on the order of the steps"

# The steps that a probe is given: the last one starts from a state that a walk comes to, in which
# there is more to be seen than in the zeros of a first one.
STEPS = 3

# How far results of other samples beside them may move a sample's: of its dtype's spacing.
_SPACINGS = 64


# Held for a probe, which undoes what its calls change, whoever has changed it.
_probing = RLock()


def _nobody_probes() -> None:
    """A process that forks leaves its other threads behind, and with them what they held."""
    global _probing
    _probing = RLock()


os.register_at_fork(after_in_child=_nobody_probes)


class Probe:
    """A few calls of a step.

    Args:
        step: as it is walked. in_python: without what torch.compile made of it.
        state: the first one.
        xs: of the first time steps, up to `STEPS`.

    Attributes:
        reason: why the step cannot be walked in windows, for people; None if it can.
        repeats: whether a walk of it can be repeated for the backward.
        tensors: that it reads beside its arguments, and that require a gradient.
        constants: those that do not.
        detached: of the leaves of y, and of those of the state, which never require a gradient.
        writes: whether it changes its state in place, or may do so unseen.

    Raises:
        TypeError, ValueError: it does not return (state, y) with a state like the one it was given.
    """

    def __init__(self, step: Step, in_python: Step, state: Any, xs: Sequence[Any]) -> None:
        self.tensors: list[Tensor] = []
        self.constants: list[Tensor] = []
        self.detached: tuple[list[bool], list[bool]] = [], []
        self.writes = True
        with _probing:
            self._look(step, in_python, state, xs)
        self.repeats = self.reason in (None, MIXES)

    def _look(self, step: Step, in_python: Step, state: Any, xs: Sequence[Any]) -> None:
        leaves, tree = flatten(state)
        generators = Generators(leaves)
        try:
            result, self.reason = self._watched(in_python, state, xs[0], generators)
            if result is not None:
                check_result(result, tree, leaves)
            self.reason = self.reason or self._graph(step, in_python, state, xs[0])
            self.reason = self.reason or self._unfit(result, leaves[0].shape[0])
            if self.reason is None:
                others = _mixes_samples(in_python, result, xs), _twice_read(self.tensors)
                self.reason = next((r for r in others if r not in (None, MIXES)), others[0])
        finally:
            if generators.drew():
                generators.restore()

    def _watched(
        self, step: Step, state: Any, x: Any, generators: Generators
    ) -> tuple[Any, str | None]:
        """A call's result, and why it is not a function of its arguments; what it did is undone."""
        own = mapped(_copy, (state, x))
        variables, watch = Variables(step), Watch(flatten(own)[0])
        unseen = variables.unseen
        if parametrize._cache_enabled:
            unseen = "is within parametrize.cached(), whose weights have one graph"
        if unseen is not None:
            self.tensors = variables.parameters  # for `explain`: nothing is called
            return None, f"it {unseen}"
        result = reason = None
        try:
            with torch.no_grad(), watch:  # a history that it adds to a tensor could not be undone
                result = step(*own)
        except Exception as error:  # one of the step's own comes again, from the loop
            reason = f"it fails without a graph ({_words(error)})"
        self.writes = _are_written(flatten(own[0])[0]) or watch.by_data
        changed = watch.restore()
        drew = watch.restore_generators() or generators.drew()
        if variables.restore(watch.follows):
            reason = reason or "it changes variables of its own"
        elif changed:
            reason = reason or "it changes tensors of its own"
        elif _is_changed(own[1], x):
            reason = reason or "it changes its x, which is not there as it was a second time"
        elif watch.number is not None:
            reason = reason or f"it reads numbers of its arguments in Python, by {watch.number}"
        elif result is not None and _is_state_in_place(own[0], result):
            reason = reason or "its y is the state that it changes in place"
        elif watch.transforms:
            reason = reason or "it transforms functions by torch.func"
        elif drew:
            reason = reason or _DRAWS
        self.tensors = [t for t in watch.found.values() if t.requires_grad]
        others = (t for t in watch.found.values() if not t.requires_grad)
        self.constants = [t for t in others if not t.is_inference()]
        return result, reason

    def _graph(self, step: Step, in_python: Step, state: Any, x: Any) -> str | None:
        """Adds the leaves that only the graph shows; why that is not enough, or None."""
        forget_casts()  # which the call without a graph made
        oldest, hooks = _newest_node(), Hooks()
        # (A mode would have what torch.compile made compiled once more.)
        with hooks if step is in_python else nullcontext():
            result = step(*mapped(_copy, (state, x)))
        if hooks.given:
            return "it gives gradients hooks, which see each step's"
        unseen = _leaves_of_graph(result, self.tensors, oldest)
        if unseen is None:
            return "it reads a tensor with a history that could not be found"
        self.tensors += unseen
        if torch.is_grad_enabled() and not all(map(_is_in_graph, flatten(result)[0])):
            self._follow(in_python, state, x)
        return None

    def _follow(self, step: Step, state: Any, x: Any) -> None:
        """Sees what gradients of state and x reach, until one more step reaches no further."""
        leaves, tree = flatten(state)
        wanted = [t.requires_grad for t in leaves]
        while True:
            own = [_copy_in_graph(t, w) for t, w in zip(leaves, wanted, strict=True)]
            inputs = mapped(lambda t: _copy_in_graph(t, t.requires_grad), x)
            after, y = step(tree.unflatten(own), inputs)
            # (In the order of init; the keys of the step's own dict may have another.)
            reached = [_is_in_graph(t) for t in tree.leaves(after)]
            following = [a or b for a, b in zip(wanted, reached, strict=True)]
            if following == wanted:
                break
            wanted = following
        self.detached = [not _is_in_graph(t) for t in flatten(y)[0]], [not r for r in reached]

    def _unfit(self, result: Any, B: int) -> str | None:
        if any(t._backward_hooks for t in self.tensors):
            return "a tensor that it reads has hooks"
        ys = flatten(result[1])[0]
        if not all(isinstance(y, Tensor) and y.dim() and y.shape[0] == B for y in ys):
            return "its y does not have the samples in dimension 0"
        return None


def check_result(result: Any, tree: Tree, leaves: Leaves) -> None:
    """Raises the error that says what a step returned instead of (state, y)."""
    if not isinstance(result, tuple) or len(result) != 2:
        tuples = isinstance(result, tuple)
        found = f"a tuple of {len(result)}" if tuples else type(result).__name__
        raise TypeError(f"step: found {found} as its result, wanted (state, y)")
    after = tree.tensors(result[0], "the state", ", as init")
    for old, new in zip(leaves, after, strict=True):
        if old.shape != new.shape or (old.dtype != new.dtype and not _casts(old)):
            raise ValueError(
                f"step: found a state of {tuple(new.shape)}, {new.dtype} in its result, wanted "
                f"{tuple(old.shape)}, {old.dtype}, as init"
            )


def _casts(t: Tensor) -> bool:
    return torch.is_autocast_enabled(t.device.type)


def _mixes_samples(step: Step, result: Any, xs: Sequence[Any]) -> str | None:
    """Why a step is not one for each sample by itself, as far as a few more calls show; or None.

    Args:
        result: of the first time step.
    """
    earlier = state = result[0]
    with torch.no_grad():
        for x in xs[1:-1]:
            state = step(*mapped(_copy, (state, x)))[0]
        first, again = (step(*mapped(_copy, (state, xs[-1]))) for _ in range(2))
        others = flatten((earlier, xs[0]))[0]
        leaves, tree = flatten((state, xs[-1]))
        try:
            mixed = [_among_others(t, other) for t, other in zip(leaves, others, strict=True)]
            beside = step(*tree.unflatten(mixed))
        except Exception as error:  # whatever a step says to so many samples
            seen = _words(error)
            return f"it cannot take more samples ({seen}); what it reads of each belongs into xs"
    own, same, larger = map(_tensors_of, (first, again, beside))
    for a, b in zip(own, same, strict=True):
        if not torch.equal(a.nan_to_num(), b.nan_to_num()):
            return _DRAWS
    for a, b in zip(own, larger, strict=True):
        B = a.shape[0]
        if b.shape != (5 * B, *a.shape[1:]):
            return MIXES
        if not (_close(a, b[B : 2 * B]) and _close(a, b[3 * B : 4 * B])):
            return MIXES
    return None


def _words(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _tensors_of(result: Any) -> list[Tensor]:
    return [t.detach() for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]


def _copy(t: Tensor) -> Tensor:
    return t.detach().clone()


def _is_changed(copies: Any, originals: Any) -> bool:
    """Whether a step has written to its copies, of which nobody else knows."""

    def differs(a: Tensor, b: Tensor) -> bool:
        if a.is_inference():  # which counts no changes
            return not bool(((a == b) | (a.isnan() & b.isnan())).all())
        return a._version > 0

    return any(map(differs, flatten(copies)[0], flatten(originals)[0]))


def _is_state_in_place(state: Any, result: Any) -> bool:
    """Whether a step writes to its state, and gives that for y, too: the loop's ys are then one."""
    ys = [t for t in pytree.tree_leaves(result[1:]) if isinstance(t, Tensor)]
    memory = {y.untyped_storage().data_ptr() for y in ys}
    written = [s for s in flatten(state)[0] if not s.is_inference() and s._version > 0]
    return any(s.numel() and s.untyped_storage().data_ptr() in memory for s in written)


def _are_written(copies: Leaves) -> bool:
    return any(t.is_inference() or t._version > 0 for t in copies)


def _copy_in_graph(t: Tensor, wanted: bool) -> Tensor:
    """A copy that a step may change in place, also if it requires a gradient."""
    return _copy(t).requires_grad_().clone() if wanted else _copy(t)


def _is_in_graph(t: Any) -> bool:
    return isinstance(t, Tensor) and t.requires_grad


def _newest_node() -> int:
    """The number of autograd's next node in this thread."""
    with torch.inference_mode(False), torch.enable_grad():
        node = torch.zeros((), requires_grad=True).exp().grad_fn
    assert node is not None
    return int(node._sequence_nr())


def _among_others(t: Tensor, other: Tensor) -> Tensor:
    """The samples twice, behind, between and before others, near and far, or of another step."""
    near = (2 * t + 1 if t.is_floating_point() else other).flip(0)
    far = 100 * near if t.is_floating_point() else near
    return torch.cat([near, t, far, t, near]).detach()


def _close(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    near = _SPACINGS * torch.finfo(a.dtype).eps
    scale = float(a.abs().nan_to_num(0.0, 0.0, 0.0).max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=near, atol=near * scale, equal_nan=True)


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


def _twice_read(tensors: Sequence[Tensor]) -> str | None:
    """Why gradients of some tensors would count ways twice; None if they would not."""
    nodes = {t.grad_fn for t in tensors if t.grad_fn is not None}
    leaves = {id(t) for t in tensors if t.is_leaf}
    waiting = [before for node in nodes for before, _ in node.next_functions]
    visited: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        if node in nodes or id(getattr(node, "variable", None)) in leaves:
            return "it reads a tensor and another that was computed from it"
        visited.add(node)
        waiting += [before for before, _ in node.next_functions]
    return None

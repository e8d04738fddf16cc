"""What a step does, found out by calling it for one time step before it is walked in windows.

B samples.
"""

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from bppsa_lightning.steps.engine import Step, nodes_of
from bppsa_lightning.steps.mixing import DRAWS, MIXES, copy, mixes_samples, words
from bppsa_lightning.steps.places import Places, alone
from bppsa_lightning.steps.randomness import Draws, Generators, Kinds
from bppsa_lightning.steps.trees import Tree, flatten, mapped
from bppsa_lightning.steps.variables import Variables
from bppsa_lightning.steps.watch import Hooks, Watch
from bppsa_lightning.windows import forget_casts
from bppsa_lightning.windows.cut import Leaves

_REENTRANT = "it calls a checkpoint with use_reentrant=True, which torch.autograd.grad cannot use"

# The steps that a probe is given: the last one starts from a state that a walk comes to, in which
# there is more to be seen than in the zeros of a first one.
STEPS = 3


class Probe:
    """A few calls of a step.

    Args:
        step: as it is walked. in_python: without what torch.compile made of it.
        state: the first one.
        xs: of the first time steps, up to `STEPS`.
        inputs: the leaves of those of all time steps, (T, B, ...) each.

    Attributes:
        reason: why the step cannot be walked in windows, for people; None if it can.
        repeats: whether a walk of it can be repeated for the backward.
        tensors: that it reads beside its arguments, and that require a gradient.
        reached: those of them that are in the graph behind its results.
        constants: those that do not.
        places: where it finds both.
        detached: of the leaves of y, and of those of the state, which never require a gradient.
        writes: whether it changes its state in place, or may do so unseen.

    Raises:
        TypeError, ValueError: it does not return (state, y) with a state like the one it was given.
    """

    def __init__(
        self, step: Step, in_python: Step, state: Any, xs: Sequence[Any], inputs: Leaves
    ) -> None:
        self.tensors: list[Tensor] = []
        self.reached: list[Tensor] = []
        self.constants: list[Tensor] = []
        self.places = Places()
        self.detached: tuple[list[bool], list[bool]] = [], []
        self.writes = True
        self._called, self._drawn = False, Kinds()
        with alone():
            self._look(step, in_python, state, xs, inputs)
        self.repeats = self.reason in (None, MIXES)

    def _look(
        self, step: Step, in_python: Step, state: Any, xs: Sequence[Any], inputs: Leaves
    ) -> None:
        leaves, tree = flatten(state)
        generators, variables = Generators(leaves), Variables(in_python)
        try:
            result, self.reason = self._watched(in_python, state, xs[0], generators, variables)
            if result is not None:
                check_result(result, tree, leaves)
            self.reason = self.reason or self._graph(step, in_python, state, xs[0])
            self.reason = self.reason or self._unfit(result, leaves[0].shape[0])
            if self.reason is None:
                others = mixes_samples(in_python, result, xs, inputs), _twice_read(self.tensors)
                self.reason = next((r for r in others if r not in (None, MIXES)), others[0])
        finally:
            self._look_for_draws(generators, in_python, state, xs[0])
            generators.restore(self._drawn)
        self.places = Places(variables.places_of([*self.tensors, *self.constants]))

    def _watched(
        self, step: Step, state: Any, x: Any, generators: Generators, variables: Variables
    ) -> tuple[Any, str | None]:
        """A call's result, and why it is not a function of its arguments; what it did is undone."""
        own = mapped(copy, (state, x))
        watch = Watch(flatten(own)[0])
        unseen = variables.unseen
        if parametrize._cache_enabled:
            unseen = "is within parametrize.cached(), whose weights have one graph"
        if unseen is not None:
            self.tensors = variables.parameters  # for `explain`: nothing is called
            return None, f"it {unseen}"
        result = reason = None
        self._called = True
        try:
            with torch.no_grad(), watch:  # a history that it adds to a tensor could not be undone
                result = step(*own)
        except Exception as error:  # one of the step's own comes again, from the loop
            reason = f"it fails without a graph ({words(error)})"
        self.writes = _are_written(flatten(own[0])[0]) or watch.by_data
        changed = watch.restore()
        own_drew = watch.restore_generators()
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
        elif own_drew or any(self._look_for_draws(generators, step, state, x)):
            reason = reason or DRAWS
        self.tensors = [t for t in watch.found.values() if t.requires_grad]
        others = (t for t in watch.found.values() if not t.requires_grad)
        self.constants = [t for t in others if not t.is_inference()]
        return result, reason

    def _look_for_draws(self, generators: Generators, step: Step, state: Any, x: Any) -> Kinds:
        """Whether it was the step that drew random numbers: by one more call, if anybody has."""
        if self._called and any(generators.moved()) and not any(self._drawn):
            own = mapped(copy, (state, x))
            before, variables = Generators(flatten(state)[0]), Variables(step)
            watch, draws = Watch(flatten(own)[0]), Draws()
            with suppress(Exception), torch.no_grad(), watch, draws:
                step(*own)
            watch.restore()
            watch.restore_generators()
            variables.restore(watch.follows)
            self._drawn = Kinds(draws.seen, before.moved().others)
        return self._drawn

    def _graph(self, step: Step, in_python: Step, state: Any, x: Any) -> str | None:
        """Adds the leaves that only the graph shows; why that is not enough, or None."""
        forget_casts()  # which the call without a graph made
        oldest, hooks = _newest_node(), Hooks()
        # (A mode would have what torch.compile made compiled once more.)
        with hooks if step is in_python else nullcontext():
            result = step(*mapped(copy, (state, x)))
        if hooks.given:
            return "it gives gradients hooks, which see each step's"
        self.reached, reason = _read_in_graph(result, self.tensors, oldest)
        if reason is not None:
            return reason
        known = {id(t) for t in self.tensors}
        self.tensors += [t for t in self.reached if id(t) not in known]
        if torch.is_grad_enabled() and not all(map(_is_in_graph, flatten(result)[0])):
            return self._follow(in_python, state, x)
        return None

    def _follow(self, step: Step, state: Any, x: Any) -> str | None:
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
        is_reentrant = any(map(_is_reentrant, nodes_of(_tensors_in_graph((after, y)))))
        return _REENTRANT if is_reentrant else None

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
    return copy(t).requires_grad_().clone() if wanted else copy(t)


def _is_in_graph(t: Any) -> bool:
    return isinstance(t, Tensor) and t.requires_grad


def _tensors_in_graph(result: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(result) if _is_in_graph(t)]


def _is_reentrant(node: Any) -> bool:
    return bool(node.name() == "CheckpointFunctionBackward")


def _newest_node() -> int:
    """The number of autograd's next node in this thread."""
    with torch.inference_mode(False), torch.enable_grad():
        node = torch.zeros((), requires_grad=True).exp().grad_fn
    assert node is not None
    return int(node._sequence_nr())


def _read_in_graph(
    result: Any, found: Sequence[Tensor], first: int
) -> tuple[list[Tensor], str | None]:
    """The tensors that results depend on: of `found`, and other leaves; and why not all are known.

    Args:
        first: a number of autograd's nodes. Results must not depend on an older one, but by what
            is in `found`.
    """
    known = {t.grad_fn: t for t in found if t.grad_fn is not None}
    reached: dict[int, Tensor] = {}
    waiting = [t.grad_fn for t in pytree.tree_leaves(result) if isinstance(t, Tensor)]
    visited = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        read = known[node] if node in known else getattr(node, "variable", None)
        if read is not None:
            reached[id(read)] = read
            continue
        if node._sequence_nr() < first:
            return [], "it reads a tensor with a history that could not be found"
        if _is_reentrant(node):
            return [], _REENTRANT
        waiting += [following for following, _ in node.next_functions]
    return list(reached.values()), None


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

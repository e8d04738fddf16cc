"""A step written in Python as an engine: a loop over time.

B samples. A step takes (state, x) and returns (state, y), trees of tensors with the samples in
dimension 0.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from bppsa_lightning.steps.places import Places
from bppsa_lightning.steps.trees import Tree, flatten, mapped
from bppsa_lightning.windows.cut import Leaves
from bppsa_lightning.windows.engine import Engine, Walk

Step = Callable[[Any, Any], tuple[Any, Any]]

# What one multiply-add takes of the time that Python and PyTorch need to start a step's operations:
# a step of a cell starts some twenty of them, a hundred microseconds in all.
_MULTIPLY_ADDS_A_STEP = {"cpu": 5e6, "cuda": 5e8}

# Rows beyond which caches, not multiply-adds, are what a step waits for.
_MOST_ROWS = {"cpu": 512.0, "cuda": 16384.0}


class StepEngine(Engine):
    """A loop over a step.

    Args:
        step: (state, x) -> (state, y).
        state_tree, x_tree: how the leaves of states and of inputs are put together.
        tensors, constants: that the step reads beside its arguments, where gradients are wanted,
            and where none are.
        in_python: the step without what torch.compile made of it.
        detached: as of `Engine`.
        writes: whether the step may change its state in place.
        reached: of `tensors`, those in the graph behind what the step returns.
        places: where the step finds what it reads.

    Attributes:
        y_tree: of the last call.
    """

    may_fail = True

    def __init__(
        self,
        step: Step,
        state_tree: Tree,
        x_tree: Tree,
        tensors: Sequence[Tensor] = (),
        in_python: Step | None = None,
        constants: Sequence[Tensor] = (),
        detached: tuple[Sequence[bool], Sequence[bool]] = ((), ()),
        writes: bool = True,
        reached: Sequence[Tensor] = (),
        places: Places | None = None,
    ) -> None:
        self._reached, self._places = {id(t) for t in reached}, places or Places()
        self.detached, self.writes = detached, writes
        self.step, self._in_python = step, in_python or step
        self.tensors, self.constants = tensors, constants
        self.state_tree, self.x_tree = state_tree, x_tree
        self.y_tree = Tree(pytree.tree_structure(None), [False])
        work = sum(t.numel() for t in tensors if t.dim() > 1)
        kind = tensors[0].device.type if tensors else "cpu"
        self.rows_for_twice = min(
            _MULTIPLY_ADDS_A_STEP.get(kind, 5e6) / max(work, 1), _MOST_ROWS.get(kind, 512.0)
        )

    def __call__(self, xs: Leaves, state: Leaves) -> tuple[list[Tensor], list[Tensor]]:
        with self._places.as_they_were():
            return self._walk(self.step, xs, state)

    def check_walk(self, results: Leaves, unused: Sequence[Tensor]) -> None:
        unused = [t for t in unused if id(t) in self._reached]
        reached = nodes_of(results) if unused else set()
        for t in unused:
            if torch.autograd.graph.get_gradient_edge(t).node not in reached:
                raise RuntimeError(
                    "step: found that it reads other tensors in the backward, which calls it "
                    f"again, than in the forward (no longer one of {tuple(t.shape)}, {t.dtype}), "
                    "wanted the same ones"
                )

    def states_before(
        self, xs: Leaves, state: Leaves
    ) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
        """What a call returns, and the states before each step, (C, n, ...) each."""
        before: list[list[Tensor]] = []

        def step(carry: Any, x: Any) -> tuple[Any, Any]:
            before.append(self.state_tree.leaves(carry))
            return self.step(mapped(Tensor.clone, carry) if self.writes else carry, x)

        ys, last = self._walk(step, xs, state)
        return ys, last, [torch.stack(same) for same in zip(*before, strict=True)]

    def _walk(self, step: Step, xs: Leaves, state: Leaves) -> tuple[list[Tensor], list[Tensor]]:
        carry, ys = self.state_tree.unflatten(state), []
        if self.x_tree.is_leaf:
            for x in xs[0].unbind(0):
                carry, y = step(carry, x)
                ys.append(y)
        else:
            for parts in zip(*(x.unbind(0) for x in xs), strict=True):
                carry, y = step(carry, self.x_tree.unflatten(parts))
                ys.append(y)
        return self._stacked(ys), self.state_tree.tensors(carry, "the state", ", as init")

    def _stacked(self, ys: list[Any]) -> list[Tensor]:
        self.y_tree = flatten(ys[0])[1]
        each = [self.y_tree.tensors(y, "the y", " (B, ...), at every step") for y in ys]
        return [torch.stack(same) for same in zip(*each, strict=True)]

    def in_dtype(self, dtype: torch.dtype) -> Walk:
        def walk(xs: Leaves, state: Leaves) -> tuple[list[Tensor], list[Tensor]]:
            kind = state[0].device.type
            with torch.no_grad(), torch.autocast(kind, enabled=False), _InDtype(dtype):
                return self._walk(self._in_python, xs, state)

        return walk


def nodes_of(results: Sequence[Tensor]) -> set[Any]:
    """Of the graph behind results."""
    seen, waiting = set(), [t.grad_fn for t in results]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return seen


_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class _InDtype(TorchFunctionMode):
    """Every floating-point tensor that a function is given, or makes of none, as one dtype."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self._parameters: dict[int, tuple[Tensor, Tensor]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args, kwargs = pytree.tree_map_only(Tensor, self._converted, (args, kwargs or {}))
        result = func(*args, **kwargs)
        if any(isinstance(t, Tensor) for t in pytree.tree_leaves((args, kwargs))):
            return result
        return pytree.tree_map_only(Tensor, self._converted, result)  # which may be written to

    def _converted(self, t: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            if t.dtype == self._dtype or t.dtype not in _FLOATS:
                return t
            if not t.requires_grad:
                return t.to(self._dtype)
            if id(t) not in self._parameters:  # the same ones in each step
                self._parameters[id(t)] = t, t.to(self._dtype)
            return self._parameters[id(t)][1]

"""Trees of tensors, as steps take and return them: those of torch.utils._pytree, but None is an
empty tree, as in JAX, and the order of a dict's keys means nothing."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree


class Tree:
    """How the leaves of a tree are put together.

    Args:
        spec: of all its leaves, None among them.
        there: of each, whether it is something.
    """

    def __init__(self, spec: pytree.TreeSpec, there: Sequence[bool]) -> None:
        self._spec, self._there = spec, tuple(there)
        self._whole = all(there)
        self.is_leaf = self._whole and spec.is_leaf()

    def __str__(self) -> str:
        return shown(self.unflatten([_Word("tensor")] * sum(self._there)))

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The tree of these leaves."""
        if self._whole:
            return pytree.tree_unflatten(leaves, self._spec)
        left = iter(leaves)
        parts = [next(left) if there else None for there in self._there]
        return pytree.tree_unflatten(parts, self._spec)

    def leaves(self, tree: Any) -> list[Any]:
        """The leaves of a tree of this form, in this one's order.

        Raises:
            ValueError: it has another form.
        """
        leaves = self._spec.flatten_up_to(tree)
        if tuple(leaf is not None for leaf in leaves) != self._there:
            raise ValueError("None in other places")
        return leaves if self._whole else [leaf for leaf in leaves if leaf is not None]

    def tensors(self, tree: Any, what: str, whose: str) -> list[Tensor]:
        """`leaves`, of what a step returned.

        Raises:
            TypeError: it has another form, or other leaves than tensors; the message calls it
                `what`, and says where the form is from.
        """
        try:
            leaves = self.leaves(tree)
        except ValueError:
            leaves = [None]
        if not all(isinstance(leaf, Tensor) for leaf in leaves):
            raise TypeError(f"step: found {what} {shown(tree)} in its result, wanted {self}{whose}")
        return leaves


def flatten(tree: Any) -> tuple[list[Any], Tree]:
    """The leaves that are there, and how they are put together."""
    leaves, spec = pytree.tree_flatten(tree)
    there = [leaf is not None for leaf in leaves]
    return [leaf for leaf in leaves if leaf is not None], Tree(spec, there)


def mapped(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """The tree of what a function makes of the tensors of one."""
    return pytree.tree_map_only(Tensor, function, tree)


class _Word(str):
    """One that is shown without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def shown(tree: Any) -> str:
    """A tree for people: types in place of what lies in it."""

    def word(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, _Word):
            return leaf
        return _Word("tensor" if isinstance(leaf, Tensor) else type(leaf).__name__)

    return repr(pytree.tree_map(word, tree))

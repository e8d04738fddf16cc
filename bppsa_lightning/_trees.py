"""Lightning's two trees: `lightning.pytorch` and `pytorch_lightning` hold the same classes twice.

A Trainer of the one takes no strategy and no callback of the other, and nobody who uses one wants
the other imported. So a class here derives from stand-ins, ``stand_in("pytorch.Callback")``, and
is written once. An instance of it belongs to every tree that is imported by then: `in_trees` makes
the class of which it is one, with Lightning's own classes behind what was written.
"""

from __future__ import annotations

import copyreg
import importlib
import inspect
import sys
from abc import ABCMeta
from typing import Any, NamedTuple


class Tree(NamedTuple):
    """One of the packages that hold Lightning's classes: the names of its two parts."""

    pytorch: str
    fabric: str

    def find(self, path: str) -> Any:
        """What lies at a path: "pytorch.callbacks.Callback"; imports its module."""
        part, _, rest = path.partition(".")
        module, _, name = rest.rpartition(".")
        return getattr(importlib.import_module(f"{getattr(self, part)}.{module}".rstrip(".")), name)

    def holds(self, cls: type) -> bool:
        """Whether a class, or one that it derives from, is of this tree."""
        names = tuple(f"{part}." for part in self)
        return any(base.__module__.startswith(names) for base in cls.__mro__)


TREES = (
    Tree("lightning.pytorch", "lightning.fabric"),
    Tree("pytorch_lightning", "lightning_fabric"),
)


def imported(part: str = "pytorch") -> tuple[Tree, ...]:
    """The trees of which a part is imported, `lightning` first."""
    return tuple(tree for tree in TREES if getattr(tree, part) in sys.modules)


class OfEitherTree(ABCMeta):
    """Of classes that derive from stand-ins: they are the same classes, in whichever tree."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return type.__call__(in_trees(cls), *args, **kwargs)

    @property
    def __signature__(cls) -> inspect.Signature:
        signature = inspect.signature(cls.__init__)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    def __instancecheck__(cls, instance: Any) -> bool:
        return cls.__subclasscheck__(type(instance))

    def __subclasscheck__(cls, other: type) -> bool:
        path = cls.__dict__.get("_stands_for")
        if path is None:
            return cls.__dict__.get("_written", cls) in other.__mro__
        trees = imported(path.partition(".")[0])
        return cls in other.__mro__ or any(issubclass(other, tree.find(path)) for tree in trees)


def stand_in(path: str) -> Any:
    """An empty class to derive from in place of Lightning's own at a path, in whichever tree."""
    name = path.rpartition(".")[2]
    return OfEitherTree(name, (), {"_stands_for": path, "__module__": __name__})


def in_trees(cls: Any, trees: tuple[Tree, ...] | None = None) -> Any:
    """A class that derives from stand-ins, with Lightning's own classes behind it.

    Args:
        cls: such a class.
        trees: which, the first of them first. By default those that are imported; if none is, the
            first that is installed, which is imported then.

    Raises:
        ModuleNotFoundError: no tree is installed.
    """
    written = cls.__dict__.get("_written", cls)
    paths = [base.__dict__["_stands_for"] for base in cls.__mro__ if "_stands_for" in base.__dict__]
    if trees is None:
        part = paths[0].partition(".")[0]
        trees = imported(part) or (_installed(part),)
        if set(trees) <= set(cls.__dict__.get("_trees", ())):
            return cls
    known = written.__dict__.get("_in_trees")
    if known is None:
        known = written._in_trees = {}
    if trees not in known:
        known[trees] = _made(written, paths, trees)
    return known[trees]


def _made(written: Any, paths: list[str], trees: tuple[Tree, ...]) -> Any:
    """A new class: what was written, then Lightning's own."""
    bases = [written]
    for tree in trees:
        found = [tree.find(path) for path in paths]
        for own in found:
            derived = any(other is not own and issubclass(other, own) for other in found)
            if not derived and own not in written.__mro__:
                bases.append(own)
    if len(bases) == 1:
        return written
    package = __name__.partition(".")[0]
    ours = written.__module__.partition(".")[0] == package
    own = {
        "__module__": package if ours else written.__module__,  # where people find it
        "__qualname__": written.__qualname__,
        "__doc__": written.__doc__,
        "_written": written,
        "_trees": trees,
    }
    return OfEitherTree(written.__name__, tuple(bases), own)


def _installed(part: str) -> Tree:
    for tree in TREES:
        package = getattr(tree, part)
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            if error.name != package.partition(".")[0]:  # of something that it needs
                raise
        else:
            return tree
    raise ModuleNotFoundError(
        "neither `lightning` nor `pytorch_lightning` is installed: pip install lightning"
    )


def settle(instance: Any, owner: Any) -> None:
    """Puts that tree first which an object of a Trainer is of; its own classes call no others.

    Args:
        instance: of a class that derives from stand-ins; its class is changed.
        owner: the Trainer, or what it or Fabric brought.
    """
    trees: tuple[Tree, ...] = type(instance).__dict__.get("_trees", ())
    first = [tree for tree in trees if tree.holds(type(owner))]
    if first and trees[0] != first[0]:
        others = tuple(tree for tree in trees if tree != first[0])
        instance.__class__ = in_trees(type(instance), (first[0], *others))


class Settles:
    """For strategies: the first thing that a Trainer, or Fabric, gives one is its accelerator."""

    @property
    def accelerator(self) -> Any:
        return super().accelerator  # type: ignore[misc]

    @accelerator.setter
    def accelerator(self, accelerator: Any) -> None:
        settle(self, accelerator)
        inherited: Any = super(Settles, type(self)).accelerator  # type: ignore[misc]
        inherited.fset(self, accelerator)


def _reduced(cls: OfEitherTree) -> Any:
    """Pickles a class that was made here as what was written; any other by its name."""
    written = cls.__dict__.get("_written")
    return cls.__qualname__ if written is None else (in_trees, (written, cls.__dict__["_trees"]))


copyreg.pickle(OfEitherTree, _reduced)  # type: ignore[arg-type]

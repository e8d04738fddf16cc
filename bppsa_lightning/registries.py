"""The strategies' names in Lightning's registries, as soon as there are registries; and others'.

Nothing is imported for it: a registry that is not there yet is waited for.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from bppsa_lightning import chain_strategy, fabric, private, strategy
from bppsa_lightning._trees import TREES, Tree, in_trees
from bppsa_lightning.layerpipe import strategy as layerpipe
from bppsa_lightning.ops import flops


class _AfterImport(MetaPathFinder):
    """Calls a function with each of some modules, once that module has been imported."""

    def __init__(self, waiting: Mapping[str, Callable[[ModuleType], None]]) -> None:
        self._waiting = dict(waiting)

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders have, its loader told to call the function."""
        if name not in self._waiting:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            self._tell(spec.loader, name)
        return spec

    def _tell(self, loader: Any, name: str) -> None:
        """Makes a loader call the function of a module that it has executed."""
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            execute(module)
            then = self._waiting.pop(name, None)
            if then is not None:
                then(module)

        loader.exec_module = exec_module


def after_import(then: Mapping[str, Callable[[ModuleType], None]]) -> None:
    """Calls functions with modules: at once with those that are imported, else when they are.

    Args:
        then: dotted names of modules, and what to call with each.
    """
    waiting = {}
    for name, call in then.items():
        if name in sys.modules:
            call(sys.modules[name])
        else:
            waiting[name] = call
    if waiting:
        sys.meta_path.insert(0, _AfterImport(waiting))


_OF_TRAINERS = (
    ("layerpipe", layerpipe.LayerPipeStrategy, "LayerPipe: a pipeline of layers"),
    ("bppsa_chain", chain_strategy.BPPSAChainStrategy, "Time divided over a chain of processes"),
)

START_METHODS = (("", "popen"), ("_spawn", "spawn"), ("_fork", "fork"), ("_notebook", "fork"))


def register_strategies() -> None:
    """Registers "bppsa", "bppsa_ddp", "bppsa_chain" and "layerpipe"; two of them with Fabric."""
    then = {}
    for tree in TREES:
        for package, ours in ((tree.pytorch, strategy), (tree.fabric, fabric)):
            classes = ours.BPPSAStrategy, ours.BPPSADDPStrategy
            then[f"{package}.strategies"] = partial(_register, tree, *classes)
    after_import(then)


def register_with_opacus() -> None:
    """Attached recurrent layers in Opacus: see `bppsa_lightning.private`."""
    after_import(
        {private.HOOKS: private.leave_out_attached, private.VALIDATORS: private.accept_attached}
    )


def register_flops() -> None:
    """The operators' formulas in PyTorch's counter: see `bppsa_lightning.ops.flops`."""
    after_import({flops.COUNTER: flops.register})


def _register(tree: Tree, one: Any, several: Any, strategies: ModuleType) -> None:
    """Registers the classes of a tree, by the names that Lightning gives its own."""
    trainers = hasattr(strategies, "StrategyRegistry")
    registry = strategies.StrategyRegistry if trainers else strategies.STRATEGY_REGISTRY
    one, several = (in_trees(cls, (tree,)) for cls in (one, several))
    about = "Back-propagation by parallel scan"
    registry.register("bppsa", one, description=about, override=True)
    for suffix, start_method in START_METHODS:
        for name, cls, what in _OF_TRAINERS if trainers else ():
            registry.register(
                f"{name}{suffix}",
                in_trees(cls, (tree,)),
                description=f"{what}, a process for each device, `start_method` '{start_method}'",
                override=True,
                start_method=start_method,
            )
        for unused in (None, False, True):
            more = {} if unused is None else {"find_unused_parameters": unused}
            name = "".join(f"_{key}_{value}".lower() for key, value in more.items())
            registry.register(
                f"bppsa_ddp{suffix}{name}",
                several,
                description=f"{about}, a process for each device, `start_method` '{start_method}'",
                override=True,
                start_method=start_method,
                **more,
            )

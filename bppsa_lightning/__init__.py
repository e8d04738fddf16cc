"""Exact back-propagation by parallel scan: ``Trainer(strategy="bppsa")``.

Importing this package registers the strategies with `lightning.pytorch` and `pytorch_lightning`
(and with their Fabric), whichever is there, now or later; it imports neither. In the process of the
command line it does so when a name of it is asked for (`_command`).
"""

import sys as _sys
from importlib.metadata import version as _version
from typing import TYPE_CHECKING
from typing import Any as _Any

from bppsa_lightning import _command

if TYPE_CHECKING or not _command.waiting:
    from bppsa_lightning import chain_strategy as _chain_strategy
    from bppsa_lightning import fabric, jacobians, nn, ops, reference
    from bppsa_lightning import strategy as _strategy
    from bppsa_lightning._forked import work_alone_after_fork as _work_alone_after_fork
    from bppsa_lightning._trees import in_trees as _in_trees
    from bppsa_lightning.attach import attach, detach
    from bppsa_lightning.calibration import calibrate
    from bppsa_lightning.callbacks import attach as _attach_callback
    from bppsa_lightning.callbacks import chain_monitor as _chain_monitor
    from bppsa_lightning.callbacks import pruning as _pruning
    from bppsa_lightning.callbacks import run_report as _run_report
    from bppsa_lightning.callbacks import step_timer as _step_timer
    from bppsa_lightning.chain import Chain
    from bppsa_lightning.explain import explain
    from bppsa_lightning.layerpipe import strategy as _layerpipe
    from bppsa_lightning.planner import Plan
    from bppsa_lightning.registries import register_flops as _register_flops
    from bppsa_lightning.registries import register_strategies as _register_strategies
    from bppsa_lightning.registries import register_with_opacus as _register_with_opacus
    from bppsa_lightning.steps.scan import scan

if TYPE_CHECKING:
    from bppsa_lightning.callbacks.attach import Attach
    from bppsa_lightning.callbacks.chain_monitor import ChainMonitor
    from bppsa_lightning.callbacks.pruning import SparseJacobianPruning
    from bppsa_lightning.callbacks.run_report import RunReport
    from bppsa_lightning.callbacks.step_timer import StepTimer
    from bppsa_lightning.chain_strategy import BPPSAChainStrategy
    from bppsa_lightning.layerpipe.strategy import LayerPipeStrategy
    from bppsa_lightning.strategy import BPPSADDPStrategy, BPPSAStrategy

__all__ = [
    "Attach",
    "BPPSAChainStrategy",
    "BPPSADDPStrategy",
    "BPPSAStrategy",
    "Chain",
    "ChainMonitor",
    "LayerPipeStrategy",
    "Plan",
    "RunReport",
    "SparseJacobianPruning",
    "StepTimer",
    "attach",
    "calibrate",
    "detach",
    "explain",
    "fabric",
    "jacobians",
    "nn",
    "ops",
    "reference",
    "scan",
]

_OF_LIGHTNING: dict[str, _Any] = {}

if TYPE_CHECKING or not _command.waiting:
    __version__ = _version("bppsa-lightning")

    _OF_LIGHTNING = {
        "Attach": _attach_callback,
        "BPPSAChainStrategy": _chain_strategy,
        "BPPSADDPStrategy": _strategy,
        "BPPSAStrategy": _strategy,
        "ChainMonitor": _chain_monitor,
        "LayerPipeStrategy": _layerpipe,
        "RunReport": _run_report,
        "SparseJacobianPruning": _pruning,
        "StepTimer": _step_timer,
    }

    _register_strategies()
    _register_with_opacus()
    _register_flops()
    _work_alone_after_fork()


def __getattr__(name: str) -> _Any:
    """The classes that derive from Lightning's: in the trees that are imported by now."""
    if _command.waiting and name in __all__:
        _command.load()
        return getattr(_sys.modules[__name__], name)
    if name not in _OF_LIGHTNING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _in_trees(getattr(_OF_LIGHTNING[name], name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

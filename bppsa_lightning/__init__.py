"""Exact back-propagation by parallel scan: ``Trainer(strategy="bppsa")``.

Importing this package registers the strategies with `lightning.pytorch`.
"""

from importlib.metadata import version as _version

from bppsa_lightning import jacobians, ops, reference
from bppsa_lightning.attach import attach, detach
from bppsa_lightning.calibration import calibrate
from bppsa_lightning.callbacks.chain_monitor import ChainMonitor
from bppsa_lightning.callbacks.pruning import SparseJacobianPruning
from bppsa_lightning.callbacks.step_timer import StepTimer
from bppsa_lightning.chain import Chain
from bppsa_lightning.explain import explain
from bppsa_lightning.planner import Plan
from bppsa_lightning.strategy import BPPSADDPStrategy, BPPSAStrategy

__version__ = _version("bppsa-lightning")

__all__ = [
    "BPPSADDPStrategy",
    "BPPSAStrategy",
    "Chain",
    "ChainMonitor",
    "Plan",
    "SparseJacobianPruning",
    "StepTimer",
    "attach",
    "calibrate",
    "detach",
    "explain",
    "jacobians",
    "ops",
    "reference",
]

"""Chooses the scan algorithm of a chain from a cost model, and says why."""

from bppsa_lightning.planner.dense import MAX_CHUNK, Machine, choose, estimate, machine
from bppsa_lightning.planner.diagonal import (
    DiagonalMachine,
    choose_diagonal,
    diagonal_machine,
    estimate_diagonal,
)
from bppsa_lightning.planner.plan import ALGORITHMS, Plan, check_algorithm, max_levels
from bppsa_lightning.planner.recurrent import (
    choose_recurrent,
    hand_over,
    keep,
    recurrent_architectures,
)

__all__ = [
    "ALGORITHMS",
    "MAX_CHUNK",
    "DiagonalMachine",
    "Machine",
    "Plan",
    "check_algorithm",
    "choose",
    "choose_diagonal",
    "choose_recurrent",
    "diagonal_machine",
    "estimate",
    "estimate_diagonal",
    "hand_over",
    "keep",
    "machine",
    "max_levels",
    "recurrent_architectures",
]

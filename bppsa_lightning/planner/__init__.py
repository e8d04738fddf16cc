"""Chooses the scan algorithm of a chain from a cost model, and says why.

One `Request`, one `Plan`. What is measured is in tables/.
"""

from bppsa_lightning.planner.choose import costs_of_windows, plan, saved, windows_pay
from bppsa_lightning.planner.cost_dense import MAX_CHUNK
from bppsa_lightning.planner.cost_steps import measured_with_as_many_threads, step_seconds
from bppsa_lightning.planner.fallback import fallback_reason
from bppsa_lightning.planner.fallback_cuda import fallback_reason_when_compiled
from bppsa_lightning.planner.machine import crowded, suggestion
from bppsa_lightning.planner.plan import (
    ALGORITHMS,
    SPECULATIVE,
    Plan,
    Saved,
    check_algorithm,
    max_levels,
)
from bppsa_lightning.planner.request import DENSE, DIAGONAL, Request

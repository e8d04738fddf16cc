"""What a worker can be asked: to test a case, or to time a size. Both run in its process.

A runner is a module with `prepare` and `run`, as this one is. Tasks and what they return are
dictionaries that JSON can hold.
"""

from collections.abc import Callable
from typing import Any

import torch

from bppsa_lightning import ops
from bppsa_lightning.calibration.cuda import judge, layers, scans, timing
from bppsa_lightning.calibration.cuda.cases import Case
from bppsa_lightning.calibration.cuda.scans import ScanCase

Announce = Callable[[str], None]
Task = dict[str, Any]
RUNNER = __name__


def prepare(device: torch.device) -> None:
    """Does what a first use of a GPU takes long for."""
    torch.zeros(1, device=device)


def run(task: Task, device: torch.device, announce: Announce) -> dict[str, Any]:
    """The result of a task; `announce` is called with what it begins."""
    if "case" in task:
        return {"wrong": tested(Case(**task["case"]), device)}
    if "scan" in task:
        return {"wrong": scans.tested(ScanCase(**task["scan"]), device)}
    return timing.row(task["size"], task["plans"], task["seconds"], device, announce)


def tested(case: Case, device: torch.device) -> str | None:
    """What is wrong with the kernels in a case; None if nothing is."""
    wrong = _tested(case, device, 0)
    # By rounding a relu may be on its other side, and gradients be far off: not twice in a row.
    return _tested(case, device, 1) if wrong and case.cell == "rnn_relu" else wrong


def _tested(case: Case, device: torch.device, seed: int) -> str | None:
    operands, incoming = layers.drawn(case, seed)
    truth = layers.by_pytorch(case, operands, incoming, torch.float64)
    own = layers.by_pytorch(case, operands, incoming, getattr(torch, case.dtype))
    before = _untrusted(device)
    found, again = (layers.by_kernels(case, operands, incoming, device) for _ in range(2))
    wrong = judge.wrong(found, {n: truth[n] for n in found}, own) or judge.differs(found, again)
    # A wrong product may be walked around, and the results be right by luck. (One of relus that are
    # dead is zero, and rightly not trusted.)
    if wrong is None and case.cell != "rnn_relu" and _untrusted(device) != before:
        return "products of Jacobians that were found not to be trustworthy"
    return wrong


def _untrusted(device: torch.device) -> int:
    return ops.untrusted_products(device) if device.type == "cuda" else 0

"""Tests of the scans over given Jacobians, dense and diagonal.

PyTorch has none to compare with, or to fall back on: a scan that fails is reported, and nothing
else follows from it. Named "scan.<dense | diagonal>.<dtype>.<algorithm>".

T steps, B batch, H state.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from bppsa_lightning import ops, reference
from bppsa_lightning.calibration.cuda import judge
from bppsa_lightning.planner import kernels, max_levels

_DTYPES = ("float32", "float64", "bfloat16", "float16")
# T, B, H: one lane a row and several; either side of a tile; a panel more than one.
_SIZES = {"dense": [(13, 2, 1), (26, 3, 20), (9, 2, 33), (6, 1, 70)], "diagonal": [(70, 3, 37)]}


@dataclass(frozen=True)
class ScanCase:
    """One scan of either kind, and its gradient.

    Attributes:
        kind: "dense" or "diagonal". needs: nothing, as other cases have it.
        dtype, algorithm, T, B, H: of the scan.
    """

    kind: str
    dtype: str
    algorithm: str
    T: int
    B: int
    H: int
    needs: tuple[str, ...] = ()

    @property
    def kernel(self) -> str:
        return f"scan.{self.kind}.{self.dtype}.{self.algorithm}"

    @property
    def task(self) -> dict[str, Any]:
        """As tasks.py takes it."""
        return {"scan": asdict(self)}

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.algorithm} scan, {self.dtype}, T={self.T}, B={self.B}, H={self.H}"
        )


def of_gpu() -> Iterator[ScanCase]:
    """All cases."""
    for kind, sizes in _SIZES.items():
        for dtype in _DTYPES:
            for algorithm in kernels.BACKWARD:
                for size in sizes:
                    yield ScanCase(kind, dtype, algorithm, *size)


def tested(case: ScanCase, device: torch.device) -> str | None:
    """What is wrong with a scan and its gradient; None if nothing is."""
    dtype, generator = getattr(torch, case.dtype), torch.Generator().manual_seed(case.T + case.H)
    square = (case.H, case.H) if case.kind == "dense" else (case.H,)
    gain = 1 / math.sqrt(case.H) if case.kind == "dense" else 0.5
    maps = torch.randn(case.T, case.B, *square, generator=generator) * gain
    grad = torch.randn(case.T + 1, case.B, case.H, generator=generator)
    given = [t.to(dtype) for t in (maps, grad)]
    incoming = torch.randn(grad.shape, generator=generator).to(dtype)
    ours = ops.reverse_scan if case.kind == "dense" else ops.diagonal_scan
    stock = reference.reverse_scan if case.kind == "dense" else reference.diagonal_scan

    def results(
        scan: Any, on: torch.device, to: torch.dtype, *more: Any
    ) -> dict[str, torch.Tensor]:
        leaves = [t.to(on, to).requires_grad_() for t in given]
        g = scan(*leaves, *more)
        gradients = torch.autograd.grad(g, leaves, incoming.to(on, to))
        named = zip(("g", "grad_jacobians", "grad_grad"), (g.detach(), *gradients), strict=True)
        return {name: t.cpu() for name, t in named}

    cpu, levels = torch.device("cpu"), max_levels(case.T) if case.algorithm == "blelloch" else None
    truth, own = results(stock, cpu, torch.float64), results(stock, cpu, dtype)
    found, again = (results(ours, device, dtype, case.algorithm, levels) for _ in range(2))
    return judge.wrong(found, truth, own) or judge.differs(found, again)

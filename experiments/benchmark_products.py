"""Numeric sparse products by a fixed plan, against torch.sparse.mm and SciPy.

    python experiments/benchmark_products.py

The pair of transposed Jacobians of two 3x3 convolutions, 64 -> 128 and 128 -> 256 channels at
16 x 16, of which 3 % of the weights are left: 34 million multiply-adds into 27 million entries.
A round is one product of each, in turn; printed are medians, and the medians of the ratios of a
round (above 1: ours is faster). Torch and SciPy find the pattern anew each time; what our plan
costs once is printed apart. Writes experiments/records/benchmark_products.json.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import record
import torch

from bppsa_lightning import jacobians


def convolution(
    inputs: int, outputs: int, size: int, density: float
) -> tuple[jacobians.Pattern, torch.Tensor]:
    keep = torch.rand(outputs, inputs, 3, 3) < density
    jacobian = jacobians.conv2d_pattern(keep, (size, size), padding=1)
    return jacobian.pattern, jacobian.values(torch.randn(keep.shape))


def timed(call: Callable) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--size", type=int, default=16, help="height and width")
    parser.add_argument("--density", type=float, default=0.03)
    parser.add_argument("--no-record", action="store_true", help="print only")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    a, a_values = convolution(64, 128, arguments.size, arguments.density)
    b, b_values = convolution(128, 256, arguments.size, arguments.density)
    symbolic, plan = timed(lambda: jacobians.ProductPlan.of(a, b, budget=None))
    print(plan.describe())
    a_csr, b_csr = a.csr(a_values), b.csr(b_values)
    calls: dict[str, Callable] = {
        "ours": lambda: plan.multiply(a_values, b_values),
        "torch": lambda: torch.sparse.mm(a_csr, b_csr).values(),
    }
    try:
        import scipy.sparse
    except ImportError:
        print("SciPy is not installed: not measured")
    else:
        a_scipy, b_scipy = (
            scipy.sparse.csr_matrix((v.numpy(), p.col.numpy(), p.crow.numpy()), shape=p.shape)
            for p, v in ((a, a_values), (b, b_values))
        )
        calls["scipy"] = lambda: a_scipy @ b_scipy
    times: dict[str, list[float]] = {who: [] for who in calls}
    for _ in range(arguments.rounds + 1):
        for who, call in calls.items():
            times[who].append(timed(call)[0])
    times = {who: found[1:] for who, found in times.items()}  # the first one sets up
    results: dict[str, Any] = {
        "a": [*a.shape, a.nnz],
        "b": [*b.shape, b.nnz],
        "nnz": plan.pattern.nnz,
        "products": plan.products,
        "plan_bytes": plan.bytes,
        "positions": plan.positions.numel(),
        "symbolic_seconds": symbolic,
        "seconds": {who: median(found) for who, found in times.items()},
        "fastest_seconds": {who: min(found) for who, found in times.items()},
        "ratio": {
            who: median(t / ours for t, ours in zip(times[who], times["ours"], strict=True))
            for who in calls
            if who != "ours"
        },
        "rounds": arguments.rounds,
    }
    print(f"plan, once: {symbolic * 1e3:.0f} ms")
    for who, seconds in results["seconds"].items():
        ratio = f"  {results['ratio'][who]:.1f}x ours" if who in results["ratio"] else ""
        print(f"{who:6} {seconds * 1e3:7.1f} ms{ratio}")
    if not arguments.no_record:
        record.write(record.RECORDS / "benchmark_products.json", results)


if __name__ == "__main__":
    main()

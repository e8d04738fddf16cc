"""Numeric sparse products by a fixed plan, against torch.sparse.mm and SciPy.

    python experiments/benchmark_products.py
    python experiments/benchmark_products.py --device cuda

The pair of transposed Jacobians of two 3x3 convolutions, 64 -> 128 and 128 -> 256 channels at
16 x 16, of which 3 % of the weights are left: 34 million multiply-adds into 27 million entries.
A round is one product of each, in turn; printed are medians, and the medians of the ratios of a
round (above 1: ours is faster). Torch and SciPy find the pattern anew each time; what our plan
costs once, on the CPU, is printed apart. On a GPU (against cuSPARSE, through torch.sparse.mm) a
product starts on an idle device and is timed with CUDA events. Writes
experiments/records/benchmark_products.json, or benchmark_products_<name of the GPU>.json.
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


def timed(call: Callable, device: str = "cpu") -> tuple[float, Any]:
    """Seconds, and what the call returned."""
    if device == "cpu":
        begin = time.perf_counter()
        result = call()
        return time.perf_counter() - begin, result
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    result = call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3, result


def scipy_product(
    a: jacobians.Pattern, a_values: torch.Tensor, b: jacobians.Pattern, b_values: torch.Tensor
) -> Callable | None:
    """The product by SciPy, None where it is not installed."""
    try:
        import scipy.sparse
    except ImportError:
        print("SciPy is not installed: not measured")
        return None
    a_csr, b_csr = (
        scipy.sparse.csr_matrix((v.numpy(), p.col.numpy(), p.crow.numpy()), shape=p.shape)
        for p, v in ((a, a_values), (b, b_values))
    )
    return lambda: a_csr @ b_csr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
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
    device = arguments.device
    a_there, b_there = a_values.to(device), b_values.to(device)
    a_csr, b_csr = a.csr(a_there), b.csr(b_there)
    calls: dict[str, Callable] = {
        "ours": lambda: plan.multiply(a_there, b_there),
        "torch": lambda: torch.sparse.mm(a_csr, b_csr).values(),
    }
    by_scipy = scipy_product(a, a_values, b, b_values) if device == "cpu" else None
    if by_scipy is not None:
        calls["scipy"] = by_scipy
    times: dict[str, list[float]] = {who: [] for who in calls}
    for _ in range(arguments.rounds + 1):
        for who, call in calls.items():
            times[who].append(timed(call, device)[0])
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
        print(f"{who:6} {seconds * 1e3:8.2f} ms{ratio}")
    if not arguments.no_record:
        gpu = "" if device == "cpu" else f"_{torch.cuda.get_device_name()}"
        name = f"benchmark_products{gpu}.json".lower().replace(" ", "_")
        record.write(record.RECORDS / name, results)


if __name__ == "__main__":
    main()

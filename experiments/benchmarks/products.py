"""Numeric sparse products by a fixed plan, against torch.sparse.mm and SciPy.

    python -m experiments.benchmarks.products
    python -m experiments.benchmarks.products --device cuda

The pair of transposed Jacobians of two 3x3 convolutions, 64 -> 128 and 128 -> 256 channels at
16 x 16, of which 3 % of the weights are left: 34 million multiply-adds into 27 million entries.
A round is one product of each, in turn; printed are medians, and the medians of the ratios of a
round (above 1: ours is faster). Torch and SciPy find the pattern anew each time; what our plan
costs once, on the CPU, is printed apart. On a GPU (against cuSPARSE, through torch.sparse.mm) a
product starts on an idle device and is timed with CUDA events. Writes
benchmark_products.json, or benchmark_products_<name of the GPU>.json.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from bppsa_lightning import jacobians
from experiments import recording
from experiments.benchmarks import timing


def convolution(
    inputs: int, outputs: int, size: int, density: float
) -> tuple[jacobians.Pattern, torch.Tensor]:
    keep = torch.rand(outputs, inputs, 3, 3) < density
    jacobian = jacobians.conv2d_pattern(keep, (size, size), padding=1)
    return jacobian.pattern, jacobian.values(torch.randn(keep.shape))


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


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--size", type=int, default=16, help="height and width")
    parser.add_argument("--density", type=float, default=0.03)
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    torch.manual_seed(0)
    results = measure(asked.device, asked.size, asked.density, asked.rounds)
    print(f"plan, once: {results['symbolic_seconds'] * 1e3:.0f} ms")
    for who, seconds in results["seconds"].items():
        ratio = f"  {results['ratio'][who]:.1f}x ours" if who in results["ratio"] else ""
        print(f"{who:6} {seconds * 1e3:8.2f} ms{ratio}")
    gpu = "" if asked.device == "cpu" else f" {torch.cuda.get_device_name()}"
    path = recording.folder(asked.record) / (
        recording.file_name(f"benchmark_products{gpu}") + ".json"
    )
    recording.write(path, results)
    print(f"record: {path}")


def measure(device: str, size: int, density: float, rounds: int) -> dict[str, Any]:
    a, a_values = convolution(64, 128, size, density)
    b, b_values = convolution(128, 256, size, density)
    start = time.perf_counter()
    plan = jacobians.ProductPlan.of(a, b, budget=None)
    symbolic = time.perf_counter() - start
    print(plan.describe())
    a_there, b_there = a_values.to(device), b_values.to(device)
    a_csr, b_csr = a.csr(a_there), b.csr(b_there)
    calls: dict[str, Callable] = {
        "ours": lambda: plan.multiply(a_there, b_there),
        "torch": lambda: torch.sparse.mm(a_csr, b_csr).values(),
    }
    by_scipy = scipy_product(a, a_values, b, b_values) if device == "cpu" else None
    if by_scipy is not None:
        calls["scipy"] = by_scipy
    turns = timing.take_turns(
        {who: step_of(call, a_there.device) for who, call in calls.items()},
        seconds=0, most=rounds, least=rounds, shortest=1, unmeasured=0,
    )  # fmt: skip
    ratios = {who: timing.ratios(turns[who], turns["ours"])["product"] for who in calls}
    return {
        "a": [*a.shape, a.nnz],
        "b": [*b.shape, b.nnz],
        "nnz": plan.pattern.nnz,
        "products": plan.products,
        "plan_bytes": plan.bytes,
        "positions": plan.positions.numel(),
        "symbolic_seconds": symbolic,
        "seconds": {who: timing.medians(found)["product"] for who, found in turns.items()},
        "fastest_seconds": {who: min(f["product"] for f in found) for who, found in turns.items()},
        "ratio": {who: ratio for who, ratio in ratios.items() if who != "ours"},
        "rounds": rounds,
    }


def step_of(call: Callable, device: torch.device) -> timing.Step:
    return lambda: timing.timed(device, product=call)


if __name__ == "__main__":
    main()

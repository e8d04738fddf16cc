"""Pruned layers, sparse beside dense, by shape, batch and density: what the planner must know.

    python experiments/benchmark_sparse.py [--record]

Each row: median seconds of a forward and a backward of one layer under `torch.nn.utils.prune`, all
gradients, by the sparse kernels and by PyTorch's dense layer with the mask's product, in turns; and
the planner's estimates and choice. `--record` writes records/planner_sparse_cpu.json.
"""

import argparse
import time
from statistics import median
from typing import Any

import record
import torch
from torch import nn
from torch.nn.utils import prune

from bppsa_lightning.layers import SparseLayer, cost

# Channels in and out, image size (0: a linear layer), kernel.
LAYERS = [
    (3, 64, 32, 3),
    (64, 128, 16, 3),
    (128, 256, 8, 3),
    (256, 512, 4, 3),
    (512, 512, 2, 3),
    (64, 64, 16, 1),
    (512, 10, 0, 1),
    (1024, 1024, 0, 1),
]
BATCHES = (4, 32)
DENSITIES = (0.01, 0.03, 0.1, 0.2, 0.35, 0.5, 1.0)
TURNS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--record", action="store_true", help="keep results in experiments/records")
    keeps = parser.parse_args().record
    rows = []
    for shape in LAYERS:
        for B in BATCHES:
            for density in DENSITIES:
                rows.append(measure(*shape, B, density))
                print(line(rows[-1]), flush=True)
    if keeps:
        record.write(record.RECORDS / "planner_sparse_cpu.json", {"rows": rows})


def measure(C: int, O: int, H: int, K: int, B: int, density: float) -> dict[str, Any]:
    torch.manual_seed(0)
    steps = {}
    for kind in ("sparse", "dense"):
        module: Any = nn.Conv2d(C, O, K, padding=K // 2) if H else nn.Linear(C, O)
        mask = torch.rand_like(module.weight) < density
        prune.custom_from_mask(module, "weight", mask)
        layer = SparseLayer("", module)
        if kind == "sparse":
            chosen = cost.choose(layer.pattern, B, max(H, 1), max(H, 1))
            layer.attach()
        # As its neighbours would leave it: samples innermost between sparse layers.
        shape = (C, H, H, B) if H else (C, B)
        x = torch.randn(shape).movedim(-1, 0)
        x = x if kind == "sparse" else x.contiguous()
        steps[kind] = step_of(module, layer, x.requires_grad_(C > 3), kind == "sparse")
    for step in steps.values():
        step()
    turns: dict[str, list[float]] = {"sparse": [], "dense": []}
    for _ in range(TURNS):
        for kind, step in steps.items():
            turns[kind] += [step() for _ in range(4)][1:]
    return {
        **{"C": C, "O": O, "H": H, "K": K, "B": B, "density": density},
        **{kind: median(seconds) for kind, seconds in turns.items()},
        "sparse_estimated": chosen.sparse_seconds,
        "dense_estimated": chosen.dense_seconds,
        "sparse_chosen": chosen.sparse,
    }


def step_of(module: Any, layer: SparseLayer, x: torch.Tensor, sparse: bool) -> Any:
    output = module(x)
    if sparse and layer.plan is not None:  # measured whatever the planner says
        layer.plan = cost.Plan(True, 0.0, 0.0, "measured")
    gradient = torch.randn_like(output)

    def step() -> float:
        module.zero_grad()
        x.grad = None
        start = time.perf_counter()
        module(x).backward(gradient)
        return time.perf_counter() - start

    return step


def line(row: dict[str, Any]) -> str:
    size = f"{row['C']:>4} -> {row['O']:<4} {row['H']:>2}x{row['H']:<2} B={row['B']:<3}"
    times = f"sparse {row['sparse'] * 1e3:7.2f} ms, dense {row['dense'] * 1e3:7.2f} ms"
    choice = "sparse" if row["sparse_chosen"] else "dense"
    return (
        f"{size} {row['density']:5.2f}: {times}, {row['dense'] / row['sparse']:4.1f}x -> {choice}"
    )


if __name__ == "__main__":
    main()

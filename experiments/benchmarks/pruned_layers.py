"""Pruned layers, sparse beside dense, by shape, batch and density: what the planner must know.

    python -m experiments.benchmarks.pruned_layers

Each row: median seconds of a forward and a backward of one layer under `torch.nn.utils.prune`, all
gradients, by the sparse kernels and by PyTorch's dense layer with the mask's product, in turns; and
the planner's estimates and choice. Writes planner_sparse_cpu.json.
"""

import argparse
from typing import Any

import torch
from torch import nn
from torch.nn.utils import prune

from bppsa_lightning.planner import cost_pruned
from bppsa_lightning.pruned import SparseLayer
from bppsa_lightning.pruned.layer import request_of
from experiments import recording
from experiments.benchmarks import timing

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
TURNS, STEPS = 5, 3


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    rows = []
    for shape in LAYERS:
        for B in BATCHES:
            for density in DENSITIES:
                rows.append(measure(*shape, B, density))
                print(line(rows[-1]), flush=True)
    path = recording.folder(asked.record) / "planner_sparse_cpu.json"
    recording.write(path, {"rows": rows})
    print(f"record: {path}")


def measure(C: int, O: int, H: int, K: int, B: int, density: float) -> dict[str, Any]:
    torch.manual_seed(0)
    steps = {}
    for kind in ("sparse", "dense"):
        module: Any = nn.Conv2d(C, O, K, padding=K // 2) if H else nn.Linear(C, O)
        mask = torch.rand_like(module.weight) < density
        prune.custom_from_mask(module, "weight", mask)
        layer = SparseLayer("", module)
        if kind == "sparse":
            chosen = cost_pruned.choose(request_of(layer.pattern, B, max(H, 1), max(H, 1)))
            layer.attach()
        # As its neighbours would leave it: samples innermost between sparse layers.
        shape = (C, H, H, B) if H else (C, B)
        x = torch.randn(shape).movedim(-1, 0)
        x = x if kind == "sparse" else x.contiguous()
        steps[kind] = step_of(module, layer, x.requires_grad_(C > 3), kind == "sparse")
    turns = timing.take_turns(steps, seconds=0, most=TURNS, least=TURNS, shortest=STEPS)
    return {
        **{"C": C, "O": O, "H": H, "K": K, "B": B, "density": density},
        **{kind: timing.medians(taken)["both"] for kind, taken in turns.items()},
        "sparse_estimated": chosen.sparse_seconds,
        "dense_estimated": chosen.dense_seconds,
        "sparse_chosen": chosen.sparse,
    }


def step_of(module: Any, layer: SparseLayer, x: torch.Tensor, sparse: bool) -> timing.Step:
    output = module(x)
    if sparse and layer.plan is not None:  # measured whatever the planner says
        layer.plan = cost_pruned.PrunedPlan(True, 0.0, 0.0, "measured")
    gradient = torch.randn_like(output)

    def step() -> timing.Seconds:
        module.zero_grad()
        x.grad = None
        return timing.timed(x.device, both=lambda: module(x).backward(gradient))

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

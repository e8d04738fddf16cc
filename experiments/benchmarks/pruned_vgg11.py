"""Pruned VGG-11 beside the dense-masked one: forward and backward, and a whole step of SGD.

    python -m experiments.benchmarks.pruned_vgg11

B = 32, 3 x 32 x 32, no norms, each layer's smallest weights pruned (`torch.nn.utils.prune`). Three
of the same network take turns: stock PyTorch (masks multiplied in, dense gradients), `bl.attach`
(dense parameters), and the compact parameters that `bl.SparseJacobianPruning` trains with. Writes
benchmark_pruned_vgg11.json: medians, and medians of the ratios of turns.
"""

import argparse
from typing import Any

import torch
from torch import nn
from torch.nn.utils import prune

import bppsa_lightning as bl
from bppsa_lightning.pruned import sparse_layers
from bppsa_lightning.pruned.compact import CompactWeight
from experiments import recording
from experiments.benchmarks import timing
from experiments.train.pruned_vgg11 import vgg11

B = 32
DENSITIES = (0.03, 0.1, 0.5, 1.0)
TURNS, STEPS = 9, 5
OURS = ("attached", "compact")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    rows = [measure(density) for density in DENSITIES]
    for row in rows:
        for who in OURS:
            print(line(row, who))
    path = recording.folder(asked.record) / "benchmark_pruned_vgg11.json"
    recording.write(path, {"B": B, "rows": rows})
    print(f"record: {path}")


def measure(density: float) -> dict[str, Any]:
    torch.manual_seed(0)
    x, target = torch.randn(B, 3, 32, 32), torch.randint(10, (B,))
    steps = {who: step_of(who, density, x, target) for who in ("stock", *OURS)}
    turns = timing.take_turns(steps, seconds=0, most=TURNS, least=TURNS, shortest=STEPS)
    return {
        "density": density,
        "seconds": {who: timing.medians(taken) for who, taken in turns.items()},
        "ratio": {who: timing.ratios(turns["stock"], turns[who]) for who in OURS},
    }


def step_of(who: str, density: float, x: torch.Tensor, target: torch.Tensor) -> timing.Step:
    """A training step of one of the three networks; seconds of forward + backward, and of all."""
    model = network(who, density)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)

    def both() -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), target).backward()

    def step() -> timing.Seconds:
        seconds = timing.timed(x.device, both=both, optimizer=optimizer.step)
        return {"both": seconds["both"], "step": sum(seconds.values())}

    return step


def network(who: str, density: float) -> nn.Sequential:
    """VGG-11 with a share of its weights, "stock", "attached" or "compact"."""
    torch.manual_seed(1)
    model = vgg11(norm=False)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            prune.l1_unstructured(layer, "weight", 1 - density)
    if who != "stock":
        bl.attach(model)
    if who == "compact":
        for pruned in sparse_layers(model).values():
            if CompactWeight.suits(pruned):
                CompactWeight(pruned)
    return model


def line(row: dict[str, Any], who: str) -> str:
    ratio, seconds = row["ratio"][who], row["seconds"]
    return (
        f"density {row['density']:.2f} {who:8}: forward + backward "
        f"{seconds[who]['both'] * 1e3:6.1f} ms against {seconds['stock']['both'] * 1e3:6.1f} ms, "
        f"{ratio['both']:.2f}x; with SGD {ratio['step']:.2f}x"
    )


if __name__ == "__main__":
    main()

"""Pruned VGG-11 beside the dense-masked one: forward and backward, and a whole step of SGD.

    python experiments/benchmark_pruned_vgg11.py [--no-record]

B = 32, 3 x 32 x 32, no norms, each layer's smallest weights pruned (`torch.nn.utils.prune`). Three
of the same network take turns: stock PyTorch (masks multiplied in, dense gradients), `bl.attach`
(dense parameters), and the compact parameters that `bl.SparseJacobianPruning` trains with. Writes
records/benchmark_pruned_vgg11.json: medians, and medians of the ratios of turns.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import pruned_vgg11
import record
import torch
from torch import nn
from torch.nn.utils import prune

import bppsa_lightning as bl
from bppsa_lightning.layers import sparse_layers
from bppsa_lightning.layers.compact import CompactWeight

B = 32
DENSITIES = (0.03, 0.1, 0.5, 1.0)
TURNS, STEPS = 9, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--no-record", action="store_true", help="print only")
    keeps = not parser.parse_args().no_record
    rows = [measure(density) for density in DENSITIES]
    for row in rows:
        for who in ("attached", "compact"):
            ratio = row["ratio"][who]
            print(
                f"density {row['density']:.2f} {who:8}: forward + backward "
                f"{row['seconds'][who]['both'] * 1e3:6.1f} ms against "
                f"{row['seconds']['stock']['both'] * 1e3:6.1f} ms, {ratio['both']:.2f}x; "
                f"with SGD {ratio['step']:.2f}x"
            )
    if keeps:
        record.write(record.RECORDS / "benchmark_pruned_vgg11.json", {"B": B, "rows": rows})


def measure(density: float) -> dict:
    torch.manual_seed(0)
    x, target = torch.randn(B, 3, 32, 32), torch.randint(10, (B,))
    steps = {who: step_of(who, density, x, target) for who in ("stock", "attached", "compact")}
    turns: dict[str, list[dict[str, float]]] = {who: [] for who in steps}
    for _ in range(TURNS):
        for who, step in steps.items():
            measured = [step() for _ in range(STEPS + 1)][1:]
            turns[who].append({part: median(m[part] for m in measured) for part in measured[0]})
    parts = ("both", "step")
    return {
        "density": density,
        "seconds": {
            who: {part: median(t[part] for t in taken) for part in parts}
            for who, taken in turns.items()
        },
        "ratio": {
            who: {
                part: median(s[part] / t[part] for s, t in zip(turns["stock"], taken, strict=True))
                for part in parts
            }
            for who, taken in turns.items()
            if who != "stock"
        },
    }


def step_of(
    who: str, density: float, x: torch.Tensor, target: torch.Tensor
) -> Callable[[], dict[str, float]]:
    torch.manual_seed(1)
    model = pruned_vgg11.vgg11(norm=False)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            prune.l1_unstructured(layer, "weight", 1 - density)
    if who != "stock":
        bl.attach(model)
    if who == "compact":
        for pruned in sparse_layers(model).values():
            if CompactWeight.suits(pruned):
                CompactWeight(pruned)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4, momentum=0.9)

    def step() -> dict[str, float]:
        start = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), target).backward()
        backward = time.perf_counter()
        optimizer.step()
        return {"both": backward - start, "step": time.perf_counter() - start}

    step()
    return step


if __name__ == "__main__":
    main()

"""Figure 10 of the paper: FLOPs of every step of the scan over a pruned VGG-11, against BP's.

    python experiments/figure10.py

VGG-11 on one 3 x 32 x 32 image (arXiv:1907.10134, figure 10), convolutions pruned by magnitude to
3 % of their weights (of a new network: which weights survive is chance), one linear layer behind.
The chain begins behind the first convolution, as an image needs no gradient. The scan is blelloch
with L_m = 2 levels: products of matrices, then matrix-vector products over the roots, then those of
the down-sweep.

Each step is placed at m n k of its dense product (n = 1 for a vector) and the FLOPs that it takes
with fixed sparse patterns. With a worker for every product of a level, the critical path holds the
costliest of each level, and every step over the roots. All products are multiplied out, as in the
paper; the totals also say what the scan takes as `LayerScan` makes it, products with Jacobians that
only scale and pick kept in factors. Back-propagation is shown twice: with dense
kernels, as stock PyTorch computes a masked layer, and on the surviving weights alone. Writes
experiments/records/figure10.json and figure10.png.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import record
import scan_costs
import torch
from scan_costs import Step

from bppsa_lightning import jacobians
from bppsa_lightning.jacobians import Pattern
from bppsa_lightning.ops import LayerScan

CONFIGURATION = (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M")


def vgg11(kept: float) -> list[tuple[str, Pattern, int]]:
    """(name, pattern, multiply-adds of the dense kernel) of each layer, first to last."""
    found: list[tuple[str, Pattern, int]] = []
    size, convolutions = (3, 32, 32), 0
    for entry in CONFIGURATION:
        if entry == "M":
            pool = jacobians.max_pool2d_pattern(size, 2)
            found.append(("pool", pool.pattern, pool.pattern.nnz))
            size = pool.output_size
            continue
        weight = torch.randn(int(entry), size[0], 3, 3)
        cut = weight.abs().flatten().kthvalue(round((1 - kept) * weight.numel())).values
        conv = jacobians.conv2d_pattern(weight.abs() > cut, size, padding=1)
        convolutions += 1
        pixels = size[1] * size[2]
        found.append((f"conv{convolutions}", conv.pattern, weight.numel() * pixels))
        size = (int(entry), *size[1:])
        numbers = size[0] * pixels
        found.append((f"relu{convolutions}", Pattern.diagonal(numbers), numbers))
    linear = jacobians.linear_pattern(torch.ones(10, size[0]) > 0).pattern
    return [*found, ("linear", linear, linear.nnz)]


def back_propagation(layers: list[tuple[str, Pattern, int]], kernel: str) -> list[Step]:
    """Its steps with "dense" kernels, or on the "surviving" weights."""
    steps = []
    for k, (name, pattern, work) in enumerate(layers):
        mnk = pattern.shape[0] * pattern.shape[1]
        flops = 2 * (work if kernel == "dense" else pattern.nnz)
        steps.append(Step(name, "BP", "vector", k, k, mnk, flops))
    return steps


def draw(scan: list[Step], dense: list[Step], sparse: list[Step], path: Path) -> None:
    figure, axis = record.pyplot().subplots(figsize=(9, 6))
    products = [s for s in scan if s.kind == "matrix"]
    vectors = [s for s in scan if s.kind == "vector"]
    series: tuple[tuple[str, list[Step], dict[str, Any]], ...] = (
        ("BPPSA, matrix times matrix", products, {"marker": "o", "color": "tab:blue"}),
        ("BPPSA, matrix times vector", vectors, {"marker": "x", "color": "tab:cyan"}),
        ("BP, dense kernels", dense, {"marker": "^", "color": "tab:green"}),
        ("BP, surviving weights", sparse,
         {"marker": "s", "s": 70, "facecolors": "none", "edgecolors": "tab:olive"}),
    )  # fmt: skip
    for label, steps, style in series:
        axis.scatter([s.mnk for s in steps], [s.flops for s in steps], label=label, **style)
    critical = [s for s in scan if s.critical]
    axis.scatter(
        [s.mnk for s in critical], [s.flops for s in critical], s=140, facecolors="none",
        edgecolors="tab:red", label="critical path of BPPSA",
    )  # fmt: skip
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("m · n · k of the dense product")
    axis.set_ylabel("FLOPs")
    axis.set_title("Each step of the scan over VGG-11 at 3 % of its weights, one image, L_m = 2")
    axis.legend()
    figure.tight_layout()
    record.save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--kept", type=float, default=0.03, help="share of the weights that is left"
    )
    parser.add_argument("--levels", type=int, default=2)
    parser.add_argument("--no-record", action="store_true", help="print only")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    layers = vgg11(arguments.kept)[1:]
    names, patterns, _ = zip(*layers, strict=True)
    scan, factored = (
        scan_costs.of_layers(LayerScan.of(patterns, arguments.levels, None, in_factors=kept), names)
        for kept in (False, True)
    )
    dense, sparse = (back_propagation(layers, kernel) for kernel in ("dense", "surviving"))
    for step in scan.steps:
        mark = "*" if step.critical else " "
        print(
            f"{mark} {step.phase:13} {step.name:16} m n k {step.mnk:9.2e}  {step.flops:15,} FLOPs"
        )
    totals: dict[str, Any] = {
        "scan": sum(s.flops for s in scan.steps),
        "critical_path": scan.critical_flops,
        "bp_dense": sum(s.flops for s in dense),
        "bp_surviving": sum(s.flops for s in sparse),
        "steps_critical_path": scan.critical_products,
        "steps_bp": len(dense),
        "scan_in_factors": sum(s.flops for s in factored.steps),
        "critical_path_in_factors": factored.critical_flops,
        "steps_critical_path_in_factors": factored.critical_products,
    }
    print(" ".join(f"{name} {value:,}" for name, value in totals.items()))
    if not arguments.no_record:
        steps = {"scan": scan.steps, "bp_dense": dense, "bp_surviving": sparse}
        results = {name: [asdict(step) for step in found] for name, found in steps.items()}
        settings = {"kept": arguments.kept, "levels": arguments.levels}
        record.write(record.RECORDS / "figure10.json", {**settings, "totals": totals, **results})
        draw(scan.steps, dense, sparse, record.RECORDS / "figure10.png")
        print(f"record: {record.RECORDS / 'figure10'}.json, .png")


if __name__ == "__main__":
    main()

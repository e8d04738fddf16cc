"""Figure 10 of the paper: FLOPs of every step of the scan over a pruned VGG-11, against BP's.

    python -m experiments.paper.figure10

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
figure10.json and figure10.png.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bppsa_lightning import jacobians
from bppsa_lightning.depth import LayerScan
from bppsa_lightning.jacobians import Pattern
from experiments import recording
from experiments.train import scan_costs
from experiments.train.pruned_vgg11 import vgg11
from experiments.train.scan_costs import Step

Layer = tuple[str, Pattern, int]


def layers(kept: float) -> list[Layer]:
    """(name, pattern, multiply-adds of the dense kernel) of each layer of VGG-11, first to last."""
    with torch.device("meta"):  # shapes only
        network = vgg11(norm=False)
    found: list[Layer] = []
    size, convolutions = (3, 32, 32), 0
    for module in network:
        match module:
            case nn.Conv2d():
                convolutions += 1
                pattern = pruned_convolution(module, size, kept)
                size = (module.out_channels, *size[1:])
                pixels = size[1] * size[2]
                found.append((f"conv{convolutions}", pattern, module.weight.numel() * pixels))
            case nn.ReLU():
                numbers = size[0] * size[1] * size[2]
                found.append((f"relu{convolutions}", Pattern.diagonal(numbers), numbers))
            case nn.MaxPool2d():
                pool = jacobians.max_pool2d_pattern(size, module.kernel_size)
                found.append(("pool", pool.pattern, pool.pattern.nnz))
                size = pool.output_size
            case nn.Linear():
                mask = torch.ones(module.weight.shape) > 0
                linear = jacobians.linear_pattern(mask).pattern
                found.append(("linear", linear, linear.nnz))
    return found


def pruned_convolution(module: nn.Conv2d, size: tuple[int, int, int], kept: float) -> Pattern:
    """The pattern of a convolution of which the largest weights, a share `kept`, survive."""
    weight = torch.randn(module.weight.shape)
    cut = weight.abs().flatten().kthvalue(round((1 - kept) * weight.numel())).values
    return jacobians.conv2d_pattern(weight.abs() > cut, size, padding=module.padding).pattern


def back_propagation(layers: list[Layer], kernel: str) -> list[Step]:
    """Its steps with "dense" kernels, or on the "surviving" weights."""
    steps = []
    for k, (name, pattern, work) in enumerate(layers):
        mnk = pattern.shape[0] * pattern.shape[1]
        flops = 2 * (work if kernel == "dense" else pattern.nnz)
        steps.append(Step(name, "BP", "vector", k, k, mnk, flops))
    return steps


def draw(scan: list[Step], dense: list[Step], sparse: list[Step], path: Path) -> None:
    figure, axis = recording.pyplot().subplots(figsize=(9, 6))
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
    recording.save_figure(figure, path)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--kept", type=float, default=0.03, help="share of the weights that is left"
    )
    parser.add_argument("--levels", type=int, default=2)
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    torch.manual_seed(0)
    chain = layers(asked.kept)[1:]
    names, patterns, _ = zip(*chain, strict=True)
    scan, factored = (
        scan_costs.of_layers(LayerScan.of(patterns, asked.levels, None, in_factors=kept), names)
        for kept in (False, True)
    )
    steps = {
        "scan": scan.steps,
        "bp_dense": back_propagation(chain, "dense"),
        "bp_surviving": back_propagation(chain, "surviving"),
    }
    show(scan.steps)
    totals: dict[str, Any] = {
        "scan": sum(s.flops for s in scan.steps),
        "critical_path": scan.critical_flops,
        "bp_dense": sum(s.flops for s in steps["bp_dense"]),
        "bp_surviving": sum(s.flops for s in steps["bp_surviving"]),
        "steps_critical_path": scan.critical_products,
        "steps_bp": len(steps["bp_dense"]),
        "scan_in_factors": sum(s.flops for s in factored.steps),
        "critical_path_in_factors": factored.critical_flops,
        "steps_critical_path_in_factors": factored.critical_products,
    }
    print(" ".join(f"{name} {value:,}" for name, value in totals.items()))
    results = {name: [asdict(step) for step in found] for name, found in steps.items()}
    settings = {"kept": asked.kept, "levels": asked.levels}
    path = recording.folder(asked.record) / "figure10.json"
    recording.write(path, {**settings, "totals": totals, **results})
    draw(*steps.values(), path.with_suffix(".png"))
    print(f"record: {path}, .png")


def show(steps: list[Step]) -> None:
    for step in steps:
        mark = "*" if step.critical else " "
        print(
            f"{mark} {step.phase:13} {step.name:16} m n k {step.mnk:9.2e}  {step.flops:15,} FLOPs"
        )


if __name__ == "__main__":
    main()

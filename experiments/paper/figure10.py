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
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bppsa_lightning import jacobians
from bppsa_lightning.depth import LayerScan
from bppsa_lightning.jacobians import Pattern
from experiments import recording, style
from experiments.train import scan_costs
from experiments.train.pruned_vgg11 import vgg11
from experiments.train.scan_costs import Step

Layer = tuple[str, Pattern, int]
Found = dict[str, Any]  # a Step of a record


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


def draw(record: dict[str, Any], path: Path) -> None:
    """Every step by the size of its dense product and its FLOPs; names along the critical path."""
    figure, axis = recording.pyplot().subplots(figsize=(9, 7.2), layout="constrained")
    scan = record["scan"]
    hollow = {"facecolors": "none", "linewidths": 1.4}
    series: tuple[tuple[str, list[Found], dict[str, Any]], ...] = (
        ("BPPSA, matrix times matrix", [s for s in scan if s["kind"] == "matrix"],
         {"marker": "o", "s": 46, "color": style.BLUE}),
        ("BPPSA, matrix times vector", [s for s in scan if s["kind"] == "vector"],
         {"marker": "x", "s": 34, "color": style.BLACK}),
        ("BP, dense kernels", record["bp_dense"],
         {"marker": "^", "s": 130, "edgecolors": style.GREEN, **hollow}),
        ("BP, surviving weights", record["bp_surviving"],
         {"marker": "s", "s": 70, "edgecolors": style.ORANGE, **hollow}),
        ("critical path of BPPSA", [s for s in scan if s["critical"]],
         {"marker": "o", "s": 260, "edgecolors": style.VERMILLION, **hollow}),
    )  # fmt: skip
    for label, steps, look in series:
        axis.scatter([s["mnk"] for s in steps], [s["flops"] for s in steps], label=label, **look)
    # Two steps of the path may have one place: their names share a label.
    named: dict[tuple[int, int], list[str]] = {}
    for step in series[-1][1]:
        named.setdefault((step["mnk"], step["flops"]), []).append(step["name"])
    for place, names in named.items():
        above = {"xytext": (0, 12), "ha": "center", "va": "bottom"}
        beside = {"xytext": (14, 0), "ha": "left", "va": "center"}
        where = beside if any(_covers(other, place) for other in named) else above
        axis.annotate(", ".join(names), place, textcoords="offset points", fontsize=8,
                      color=style.VERMILLION, **where)  # fmt: skip
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.margins(0.1)
    axis.grid(alpha=0.3)
    axis.set_xlabel("size of the dense product: m · n · k (multiply-adds)")
    axis.set_ylabel("work with sparse patterns (FLOPs)")
    axis.set_title(
        f"Each step of the scan over VGG-11 at {100 * record['kept']:g} % of its weights, "
        f"one image, {record['levels']} levels up and down"
    )
    figure.legend(loc="outside lower center", ncols=3)
    recording.save_figure(figure, path, note=style.COMPUTED)


def _covers(other: tuple[int, int], place: tuple[int, int]) -> bool:
    """Whether a ring stands where the name above a place would."""
    right, up = (math.log10(a / b) for a, b in zip(other, place, strict=True))
    return abs(right) < 1 and 0 < up < 0.5


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
    draw(recording.write(path, {**settings, "totals": totals, **results}), path.with_suffix(".png"))
    print(f"record: {path}, .png")


def show(steps: list[Step]) -> None:
    for step in steps:
        mark = "*" if step.critical else " "
        print(
            f"{mark} {step.phase:13} {step.name:16} m n k {step.mnk:9.2e}  {step.flops:15,} FLOPs"
        )


if __name__ == "__main__":
    main()

"""Pictures of four scans: up-sweep, middle and down-sweep, with the cost of every product.

    python -m experiments.paper.scan_pictures

An RNN of 20 states over 16 steps, by blelloch with two levels and in chunks; LeNet-5; VGG-11 with
3 % of its weights (the costs of figure10.py). Writes scan_<what>.png for each; see
train/scan_picture.py for how to read them, and to draw any other chain.
"""

import argparse
from pathlib import Path

import torch

import bppsa_lightning as bl
from bppsa_lightning.depth import LayerScan
from experiments import recording, style
from experiments.paper import figure10
from experiments.train import scan_costs, scan_picture
from experiments.train.lenet5 import LeNet5
from experiments.train.scan_costs import ScanCosts


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    folder = recording.folder(parser().parse_args(arguments).record)
    for name, scan in draw(folder).items():
        print(f"{name}: {scan.plan}, {scan.critical_products} products in a row")
    print(f"pictures: {folder}")


def draw(folder: Path) -> dict[str, ScanCosts]:
    """Draws all pictures into a folder; returns the scans that they show."""
    scans = pictures()
    for name, (title, scan) in scans.items():
        path = folder / f"scan_{name}.png"
        recording.save_figure(scan_picture.draw(scan, title), path, note=style.COMPUTED)
    return {name: scan for name, (_, scan) in scans.items()}


def pictures() -> dict[str, tuple[str, ScanCosts]]:
    """The title and the scan of each picture."""
    rnn = "RNN of 20 states, 16 steps"
    return {
        "rnn_blelloch": (rnn, scan_costs.of_plan(bl.Plan("blelloch", levels=2), 16, 20)),
        "rnn_chunked": (rnn, scan_costs.of_plan(bl.Plan("chunked", chunk=4), 16, 20)),
        "lenet5": ("LeNet-5, one image of 3 × 32 × 32", lenet5()),
        "vgg11": ("VGG-11 at 3 % of its weights, one image of 3 × 32 × 32", vgg11()),
    }


def lenet5() -> ScanCosts:
    torch.manual_seed(0)
    layers = LeNet5().layers
    (chain,) = bl.attach(layers, "blelloch")
    layers(torch.randn(1, 3, 32, 32)).sum().backward()
    (scan,) = scan_costs.of_chain(chain)
    return scan


def vgg11() -> ScanCosts:
    torch.manual_seed(0)  # as figure10.py: the same weights
    names, patterns, _ = zip(*figure10.layers(0.03)[1:], strict=True)
    return scan_costs.of_layers(LayerScan.of(patterns, 2, budget=None), names)


if __name__ == "__main__":
    main()

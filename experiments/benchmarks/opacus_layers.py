"""Gradients of each sample: attached layers beside Opacus' own, which walk time in Python.

    pip install opacus
    python -m experiments.benchmarks.opacus_layers

Forward, backward and the gradients of each sample's weights of one layer under Opacus'
GradSampleModule, on the CPU: an attached nn.RNN, nn.GRU or nn.LSTM, and DPRNN, DPGRU or DPLSTM with
its weights. (That the gradients are the same: tests/third_party/opacus_training.py.) Writes
opacus_cpu.json.
"""

import argparse
import itertools
import sys
import warnings
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

import bppsa_lightning as bl
from experiments import recording
from experiments.benchmarks import timing

CELLS = ("RNN", "GRU", "LSTM")
HEAD = ("layer", "(T, B, H)", "Opacus", "attached", "times as fast")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, nargs="+", default=[100, 300], help="of a sequence")
    parser.add_argument("--hidden", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each size")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    if find_spec("opacus") is None:
        sys.exit("opacus: not installed, wanted beside torch: pip install opacus")
    rows = [
        measure(cell, T, asked.batch, H, asked.seconds)
        for cell, T, H in itertools.product(CELLS, asked.steps, asked.hidden)
    ]
    path = recording.folder(asked.record) / "opacus_cpu.json"
    recording.write(path, {"opacus": recording.version("opacus"), "rows": rows})
    print(recording.markdown(HEAD, map(line, rows)))
    print(f"record: {path}")


def measure(cell: str, T: int, B: int, H: int, seconds: float) -> dict[str, Any]:
    """Seconds of both, and how many times as fast ours is."""
    torch.manual_seed(0)
    x = torch.randn(B, T, H, requires_grad=True)
    steps = {name: step_of(module, x) for name, module in pair(cell, H).items()}
    found = timing.measure(steps, seconds, most=30, least=5)
    return {"cell": cell, "T": T, "B": B, "H": H, **found}


def pair(cell: str, H: int) -> dict[str, Any]:
    """An attached layer and Opacus' own, with the same weights, in GradSampleModules."""
    from opacus import layers
    from opacus.grad_sample import GradSampleModule

    ours, theirs = getattr(nn, cell)(H, H, batch_first=True), getattr(layers, f"DP{cell}")
    theirs = theirs(H, H, batch_first=True)
    theirs.load_state_dict(ours.state_dict())
    bl.attach(ours)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {"attached": GradSampleModule(ours), "Opacus": GradSampleModule(theirs)}


def step_of(module: nn.Module, x: Tensor) -> timing.Step:
    def both() -> None:
        module(x)[0].square().mean().backward()

    def step() -> timing.Seconds:
        module.zero_grad()
        x.grad = None
        return timing.timed(x.device, both=both)

    return step


def line(row: dict[str, Any]) -> tuple[str, ...]:
    """A row for people."""
    of_each = [f"{row[way]['both'] * 1e3:.2f} ms" for way in ("Opacus", "attached")]
    sizes = f"({row['T']}, {row['B']}, {row['H']})"
    return row["cell"], sizes, *of_each, f"{row['ratio_Opacus']['both']:.1f}x"


if __name__ == "__main__":
    main()

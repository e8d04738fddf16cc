"""One layer by PyTorch, by ours whatever the tables say ("linear"), and by whichever "auto" takes.

For `hand_over` and `layers_bfloat16`. T steps, B batch, H input and hidden size.
"""

import argparse
import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.calibration import pairs
from bppsa_lightning.planner import hand_over
from bppsa_lightning.planner.request import TRAINING
from experiments import recording
from experiments.benchmarks import timing

HEAD = ("cell", "T, B, H", "threads", "PyTorch", "linear", "auto", "auto's speed-up")


def add_arguments(parser: argparse.ArgumentParser, seconds: float) -> None:
    parser.add_argument("--table", action="store_true", help="measure for the planner's table")
    parser.add_argument("--threads", type=int, nargs="+", help="(default: one, and all of torch's)")
    parser.add_argument("--seconds", type=float, default=seconds, help="for each size")
    recording.add_record_argument(parser)


@contextlib.contextmanager
def each_number_of_threads(asked: list[int] | None) -> Iterator[Iterator[int]]:
    """Goes through the numbers that were asked for, torch's set to each; and back to its own."""
    before = torch.get_num_threads()

    def each() -> Iterator[int]:
        for threads in asked or sorted({1, before}):
            torch.set_num_threads(threads)
            yield threads

    try:
        yield each()
    finally:
        torch.set_num_threads(before)


def measure(
    cell: str, T: int, B: int, H: int, seconds: float, mode: str, bfloat16: bool, rule: str
) -> dict[str, Any]:
    """Seconds of the three, and their ratios.

    A step is a forward and backward of every output, or in inference a forward.

    Args:
        mode, bfloat16: as of `planner.Request`.
        rule: under which name to say whether the layer would be ours by the rule for training in
            float32.
    """
    torch.manual_seed(0)
    stock = pairs.CELLS[cell](H, H)
    ours, auto = copy.deepcopy(stock), copy.deepcopy(stock)
    bl.attach(ours, "linear")
    (chain,) = bl.attach(auto)
    x = torch.randn(T, B, H)
    layers = {"stock": stock, "linear": ours, "auto": auto}
    ways = {name: _step(layer, x, mode, bfloat16) for name, layer in layers.items()}
    found = timing.measure(ways, seconds, most=15, least=5)
    size = {"cell": cell, "mode": mode, "T": T, "B": B, "H": H, "threads": torch.get_num_threads()}
    by_rule = not hand_over.pytorch_is_faster(chain.config.cell.name, T, B, H)
    return size | {"ours": chain.fallback_calls == 0, rule: by_rule} | found


def _step(layer: nn.Module, x: torch.Tensor, mode: str, bfloat16: bool) -> timing.Step:
    grads: list[torch.Tensor] = []

    def forward() -> torch.Tensor:
        if not bfloat16:
            return layer(x)[0]
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x)[0]

    def run() -> None:
        if mode != TRAINING:
            with torch.no_grad():
                forward()
            return
        output = forward()
        if not grads:
            grads.append(torch.randn_like(output))
        layer.zero_grad()
        output.backward(grads[0])

    return lambda: timing.timed(torch.device("cpu"), step=run)


def line(row: dict[str, Any]) -> tuple[str, ...]:
    """A row for people."""
    ms = [f"{row[way]['step'] * 1e3:.3f} ms" for way in ("stock", "linear", "auto")]
    size = f"{row['T']}, {row['B']}, {row['H']}"
    return row["cell"], size, str(row["threads"]), *ms, f"{1 / row['ratio_auto']['step']:.2f}x"

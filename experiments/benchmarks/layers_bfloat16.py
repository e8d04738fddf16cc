"""Layers under autocast to bfloat16 beside PyTorch's, on a CPU that multiplies bfloat16.

    python -m experiments.benchmarks.layers_bfloat16 --table --record    # for the planner's table
    python -m experiments.benchmarks.layers_bfloat16 --record            # what is chosen by it

With --table what `bl.calibrate` measures of them, for each number of threads; `tables` derives a
part of amd_epyc_2 from it. Without, sizes between those of the table: PyTorch's layer, ours
whatever the table says ("linear"), and whichever "auto" takes; also whether it would be ours in
float32 (ours_in_float32). Weights are float32; a step is a
forward and backward of every output, or in inference a forward. T steps, B batch, H input and
hidden size. Writes layers_bfloat16_table.json, or layers_bfloat16.json.
"""

import argparse
import copy
from typing import Any

import torch
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.calibration import fit_cpu, pairs, ratios
from bppsa_lightning.planner import hand_over
from bppsa_lightning.planner.request import MODES, TRAINING
from bppsa_lightning.recurrent.precision import multiplies_bfloat16
from experiments import recording
from experiments.benchmarks import timing

STEPS, BATCHES = (3, 30, 300), (2, 8, 32, 128)
SIZES = {"LSTM": (20, 48, 100, 200, 400), "GRU": (48, 200, 400), "RNN": (48, 200, 400)}
HEAD = ("cell", "T, B, H", "threads", "PyTorch", "linear", "auto", "auto's speed-up")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--table", action="store_true", help="measure for the planner's table")
    parser.add_argument("--threads", type=int, nargs="+", help="(default: one, and all of torch's)")
    parser.add_argument("--seconds", type=float, default=0.4, help="for each size")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    if not multiplies_bfloat16():
        raise SystemExit("This processor has no instructions for bfloat16 that PyTorch would use.")
    before = torch.get_num_threads()
    found: list[dict[str, Any]] = []
    for threads in asked.threads or sorted({1, before}):
        torch.set_num_threads(threads)
        found += table(asked.seconds) if asked.table else rows(asked.seconds)
    torch.set_num_threads(before)
    name = "layers_bfloat16_table" if asked.table else "layers_bfloat16"
    path = recording.folder(asked.record) / f"{name}.json"
    recording.write(path, {"table" if asked.table else "rows": found})
    if not asked.table:
        for mode in MODES:
            print(f"\n{mode}\n")
            print(recording.markdown(HEAD, (line(row) for row in found if row["mode"] == mode)))
    print(f"record: {path}")


def table(seconds: float) -> list[dict[str, Any]]:
    """Parts of a table's section, with torch's number of threads."""
    nodes = ratios.measured(lambda name, measure: measure(), seconds, bfloat16=True)
    found = {size: ratio for node in nodes for size, ratio in node.items()}
    return fit_cpu.ratios(found, torch.get_num_threads())


def rows(seconds: float) -> list[dict[str, Any]]:
    """A row for each mode and size."""
    return [
        measure(cell, mode, T, B, H, seconds)
        for mode in MODES
        for cell in SIZES
        for H in SIZES[cell]
        for B in BATCHES
        for T in STEPS
        if T * B * H * H <= ratios.MOST
    ]


def measure(cell: str, mode: str, T: int, B: int, H: int, seconds: float) -> dict[str, Any]:
    """Seconds of PyTorch's layer, of ours and of "auto", and their ratios."""
    torch.manual_seed(0)
    stock = pairs.CELLS[cell](H, H)
    ours, auto = copy.deepcopy(stock), copy.deepcopy(stock)
    bl.attach(ours, "linear")
    (chain,) = bl.attach(auto)
    x = torch.randn(T, B, H)
    layers = {"stock": stock, "linear": ours, "auto": auto}
    ways = {name: step(layer, x, mode) for name, layer in layers.items()}
    found = timing.measure(ways, seconds, most=15, least=5)
    size = {"cell": cell, "mode": mode, "T": T, "B": B, "H": H, "threads": torch.get_num_threads()}
    in_float32 = hand_over.pytorch_is_faster(chain.config.cell.name, T, B, H)
    return size | {"ours": chain.fallback_calls == 0, "ours_in_float32": not in_float32} | found


def step(layer: nn.Module, x: torch.Tensor, mode: str) -> timing.Step:
    grads: list[torch.Tensor] = []

    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(mode == TRAINING):
            output = layer(x)[0]
        if mode == TRAINING:
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


if __name__ == "__main__":
    main()

"""Recurrent layers on samples of different lengths (PackedSequence), beside stock PyTorch.

    python -m experiments.benchmarks.packed

Forward and backward of one layer, all gradients, by `bl.attach` and by PyTorch's own kernel, in
turns, on the CPU. The lengths are drawn from 1 to T ("any"), from 0.8 T to T ("near"), or one
sample in seven has T steps and the others an eighth of it ("few long"). Writes
packed_recurrent_cpu.json: of each size the medians, the median of the ratios of turns, and whether
the planner scanned it.
"""

import argparse
import copy
import itertools
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

import bppsa_lightning as bl
from experiments import recording
from experiments.benchmarks import timing

CELLS = ("RNN", "GRU", "LSTM")
STEPS = (3, 4, 5, 7, 9, 10, 14, 20, 50, 100, 300)
BATCHES = (2, 8, 32, 128)
SIZES = (20, 64, 256)
LENGTHS = ("any", "near", "few long")
MOST = 1_500_000  # T * B * H: a size takes a second at most


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.25, help="for each size")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    rows = []
    for cell, T, B, H, lengths in itertools.product(CELLS, STEPS, BATCHES, SIZES, LENGTHS):
        if T * B * H <= MOST:
            rows.append(measure(cell, T, B, H, lengths, asked.seconds))
    for cell in CELLS:
        print(summary(cell, [row for row in rows if row["cell"] == cell]))
    path = recording.folder(asked.record) / "packed_recurrent_cpu.json"
    recording.write(path, {"rows": rows})
    print(f"record: {path}")


def measure(cell: str, T: int, B: int, H: int, lengths: str, seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    stock = getattr(nn, cell)(min(H, 32), H)
    ours = copy.deepcopy(stock)
    (chain,) = bl.attach(ours)
    packed = pack_sequence([torch.randn(n, stock.input_size) for n in drawn(T, B, lengths)], False)
    ways = {"bppsa": step_of(ours, packed), "stock": step_of(stock, packed)}
    found = timing.measure(ways, seconds, most=15, least=3)
    return {
        "cell": cell, "T": T, "B": B, "H": H, "lengths": lengths,
        "N": len(packed.data),
        "scanned": chain.handed_over == 0,
        "seconds": {way: found[way]["both"] for way in ways},
        "ratio": found["ratio_stock"]["both"],
    }  # fmt: skip


def drawn(T: int, B: int, lengths: str) -> list[int]:
    """B lengths up to T, the first of them T, not all the same."""
    if lengths == "few long":
        long = max(1, B // 7)
        return [T] * long + [max(1, T // 8)] * (B - long)
    least = 1 if lengths == "any" else int(0.8 * T)
    found = torch.randint(max(1, least), T + 1, (B,)).tolist()
    return [T, *found[1:-1], min(found[-1], T - 1)]


def step_of(module: nn.Module, packed: PackedSequence) -> timing.Step:
    data = packed.data.clone().requires_grad_()
    packed = packed._replace(data=data)

    def both() -> None:
        output, _ = module(packed)
        output.data.sum().backward()

    def step() -> timing.Seconds:
        module.zero_grad()
        data.grad = None
        return timing.timed(data.device, both=both)

    return step


def summary(cell: str, rows: list[dict[str, Any]]) -> str:
    scanned = [row for row in rows if row["scanned"]]
    slowest = min(scanned, key=lambda row: row["ratio"])
    ratios = [row["ratio"] for row in scanned]
    size = ", ".join(f"{key}={slowest[key]}" for key in ("T", "B", "H", "lengths"))
    return (
        f"{cell:4}: {len(scanned)} of {len(rows)} sizes scanned, median {median(ratios):.2f}x, "
        f"least {slowest['ratio']:.2f}x ({size}), {sum(r < 1 for r in ratios)} below 1"
    )


if __name__ == "__main__":
    main()

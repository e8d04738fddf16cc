"""The paper's sweeps: a training step of the bitstream RNN by length T and by batch B.

    python -m experiments.paper.sweep                   # RNN, two minutes on two cores
    python -m experiments.paper.sweep --cell GRU        # three minutes

As in arXiv:1907.10134 for a vanilla RNN: T = 10 … 30,000 at B = 16, and B = 2 … 256 at T = 1000; 20
states, cross entropy on the last state, Adam. One step is zero_grad, forward with the loss,
backward (whatever it prepares inside), optimizer; ours is the same model, attached. Measured in
pairs (benchmarks/timing.py), on one batch of bits for each size. Writes
bitstream_sweep_<cell>_<device>.json and .png: speed-ups of backward and of the whole step over
stock PyTorch in the same run, and the time of a step relative to stock's.

A loss on the last state sends its gradient through every step, and over hundreds of steps it fades:
see benchmarks/recurrent_cpu.py for gradients that do not.
"""

import argparse
import copy
from pathlib import Path
from typing import Any

import torch
from matplotlib import patheffects
from torch import nn

import bppsa_lightning as bl
from experiments import recording, style
from experiments.benchmarks import timing
from experiments.paper.training_step import PARTS, training_step
from experiments.train.bitstream_rnn import BitstreamRNN

LENGTHS = [(16, T) for T in (10, 30, 100, 300, 1000, 3000, 10000, 30000)]
BATCHES = [(B, 1000) for B in (2, 4, 8, 16, 32, 64, 128, 256)]
CELLS = {"RNN": nn.RNN, "GRU": nn.GRU}
HALO = [patheffects.withStroke(linewidth=2.5, foreground="white")]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cell", default="RNN", choices=list(CELLS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=4.0, help="for a size (default 4)")
    parser.add_argument("--pairs", type=int, default=11, help="at most, for a size (default 11)")
    parser.add_argument("--longest", type=int, default=30000, help="leave longer ones out")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    device = torch.device(asked.device)
    rows = []
    print("milliseconds a training step; x: stock / ours")
    columns = ("B", "T", "backward", "step", "stock backward", "step", "backward x", "step x")
    print("".join(f"{name:>15}" for name in columns))
    for B, T in dict.fromkeys([*LENGTHS, *BATCHES]):
        if asked.longest >= T:
            rows.append(measure(asked.cell, B, T, device, asked.seconds, asked.pairs))
            show(rows[-1])
    name = f"bitstream_sweep_{asked.cell.lower()}_{device.type}"
    path = recording.folder(asked.record) / f"{name}.json"
    record = recording.write(path, {"cell": asked.cell, "H": 20, "rows": rows})
    draw(record, path.with_suffix(".png"))
    print(f"record: {path}, .png")


def measure(
    cell: str, B: int, T: int, device: torch.device, seconds: float, pairs: int
) -> dict[str, Any]:
    torch.manual_seed(0)
    stock = BitstreamRNN()
    stock.rnn = CELLS[cell](1, 20, batch_first=True)
    stock.to(device)
    ours = copy.deepcopy(stock)
    (chain,) = bl.attach(ours)
    y = torch.randint(10, (B,), device=device)
    x = (torch.rand(B, T, 1, device=device) < 0.05 + 0.1 * y.view(B, 1, 1)).float()
    ways = {"ours": training_step(ours, x, y), "stock": training_step(stock, x, y)}
    found = timing.measure(ways, seconds, pairs, least=3, shortest=1)
    plan = chain.plan
    return {
        "B": B,
        "T": T,
        "algorithm": plan.algorithm if plan else None,
        "left_to_pytorch": chain.reason,
        **found,
    }


def show(row: dict[str, Any]) -> None:
    times = [row[who][part] * 1e3 for who in ("ours", "stock") for part in ("backward", "step")]
    ratios = "".join(f"{row['ratio_stock'][part]:>14.2f}x" for part in ("backward", "step"))
    left = "   left to PyTorch" if row["left_to_pytorch"] else ""
    print(f"{row['B']:>15}{row['T']:>15}{''.join(f'{t:>15.2f}' for t in times)}{ratios}{left}",
          flush=True)  # fmt: skip


def draw(record: dict[str, Any], path: Path) -> None:
    """Speed-ups and the parts of a step, over sequence length and over batch size."""
    rows = record["rows"]
    figure, axes = recording.pyplot().subplots(
        2, 2, figsize=(10.5, 6.2), sharex="col", sharey="row", height_ratios=(3, 2),
        layout="constrained",
    )  # fmt: skip
    by_size = {(row["B"], row["T"]): row for row in rows}
    for column, sizes, label in (
        (axes[:, 0], LENGTHS, "sequence length T, at B = 16"),
        (axes[:, 1], BATCHES, "batch B, at T = 1000"),
    ):
        mine = [by_size[size] for size in sizes if size in by_size]
        names = [thousands(row["B" if sizes is BATCHES else "T"]) for row in mine]
        draw_speed_up(column[0], mine)
        draw_time(column[1], mine)
        column[1].set_xticks(range(len(mine)), names)
        column[1].set_xlabel(label)
    ratios = [row["ratio_stock"][part] for row in rows for part in ("backward", "step")]
    axes[0, 0].set_ylim(min(*ratios, 1) * 0.6, max(ratios) * 2)
    axes[0, 0].set_ylabel("speed-up over stock PyTorch")
    axes[1, 0].set_ylabel("time of a training step,\nstock PyTorch = 1")
    axes[0, 1].legend(loc="upper right")
    axes[1, 1].legend(loc="upper right", ncols=3, fontsize=8, title_fontsize=8,
                      title="left, pale: stock; right: ours")  # fmt: skip
    figure.suptitle(
        f"Bitstream classification, {record['cell']} of 20 states: by scan and by stock PyTorch"
    )
    recording.save_figure(figure, path, record["environment"])


def thousands(number: int) -> str:
    """300, 1k, 30k."""
    return f"{number // 1000}k" if number % 1000 == 0 else str(number)


def draw_speed_up(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Ratios on a log scale; a hollow red mark where stock PyTorch is faster."""
    for part, label, marker, above in (
        ("backward", "backward pass", "o", True),
        ("step", "whole training step", "s", False),
    ):
        ratios = [row["ratio_stock"][part] for row in rows]
        colour = style.PARTS["backward"] if part == "backward" else style.VERMILLION
        axes.plot(ratios, marker=marker, color=colour, label=label, lw=1.8)
        for i, ratio in enumerate(ratios):
            if ratio < 1:
                axes.plot(i, ratio, marker, ms=11, mfc="none", mec="#c1121f", mew=1.6)
            axes.annotate(f"{ratio:.0f}×" if ratio >= 9.95 else f"{ratio:.1f}×", (i, ratio),
                          xytext=(0, 7 if above else -15), textcoords="offset points",
                          ha="center", fontsize=8, color=colour, path_effects=HALO)  # fmt: skip
    axes.axhline(1, color="black", lw=0.8)
    axes.set_yscale("log")
    axes.grid(alpha=0.3)


def draw_time(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Parts of a step, stock's and ours side by side, as shares of stock's step."""
    for who, shift, alpha in (("stock", -0.2, 0.45), ("ours", 0.2, 1.0)):
        floor = [0.0] * len(rows)
        for part in PARTS:
            shares = [row[who][part] / row["stock"]["step"] for row in rows]
            axes.bar([i + shift for i in range(len(rows))], shares, 0.36, floor, alpha=alpha,
                     color=style.PARTS[part], label=part if who == "ours" else None)  # fmt: skip
            floor = [a + b for a, b in zip(floor, shares, strict=True)]
        if who == "ours":
            for i, share in enumerate(floor):
                axes.annotate(f"{share:.2f}", (i + shift, share), xytext=(0, 2), ha="center",
                              textcoords="offset points", fontsize=8)  # fmt: skip
    axes.set_ylim(0, 1.5)


if __name__ == "__main__":
    main()

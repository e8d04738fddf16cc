"""Where a training step of the paper's GRU goes: forward, backward, rest, by features and batch.

    python -m experiments.paper.gru_breakdown                # two minutes on two cores

As in arXiv:1907.10134 for IRMAS: features S, M and L (259, 517, 1034 frames), 16, 32 and 64
excerpts a batch, 20 states. One step is zero_grad, forward with the loss, backward (whatever it
prepares inside), optimizer; ours is the same model, attached. Measured in pairs
(benchmarks/timing.py). The batch is noise of zero mean and unit variance, as standardised features
are: no time depends on the music. Writes gru_breakdown_<device>.json and .png.
"""

import argparse
import copy
from pathlib import Path
from typing import Any

import torch

import bppsa_lightning as bl
from bppsa_lightning.datasets.irmas_features import SETTINGS
from experiments import recording, style
from experiments.benchmarks import timing
from experiments.paper.sections.gru_breakdown import PARTS
from experiments.paper.training_step import training_step
from experiments.train.irmas_gru import IRMASGRU

BATCHES = (16, 32, 64)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=10.0, help="for a size (default 10)")
    parser.add_argument("--features", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    print("milliseconds a training step; x: stock / ours")
    columns = ("features", "B", *PARTS, "step", *(f"stock {part}" for part in (*PARTS, "step")))
    print("".join(f"{name:>15}" for name in (*columns, "fwd + bwd x", "step x")))
    rows = []
    for features in asked.features:
        for B in BATCHES:
            rows.append(measure(features, B, torch.device(asked.device), asked.seconds))
            show(rows[-1])
    path = recording.folder(asked.record) / f"gru_breakdown_{asked.device}.json"
    record = recording.write(path, {"H": 20, "rows": rows})
    draw(record, path.with_suffix(".png"))
    print(f"record: {path}, .png")


def measure(features: str, B: int, device: torch.device, seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    T, F = SETTINGS[features].frames, SETTINGS[features].features
    stock = IRMASGRU(F, readout="last", weight_decay=0).to(device)  # as the paper has it
    ours = copy.deepcopy(stock)
    (chain,) = bl.attach(ours)
    x, y = torch.randn(B, T, F, device=device), torch.randint(11, (B,), device=device)
    ways = {who: with_rest(training_step(m, x, y)) for who, m in (("ours", ours), ("stock", stock))}
    found = timing.measure(ways, seconds, most=15, least=3, shortest=2)
    plan = chain.plan
    return {
        "features": features,
        "B": B,
        "T": T,
        "F": F,
        "algorithm": plan.algorithm if plan else None,
        "left_to_pytorch": chain.reason,
        **found,
    }


def with_rest(step: timing.Step) -> timing.Step:
    """The step with its parts named as the paper's figure has them."""

    def renamed() -> timing.Seconds:
        found = step()
        both = found["forward"] + found["backward"]
        return {**found, "both": both, "rest": found["step"] - both}

    return renamed


def show(row: dict[str, Any]) -> None:
    times = [row[who][part] * 1e3 for who in ("ours", "stock") for part in (*PARTS, "step")]
    ratios = "".join(f"{row['ratio_stock'][part]:>14.2f}x" for part in ("both", "step"))
    left = "   left to PyTorch" if row["left_to_pytorch"] else ""
    cells = "".join(f"{time:>15.2f}" for time in times)
    print(f"{row['features']:>15}{row['B']:>15}{cells}{ratios}{left}", flush=True)


def draw(record: dict[str, Any], path: Path) -> None:
    """Bars of milliseconds: stock beside ours; ours again below, where they can be seen."""
    rows = record["rows"]
    figure, (both, alone) = recording.pyplot().subplots(
        2, 1, figsize=(9.5, 7), sharex=True, height_ratios=(3, 2), layout="constrained"
    )
    draw_bars(both, rows, {"stock": -0.2, "ours": 0.2})
    for i, row in enumerate(rows):
        ratio = f"{row['ratio_stock']['step']:.0f}×"
        both.annotate(ratio, (i + 0.2, row["ours"]["step"] * 1e3), xytext=(0, 3), ha="center",
                      textcoords="offset points", fontweight="bold")  # fmt: skip
    draw_bars(alone, rows, {"ours": 0.0})
    both.set_ylabel("milliseconds a step")
    both.set_title(
        "left, pale: stock PyTorch; right: by scan, and how many times as fast a step is"
    )
    alone.set(ylabel="milliseconds a step", title="by scan alone")
    names = [f"{row['features']} (T={row['T']})\nB={row['B']}" for row in rows]
    alone.set_xticks(range(len(rows)), names)
    both.legend(loc="upper left")
    figure.suptitle(
        "The GRU on inputs of the sizes of IRMAS: where the time of a training step goes"
    )
    recording.save_figure(figure, path, record["environment"])


def draw_bars(axes: Any, rows: list[dict[str, Any]], shifts: dict[str, float]) -> None:
    for who, shift in shifts.items():
        floor = [0.0] * len(rows)
        for part in PARTS:
            times = [row[who][part] * 1e3 for row in rows]
            axes.bar([i + shift for i in range(len(rows))], times, 0.36, floor,
                     alpha=0.45 if who == "stock" else 1.0, color=style.PARTS[part],
                     label=part if who == "ours" else None)  # fmt: skip
            floor = [a + b for a, b in zip(floor, times, strict=True)]
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


if __name__ == "__main__":
    main()

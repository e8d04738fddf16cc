"""What "auto" chooses for one long sequence, beside every fixed choice; and layers that never meet.

    python -m experiments.benchmarks.windows_auto
    python -m experiments.benchmarks.windows_auto --between --seconds 1.5    # 6 minutes

Forward and backward with a gradient into every output, float32, one sequence, on the CPU:

- grid: layers as PyTorch starts them under "auto", "linear" and "speculative", and PyTorch's own,
  in turns; "auto_over_best" is the time of "auto" over that of the best of them, pair by pair.
- with --between, the same for sizes between those of the tables, and nothing else;
- never: layers that remember everything, of which no window meets: all calls from the first one,
  over those of what "auto" does where windows are switched off; call by call, in turns.

Writes windows_auto_cpu.json, or windows_auto_between_cpu.json.
"""

import argparse
import copy
from typing import Any

import torch
from torch import nn

import bppsa_lightning as bl
from experiments import recording
from experiments.benchmarks import timing
from experiments.benchmarks.windows import step_of

# cell, H, I, T: B = 1 of the grid of `recurrent_cpu`, and more steps; and the paper's layer.
GRID = tuple(
    (cell, H, H, T)
    for cell in ("RNN", "GRU", "LSTM")
    for H, lengths in (
        (8, (100, 1000, 4000, 16_000)), (20, (100, 1000, 4000, 16_000)), (64, (100, 1000, 4000)),
        (128, (100, 1000, 2000)), (256, (100, 1000)),
    )
    for T in lengths
) + tuple((cell, 20, 1, T) for cell in ("RNN", "GRU", "LSTM") for T in (1000, 16_000))  # fmt: skip
# About as long as windows begin to pay.
BETWEEN = tuple(
    (cell, H, I, T)
    for cell in ("RNN", "GRU", "LSTM")
    for H in (12, 24, 32, 48, 96)
    for I in (1, H)
    for T in (700, 1000, 1500, 3000)
)
# What came out as further behind is measured again, for so much longer, and that counts.
BEHIND, LONGER = 1.05, 4
# cell, H, T, calls.
NEVER = (
    ("RNN", 20, 16_000, 120), ("GRU", 20, 16_000, 120), ("LSTM", 20, 16_000, 120),
    ("LSTM", 128, 2048, 80), ("LSTM", 256, 2048, 60),
)  # fmt: skip

FIXED = ("linear", "speculative", "PyTorch")


def call(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x)[0]  # type: ignore[no-any-return]


def attached(module: nn.Module, way: str) -> nn.Module:
    module = copy.deepcopy(module)
    if way != "PyTorch":
        bl.attach(module, "auto" if way == "walk" else way)
    if way == "walk":  # as "auto" does it where windows are switched off
        decide = module.forward._decide
        module.forward._decide = lambda input: decide(input)._replace(windows=False)
    return module


def timed(module: nn.Module, x: torch.Tensor) -> timing.Step:
    run = step_of(call, module, x.detach().clone().requires_grad_())
    return lambda: timing.timed(torch.device("cpu"), step=run)


def chosen(cell: str, H: int, I: int, T: int, seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    module, x = getattr(nn, cell)(I, H), torch.randn(T, 1, I)
    ways = {way: timed(attached(module, way), x) for way in ("auto", *FIXED)}
    row = compared(ways, seconds)
    if row["auto_over_best"] > BEHIND:
        # (PyTorch's walk takes seconds where it is a hundred times as slow.)
        most = 2 * row["seconds"][row["best"]]
        ways = {way: ways[way] for way in ways if way == "auto" or row["seconds"][way] < most}
        again = compared(ways, LONGER * seconds)
        row |= again | {"seconds": row["seconds"] | again["seconds"]}
    return {"cell": cell, "H": H, "I": I, "T": T, **row}


def compared(ways: dict[str, timing.Step], seconds: float) -> dict[str, Any]:
    turns = timing.take_turns(ways, seconds, most=60, least=3)
    medians = {way: timing.medians(turn)["step"] for way, turn in turns.items()}
    best = min((way for way in medians if way != "auto"), key=lambda way: medians[way])
    over = timing.ratios(turns["auto"], turns[best])["step"]
    return {"seconds": medians, "best": best, "auto_over_best": over}


def remembers(cell: str, H: int) -> nn.RNNBase:
    """A layer whose state goes on as it is: integrators, and gates that stay open.

    A GRU's update gate is 1 - 5e-5, not 1: a state that never leaves zero meets any other.
    """
    module = getattr(nn, cell)(1, H, **({"nonlinearity": "relu"} if cell == "RNN" else {}))
    with torch.no_grad():
        if cell == "RNN":
            module.weight_hh_l0.copy_(torch.eye(H))
            module.bias_ih_l0.zero_()
            module.bias_hh_l0.zero_()
        else:
            module.bias_hh_l0[H : 2 * H] = 20.0 if cell == "LSTM" else 10.0
    return module


def never(cell: str, H: int, T: int, calls: int) -> dict[str, Any]:
    torch.manual_seed(0)
    module, x = remembers(cell, H), torch.randn(T, 1, 1) / T
    timed(attached(module, "walk"), x)()  # what any first call sets up
    ways = {way: timed(attached(module, way), x) for way in ("walk", "auto", "speculative")}
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(calls):
        for way, step in ways.items():
            times[way].append(step()["step"])
    over = {
        way: {"all": sum(times[way]) / sum(times["walk"]),
              "first_ten": sum(times[way][:10]) / sum(times["walk"][:10])}
        for way in ("auto", "speculative")
    }  # fmt: skip
    return {"cell": cell, "H": H, "T": T, "calls": calls, "over_walk": over}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=4, help="for each size of the grid")
    parser.add_argument("--between", action="store_true", help="sizes that no table has")
    parser.add_argument("--calls", type=int, help="of layers that never meet, instead of 60 to 120")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    grid, still = [], []
    for size in BETWEEN if asked.between else GRID:
        grid.append(row := chosen(*size, asked.seconds))
        size = f"{row['cell']} {row['H']}, inputs of {row['I']}, {row['T']} steps"
        print(f"{size}: auto {row['auto_over_best']:.2f} of {row['best']}", flush=True)
    for cell, H, T, calls in () if asked.between else NEVER:
        still.append(row := never(cell, H, T, asked.calls or calls))
        print(f"{cell} {H}, {T} steps, never meets: {row['over_walk']}", flush=True)
    name = "windows_auto_between_cpu" if asked.between else "windows_auto_cpu"
    path = recording.folder(asked.record) / f"{name}.json"
    recording.write(path, {"grid": grid} | ({} if asked.between else {"never": still}))
    print(f"record: {path}")


if __name__ == "__main__":
    main()

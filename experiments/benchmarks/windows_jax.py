"""One long sequence on the CPU: what "auto" makes of it, beside a jitted jax.lax.scan.

    pip install jax
    python -m experiments.benchmarks.windows_jax

Forward and backward with a gradient into every output, float32, in turns, both with all cores.
Writes windows_jax_cpu.json.
"""

import argparse
import sys
from typing import Any

import torch

import bppsa_lightning as bl
from experiments import recording
from experiments.benchmarks import recurrent_jax, timing
from experiments.benchmarks.recurrent_cases import Case, pair

CASES = tuple(Case(cell, 1, 10_000, 20) for cell in ("RNN", "GRU", "LSTM"))


def measure(case: Case, seconds: float) -> dict[str, Any]:
    """Medians of both, and how many times as fast ours is."""
    ours, _ = pair(case, torch.device("cpu"))

    def step() -> timing.Seconds:
        return {"both": sum(ours().values())}

    ways = {"ours": step, **recurrent_jax.step_of(case)}
    for _ in range(20):  # what is looked at, and learned
        step()
    turns = timing.take_turns(ways, seconds, most=300, least=5)
    return {
        **case.described(),
        "seconds": {way: timing.medians(turn)["both"] for way, turn in turns.items()},
        "gain": timing.ratios(turns["jax"], turns["ours"])["both"],
        "explain": bl.explain(ours.layer).rpartition(": ")[2],
    }


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=10, help="for each cell")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    if not recurrent_jax.step_of(Case("RNN", 1, 2, 2)):
        sys.exit("jax: not installed, wanted beside torch: pip install jax")
    rows = []
    for case in CASES:
        rows.append(row := measure(case, asked.seconds))
        ms = {way: f"{took * 1e3:.2f} ms" for way, took in row["seconds"].items()}
        print(f"{case.cell} ({case.T:,}, {case.B}, {case.H}): {row['gain']:.1f}x JAX, {ms}")
    path = recording.folder(asked.record) / "windows_jax_cpu.json"
    recording.write(path, {"cases": rows})
    print(f"record: {path}")


if __name__ == "__main__":
    main()

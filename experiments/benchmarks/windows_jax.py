"""One long sequence on the CPU: what "auto" makes of it, beside a jitted jax.lax.scan.

    pip install jax
    python -m experiments.benchmarks.windows_jax

Forward and backward with a gradient into every output, float32, in turns, all with all cores: JAX
as one writes it, and with steps of time unrolled into the turns of its compiled loop, which takes
JAX several times as long to compile. Writes windows_jax_cpu.json.
"""

import argparse
import sys
from typing import Any

import torch

import bppsa_lightning as bl
from experiments import recording
from experiments.benchmarks import recurrent_jax, timing
from experiments.benchmarks.recurrent_cases import Case, pair

UNROLLED = (4, 16)  # steps of a turn
CASES = tuple(Case(cell, 1, 10_000, 20) for cell in ("RNN", "GRU", "LSTM"))


def measure(case: Case, seconds: float) -> dict[str, Any]:
    """Medians of all ways; how many times as fast ours is as JAX, and as JAX at its fastest."""
    ours, _ = pair(case, torch.device("cpu"))
    ways: dict[str, timing.Step] = {"ours": ours, **recurrent_jax.step_of(case)}
    for steps in UNROLLED:
        ways |= {f"jax, unroll={steps}": s for s in recurrent_jax.step_of(case, steps).values()}
    for _ in range(20):  # what is looked at, and learned
        ours()
    turns = timing.take_turns(ways, seconds, most=300, least=5)
    medians = {way: timing.medians(turn)["both"] for way, turn in turns.items()}
    fastest = min((way for way in ways if way != "ours"), key=lambda way: medians[way])
    gains = {way: timing.ratios(turns[way], turns["ours"])["both"] for way in ("jax", fastest)}
    return {
        **case.described(),
        "seconds": medians,
        "gain": gains["jax"],
        "fastest": fastest,
        "gain_of_fastest": gains[fastest],
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
        ms = ", ".join(f"{way} {took * 1e3:.2f} ms" for way, took in row["seconds"].items())
        of_fastest = f"{row['gain_of_fastest']:.1f}x its fastest"
        size = f"({case.T:,}, {case.B}, {case.H})"
        print(f"{case.cell} {size}: {row['gain']:.1f}x JAX, {of_fastest}; {ms}")
    path = recording.folder(asked.record) / "windows_jax_cpu.json"
    recording.write(path, {"cases": rows})
    print(f"record: {path}")


if __name__ == "__main__":
    main()

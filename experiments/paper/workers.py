"""Θ(log n) of the whole step, drawn: forward and backward of a recurrence on 1 to n workers.

    python -m experiments.paper.workers

arXiv:1907.10134 counts the steps of a backward pass: n of back-propagation, 2 log2 n of a Blelloch
scan with n workers. Here the tasks of a whole training step, forward and backward, are scheduled on
p workers (worker_tasks.py). The unit is a step of one sample, the product of a matrix and a vector
(H² multiply-adds). Two Jacobians are composed by H times as many (H³): counted as H steps, and once
more as one, as the paper counts. Nothing else costs anything: no memory, no start of a thread. The
forward ends before the backward begins.

- linear: n steps one after the other, both ways;
- chunked, blelloch: the forward is walked, the backward scanned; with the number of chunks (at
  least four) or levels that is fastest for p workers;
- speculative: windows of time both ways, which warm up for w steps and all meet; with the number of
  windows (at least two) that is fastest for p workers.

Beside them, what our kernels take for an nn.RNN of T = 16,384 steps, B = 1, H = 20 in float32, with
one and two threads, in turns (benchmarks/timing.py), from a gradient of every output; scaled so
that linear with one thread takes its simulated time. The planner chooses their chunk and levels,
the library the windows: the same plans are simulated beside them. Writes workers.json and .png.
"""

import argparse
import copy
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

import bppsa_lightning as bl
from experiments import recording
from experiments.benchmarks import timing
from experiments.paper import workers_plot
from experiments.paper.sections import workers as section
from experiments.paper.worker_times import ALGORITHMS, Parts, Step, rows

SIZES = (1024, 16384)
THREADS = (1, 2)
HIDDEN = 20


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--compose", type=int, default=HIDDEN,
        help=f"steps that a composition takes (default {HIDDEN}: H)",
    )  # fmt: skip
    parser.add_argument(
        "--warm", type=int, default=40,
        help="steps of warm-up (default 40: what a look finds for a new nn.RNN of 20 units)",
    )  # fmt: skip
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=SIZES,
        help="n, powers of two from 16 on; the last is measured",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=30.0, help="to measure in (default 30)")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    if any(n < 16 or n & (n - 1) for n in asked.sizes):
        sys.exit(f"--sizes: found {asked.sizes}, wanted powers of two from 16 on")
    composes = list(dict.fromkeys((asked.compose, 1)))
    simulated = rows(asked.sizes, composes, asked.warm)
    measured = measure(asked.sizes[-1], asked.seconds, composes)
    found = {
        "sizes": asked.sizes, "H": HIDDEN, "warm": asked.warm, "composes": composes,
        "rows": simulated, "measured": measured,
    }  # fmt: skip
    path = recording.folder(asked.record) / "workers.json"
    found = recording.write(path, found)
    for compose in composes:
        print(f"{asked.sizes[-1]} steps; a composition takes {section.times(compose)}:")
        print(section.simulated(found, compose))
    print(section.measured(found))
    workers_plot.draw(found, path.with_suffix(".png"))
    print(f"record: {path}, .png")


def training_step(module: nn.Module, x: torch.Tensor, threads: int) -> timing.Step:
    """Forward and backward from a gradient of every output, with so many threads."""
    grad = torch.rand(*x.shape[:2], HIDDEN)
    output = grad

    def forward() -> None:
        nonlocal output
        module.zero_grad()
        output = module(x)[0]

    def step() -> timing.Seconds:
        torch.set_num_threads(threads)
        parts = timing.timed(x.device, forward=forward, backward=lambda: output.backward(grad))
        return {**parts, "step": sum(parts.values())}

    return step


def measure(T: int, seconds: float, composes: Sequence[int]) -> list[dict[str, Any]]:
    """Each algorithm with each number of threads, in turns; and its plan in the simulation."""
    torch.manual_seed(0)
    module, x = nn.RNN(1, HIDDEN), torch.randn(T, 1, 1)
    chains, steps = {}, {}
    before = torch.get_num_threads()
    for algorithm in ALGORITHMS:
        for threads in THREADS:
            way = f"{algorithm}, {threads}"
            ours = copy.deepcopy(module)
            [chains[way]] = bl.attach(ours, algorithm)
            steps[way] = training_step(ours, x, threads)
    try:
        found = timing.measure(steps, seconds, most=1000, least=5)
    finally:
        torch.set_num_threads(before)
    measured = []
    for way in steps:
        algorithm, threads = way.split(", ")
        parts = parts_of(chains[way])
        ratio = found.get(f"ratio_{way}", {"step": 1.0})["step"]
        measured.append({
            "algorithm": algorithm, "threads": int(threads), "seconds": found[way],
            "ratio_linear": ratio, "steps": 2 * T * ratio, "parts": asdict(parts),
            "simulated": {
                str(compose): sum(Step(parts, T, compose).times(int(threads)))
                for compose in composes
            },
        })  # fmt: skip
    return measured


def parts_of(chain: bl.Chain) -> Parts:
    """What a layer was divided into in its last call."""
    plan = chain.plan
    assert plan is not None
    if plan.algorithm == "speculative":
        return Parts(plan.chunk, windows=plan.windows, warm=chain.state_dict()["0"]["warm"])
    return Parts(plan.chunk, plan.levels)


if __name__ == "__main__":
    main()

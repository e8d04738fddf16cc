"""Windows of time while networks are trained: do they meet, are they exact, are they faster?

    python -m experiments.benchmarks.windows_trained

What a recurrence remembers changes as it learns, and with it the windows. Each task of
`trained_tasks` is trained in a plain loop. Written down are, every 50 steps:

- training: the loss, and what became of this training step's windows. The training sequences are
  short, so most are walked; tasks that train by "linear" have no windows there;
- long: the same for one held-out sequence of 4,096 steps and the weights of this step;

and after 0, 200, 600 and 1,500 steps, for one held-out sequence of 4,096 and of 16,384 steps:
seconds of forward and backward of the recurrent layer by "linear", "speculative" and "auto", in
turns (medians, in which the looks, one in 64 calls, do not show), and "error", the largest error
of its results and gradients against PyTorch in float64, relative to their tensor's largest number.
Its input, and the gradients of its results, are those that the network and its loss give it.

Writes windows_trained.json after each task, and windows_trained.png.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, nn

import bppsa_lightning as bl
from experiments import recording
from experiments.benchmarks.trained_layers import (
    ALGORITHMS,
    happened,
    long_call,
    measure,
    seen_in_windows,
)
from experiments.benchmarks.trained_plots import draw
from experiments.benchmarks.trained_tasks import TASKS, Task
from experiments.benchmarks.windows import WALK, WINDOWS

NOTES_EVERY, MEASURED_AFTER = 50, (0, 200, 600, 1500)
LONG, LENGTHS = 4096, (4096, 16_384)
Seen = Callable[[int, nn.Module], None]


def train(
    task: Task, before: Seen, after: Callable[[int, nn.Module, float], None], seed: int = 0
) -> None:
    """The plainest training loop, from one seed; `before` and `after` are called at each step."""
    torch.manual_seed(seed)
    network, generator = task.network(), Generator().manual_seed(seed)
    bl.attach(network, task.algorithm)
    optimizer = torch.optim.Adam(network.parameters(), task.lr)
    for step in range(task.steps + 1):
        before(step, network)
        x, y = task.draw(task.T, task.B, generator, False)
        loss = task.loss(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        after(step, network, loss.item())
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()


def study(task: Task, seconds: float) -> dict[str, Any]:
    """Trains one task; its notes and measurements."""
    training: list[dict[str, Any]] = []
    long: list[dict[str, Any]] = []
    measured: list[dict[str, Any]] = []
    windowed = missed = 0

    def before(step: int, network: nn.Module) -> None:
        if step % NOTES_EVERY == 0:
            long.append({"step": step, **seen_in_windows(long_call(task, network, LONG))})
        if step in MEASURED_AFTER:
            for T in LENGTHS:
                found = measure(long_call(task, network, T), seconds)
                measured.append({"step": step, "T": T, **found})

    def after(step: int, network: nn.Module, loss: float) -> None:
        nonlocal windowed, missed
        in_windows = task.algorithm == ALGORITHMS[WINDOWS]
        seen = happened(network) if in_windows else {"walked": f'trained by "{task.algorithm}"'}
        windowed += "windows" in seen
        missed += seen.get("missed", 0) > 0
        if step % NOTES_EVERY == 0:
            training.append({"step": step, "loss": loss, **seen})

    train(task, before, after)
    return {
        "T": task.T, "B": task.B, "lr": task.lr, "algorithm": task.algorithm,
        "steps": task.steps, "steps_in_windows": windowed, "steps_that_missed": missed,
        "training": training, "long": long, "measured": measured,
    }  # fmt: skip


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    names = [task.name for task in TASKS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="TASK")
    parser.add_argument("--steps", type=int, help="of each training at most (default: all)")
    parser.add_argument("--seconds", type=float, default=2, help="for each measurement")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    path = recording.folder(asked.record) / "windows_trained.json"
    found: dict[str, Any] = {"tasks": {}}
    for name in asked.only:
        start = time.perf_counter()
        [task] = (t for t in TASKS if t.name == name)
        task = replace(task, steps=min(task.steps, asked.steps or task.steps))
        found["tasks"][name] = study(task, asked.seconds)
        record = recording.write(path, found)
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    draw(record, path.with_suffix(".png"))
    print(table(found))
    print(f"record: {path}, .png")


def table(found: dict[str, Any]) -> str:
    rows = []
    for name, task in found["tasks"].items():
        for case in task["measured"]:
            seen, errors = case["happened"], case["error"]
            ms = [f"{case['seconds'][way] * 1e3:.1f}" for way in (WALK, WINDOWS)]
            windows = [seen.get(key, "") for key in ("warm", "windows", "missed")]
            off = [f"{errors[way]:.0e}" for way in (WALK, WINDOWS)]
            rows.append(
                (
                    name,
                    case["step"],
                    case["T"],
                    *windows,
                    *ms,
                    f"{case['gain']:.2f}x",
                    f"{case['auto_over_walk']:.2f}",
                    *off,
                )
            )
    head = ("task", "step", "T", "warm-up", "windows", "missed", "walk, ms", "windows, ms", "gain",
            "auto / walk", "error", "of windows")  # fmt: skip
    text = recording.markdown(head, rows)
    cases = [case for task in found["tasks"].values() for case in task["measured"]]
    shares = [case["error"][WINDOWS] / max(case["error"][WALK], 1e-300) for case in cases]
    if shares:
        text += f"\nerror of windows: at most {max(shares):.1f} times the walk's"
        slowest = max(case["auto_over_walk"] for case in cases)
        text += f'\n"auto": at most {slowest:.2f} times the walk\'s time'
    return text


if __name__ == "__main__":
    main()

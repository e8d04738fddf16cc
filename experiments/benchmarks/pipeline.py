"""Pipelines of two processes on two cores against one process, beside what the model predicts.

    python -m experiments.benchmarks.pipeline

Each process has one thread. "one process" is stock Lightning with one thread; "two threads" is the
same with both cores. The predictions are ratios of loads, from the layers' tasks as timed on this
machine in one thread (`layerpipe.measured`), without messages and without the loader; that of
"layerpipe" with tasks moved, which the executor does only if the counted costs promise a tenth.
A run's time is the mean of its steps, where the loss is known, but the first and last ones; the
runs take turns, and medians are shown. Writes pipeline_cpu.json.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import torch
from torch import nn

from bppsa_lightning.layerpipe.assignment import as_pipedream, assign
from bppsa_lightning.layerpipe.measured import measure
from bppsa_lightning.layerpipe.movable import is_movable
from bppsa_lightning.layerpipe.pipedream import partition
from experiments import recording
from experiments.train.pruned_vgg11 import vgg11

WARM_UP = 8  # steps
SCHEDULES = ("one process", "two threads", "layerpipe", "pipedream", "gpipe", "zero_bubble")


def mlp() -> tuple[nn.Sequential, tuple[int, ...]]:
    """Eight layers of 1024, and the size of a mini-batch."""
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [nn.Linear(1024, 1024), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(1024, 10)), (256, 1024)


def vgg() -> tuple[nn.Sequential, tuple[int, ...]]:
    """VGG-11 for 32 x 32, half as wide, and the size of a mini-batch."""
    return vgg11(norm=False, narrower=2), (64, 3, 32, 32)


NETWORKS = {"MLP": mlp, "VGG-11": vgg}


class Batches:
    """The same mini-batch, some times: a loader that costs nothing."""

    def __init__(self, size: tuple[int, ...], steps: int) -> None:
        self.batch, self.steps = (torch.randn(size), torch.randint(10, size[:1])), steps

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Any]:
        return iter([self.batch] * self.steps)


def train(network: str, schedule: str, steps: int) -> None:
    """A training; prints the seconds of a step, of the process that knows the loss."""
    import lightning.pytorch as pl

    import bppsa_lightning as bl

    chain, size = NETWORKS[network]()

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.ends = chain, []

        def training_step(self, batch: Any, _: int) -> Any:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def on_train_batch_end(self, *_: Any) -> None:
            self.ends.append(time.perf_counter())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 1e-3)

    alone = schedule in ("one process", "two threads")
    torch.set_num_threads(2 if schedule == "two threads" else 1)
    model = Model()
    trainer = pl.Trainer(
        strategy="auto" if alone else bl.LayerPipeStrategy(schedule), devices=1 if alone else 2,
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, barebones=False,
    )  # fmt: skip
    trainer.fit(model, Batches(size, steps))
    if trainer.is_global_zero:
        between = [b - a for a, b in zip(model.ends, model.ends[1:], strict=False)]
        print(json.dumps(sum(between[WARM_UP:-WARM_UP]) / len(between[WARM_UP:-WARM_UP])))


def run(network: str, schedule: str, steps: int) -> float:
    """Seconds of a step, of a training in processes of its own."""
    threads = "2" if schedule == "two threads" else "1"
    command = [sys.executable, "-m", "experiments.benchmarks.pipeline"]
    done = subprocess.run(
        [*command, "--train", network, schedule, "--steps", str(steps)],
        env={**os.environ, "OMP_NUM_THREADS": threads}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{network}, {schedule}: {done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def predicted(network: str) -> dict[str, float]:
    """Speed-ups over one process: all work over the busiest process' load."""
    torch.set_num_threads(1)
    chain, size = NETWORKS[network]()
    costs = measure(chain, torch.randn(size))
    work = sum(cost.total for cost in costs)
    home = as_pipedream(costs, partition(costs, 2), 2)
    near = assign(costs, 2, movable=[is_movable(layer) for layer in chain])
    return {
        "seconds of all tasks": work,
        "pipedream": work / home.interval(costs),
        "layerpipe": work / near.interval(costs),
    }


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=3, help="runs of each kind (default: 3)")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--train", nargs=2, metavar=("NETWORK", "SCHEDULE"), help="one run alone")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    if asked.train:
        train(*asked.train, asked.steps)
        return
    results = {}
    for network in asked.only:
        took: dict[str, list[float]] = {schedule: [] for schedule in SCHEDULES}
        for _ in range(asked.pairs):
            for schedule, seconds in took.items():
                seconds.append(run(network, schedule, asked.steps))
        one = took["one process"]
        results[network] = {
            "predicted": predicted(network),
            "seconds": {name: median(found) for name, found in took.items()},
            "speed_up": {
                name: median(a / b for a, b in zip(one, found, strict=True))
                for name, found in took.items()
            },
        }
        print(f"{network}: {results[network]}", flush=True)
    path = recording.folder(asked.record) / "pipeline_cpu.json"
    recording.write(path, {"pairs": asked.pairs, "steps": asked.steps, "results": results})
    print(f"record: {path}")


if __name__ == "__main__":
    main()

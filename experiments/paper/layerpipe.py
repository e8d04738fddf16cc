"""LayerPipe against PipeDream in modelled cycles: speed-up over 2 to 12 processors, and schedules.

    python -m experiments.paper.layerpipe

LayerPipe (Unnikrishnan and Parhi, arXiv:2108.06629) reports 25 % on average over PipeDream, and
upwards of 80 %, with 7 to 9 processors. Its networks, its equations for cycles and its algorithm
are not public. This is a model of our own: networks as matrix products (`layerpipe.networks`), four
costs (multiply-and-adds; two systolic arrays, by SCALE-Sim's formula; the products timed on this
machine), PipeDream's best straight partition, and the best assignment of F, D and G
(`layerpipe.assignment`). Of each size it says

bound: the busiest processor's load, PipeDream's over LayerPipe's, for both ideas and for each;
simulated: the same ratio in an event simulation, each layer a pipeline stage of its own (delays of
2 for every layer after), and as the executor does it (a stage a process, tasks on neighbours only);
over_replicated: PipeDream with replicated stages, whose all-reduce is free, over LayerPipe.

Writes layerpipe_model.json, .png and layerpipe_schedules.png.
"""

import argparse
import time
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch

from bppsa_lightning.layerpipe.assignment import Assignment, as_pipedream, assign
from bppsa_lightning.layerpipe.costs import LayerCost, Product, costs_of, macs, systolic
from bppsa_lightning.layerpipe.networks import NETWORKS
from bppsa_lightning.layerpipe.pipedream import interval, partition, replicated
from bppsa_lightning.layerpipe.simulator import Simulation
from experiments import recording, style

PAPER = (7, 8, 9)  # processors
BATCH, TIMED_BATCH = 32, 4
COLOURS = {"F": style.SKY, "D": style.ORANGE, "G": style.GREEN}
NAMES = {"F": "F, forward", "D": "D, gradient of the input", "G": "G, gradient of the weights"}


@cache
def timed(product: Product) -> float:
    """Seconds of a product on this machine, one thread: the median of three."""
    a = torch.randn(product.copies, product.m, product.k)
    b = torch.randn(product.copies, product.k, product.n)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        torch.bmm(a, b)
        seconds.append(time.perf_counter() - start)
    return median(seconds)


MODELS = {
    "multiply-and-adds": (macs, BATCH),
    "128 x 128 array, weight-stationary": (systolic(128, 128, "weight"), BATCH),
    "32 x 32 array, output-stationary": (systolic(32, 32, "output"), BATCH),
    "timed products": (timed, TIMED_BATCH),
}


def row(costs: list[LayerCost], processors: int) -> dict[str, Any]:
    """What LayerPipe gains on some processors."""
    cuts = partition(costs, processors)
    base = interval(costs, cuts)
    both = assign(costs, processors)
    home = as_pipedream(costs, cuts, processors)
    found = {
        "processors": processors,
        "bound": base / both.interval(costs),
        "intra": base / assign(costs, processors, inter=False).interval(costs),
        "inter": base / assign(costs, processors, intra=False).interval(costs),
        "over_replicated": replicated(costs, processors) / both.interval(costs),
        "utilisation_pipedream": home.utilisation(costs),
        "utilisation": both.utilisation(costs),
        "communication": both.communication(costs) / max(1.0, home.communication(costs)),
    }
    return found | (simulated(costs, base, both) if processors in PAPER else {})


def simulated(costs: list[LayerCost], base: float, both: Assignment) -> dict[str, float]:
    """Speed-ups in the event simulation."""
    layers = len(costs)
    every = [2 * (layers - 1 - m) for m in range(layers)]
    own = Simulation(costs, both, "layerpipe", 60 + 4 * layers, every)
    near = assign(costs, both.processors, movable=[True] * layers)
    executor = Simulation(costs, near, "layerpipe", 80)
    home = Simulation(costs, as_pipedream(costs, near.cuts, both.processors), "layerpipe", 80)
    best = min(executor.interval(), home.interval())
    return {"simulated": base / own.interval(), "executor": base / best}


def measure() -> dict[str, dict[str, list[dict[str, Any]]]]:
    """{cost model: {network: a row for each number of processors}}."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name, (model, batch) in MODELS.items():
        found[name] = {}
        for network, layers in NETWORKS.items():
            costs = costs_of(layers(batch), model)
            counts = range(2, min(12, len(costs)) + 1)
            found[name][network] = [row(costs, count) for count in counts]
            print(f"{name}, {network}: {text(found[name][network])}", flush=True)
    return found


def text(rows: list[dict[str, Any]]) -> str:
    paper = [r for r in rows if r["processors"] in PAPER]
    return ", ".join(
        f"{r['processors']} processors {r['simulated']:.2f} (bound {r['bound']:.2f})" for r in paper
    )


def summary(rows: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Mean and maximum over all networks with 7 to 9 processors."""
    paper = [r for found in rows.values() for r in found if r["processors"] in PAPER]
    keys = ("bound", "intra", "inter", "simulated", "executor", "over_replicated", "communication")
    return {
        key: {"mean": mean(r[key] for r in paper), "max": max(r[key] for r in paper)}
        for key in (*keys, "utilisation", "utilisation_pipedream")
    }


def draw(record: dict[str, Any], path: Path) -> None:
    """A panel for each network, a line for each cost model."""
    found = record["rows"]
    figure, axes = recording.pyplot().subplots(
        2, 4, figsize=(13, 6.4), sharex=True, sharey=True, layout="constrained"
    )
    for axis, network in zip(axes.flat, NETWORKS, strict=False):
        axis.axvspan(6.5, 9.5, color="0.93", zorder=0)
        # The later a line is drawn the thinner it is: where two coincide, both are seen.
        for place, (name, networks) in enumerate(found.items()):
            rows = networks[network]
            axis.plot(
                [r["processors"] for r in rows], [r["bound"] for r in rows], label=name,
                marker="os^D"[place % 4], ms=8 - 1.7 * place, lw=4.6 - 1.2 * place,
            )  # fmt: skip
        axis.set_title(network)
        axis.axhline(1, color="0.6", linewidth=0.8)
    for axis in axes[1]:
        axis.set_xlabel("processors")
    for axis in axes[:, 0]:
        axis.set_ylabel("speed-up over PipeDream")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    figure.suptitle(
        "LayerPipe over PipeDream, ratio of the busiest processor's loads (grey: 7 to 9 processors)"
    )
    recording.save_figure(figure, path, record["environment"])


def draw_schedules(path: Path, processors: int = 4, batches: int = 9) -> None:
    """Both schedules of a small network, from fill to steady state, on one time axis."""
    costs = [
        LayerCost(str(m), c, c if m else 0.0, c, 1, 1, 1)
        for m, c in enumerate((4.0, 6.0, 9.0, 5.0, 7.0, 3.0, 6.0))
    ]
    home = as_pipedream(costs, partition(costs, processors), processors)
    every = [2 * (len(costs) - 1 - m) for m in range(len(costs))]
    count, near = batches + 20, assign(costs, processors, movable=[True] * len(costs))
    runs = {
        "PipeDream": Simulation(costs, home, "pipedream", count),
        "LayerPipe": Simulation(costs, near, "layerpipe", count, every),
    }
    end = max(d.end for run in runs.values() for d in run.done if d.task.batch < batches - 2)
    pyplot = recording.pyplot()
    figure, axes = pyplot.subplots(2, 1, figsize=(15, 6), sharex=True)
    for axis, (name, run) in zip(axes, runs.items(), strict=True):
        _gantt(axis, run, end)
        axis.set_title(
            f"{name}: a mini-batch every {run.interval():.0f} cycles, processors at work "
            f"{run.utilisation():.0%} of the time",
            loc="left",
        )
        axis.set_yticks(range(processors), [f"processor {p + 1}" for p in range(processors)])
        axis.invert_yaxis()
    axes[1].set_xlabel("cycles; a box is a task of a layer, its number the mini-batch")
    axes[1].set_xlim(0, end)
    boxes = [pyplot.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS.values()]
    figure.legend(boxes, NAMES.values(), ncols=3, frameon=False, loc="upper right")
    figure.tight_layout()
    recording.save_figure(figure, path, note="simulated, of seven layers made up for it")


def _gantt(axis: Any, run: Simulation, end: float) -> None:
    for task, begin, stop in run.done:
        if begin >= end or begin == stop:
            continue
        axis.barh(
            task.processor, stop - begin, left=begin, height=0.86, color=COLOURS[task.kind],
            edgecolor="white", linewidth=1.2,
        )  # fmt: skip
        if (stop + begin) / 2 < end and stop - begin > end / 120:
            axis.text(
                (begin + stop) / 2, task.processor, str(task.batch + 1), ha="center", va="center",
                fontsize=7,
            )  # fmt: skip


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    models = list(MODELS)
    parser.add_argument("--models", nargs="+", choices=models, default=models, metavar="MODEL")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    for name in set(MODELS) - set(asked.models):
        del MODELS[name]
    torch.set_num_threads(1)
    found = measure()
    summaries = {name: summary(rows) for name, rows in found.items()}
    for name, values in summaries.items():
        said = {key: f"{v['mean']:.2f} (max {v['max']:.2f})" for key, v in values.items()}
        print(f"{name}, 7 to 9 processors: {said}")
    path = recording.folder(asked.record) / "layerpipe_model.json"
    settings = {"batch": BATCH, "timed_batch": TIMED_BATCH}
    record = recording.write(path, {"settings": settings, "summary": summaries, "rows": found})
    draw(record, path.with_suffix(".png"))
    draw_schedules(path.with_name("layerpipe_schedules.png"))
    print(f"record: {path}, .png, layerpipe_schedules.png")


if __name__ == "__main__":
    main()

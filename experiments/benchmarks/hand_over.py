"""From how many steps on layers are faster here than in PyTorch, on the CPU; what is chosen by it.

    python -m experiments.benchmarks.hand_over --table --record    # for the planner's tables
    python -m experiments.benchmarks.hand_over --record            # what is chosen in inference

With --table what `bl.calibrate` measures of them in training and in inference, for each number of
threads; `tables` takes two sections of amd_epyc_2 from it. Without, forwards of which nothing is
kept, of sizes between those of the table: PyTorch's layer, ours whatever the table says ("linear"),
and whichever "auto" takes; also whether it would be ours in training (ours_in_training). T steps,
B batch, H input and hidden size. Writes hand_over_table_cpu.json, or inference_cpu.json.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch

from bppsa_lightning.calibration import fit_cpu, least, pairs, ratios
from bppsa_lightning.planner.request import INFERENCE
from experiments import recording
from experiments.benchmarks import chosen_layers

STEPS, BATCHES, SIZES = (1, 3, 6, 20, 200), (1, 3, 8, 32, 128), (20, 48, 100, 200, 400)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    chosen_layers.add_arguments(parser, seconds=0.2)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    of_table = ("hand_over", "inference") if asked.table else ("rows",)
    found: dict[str, list[Any]] = {section: [] for section in of_table}
    with chosen_layers.each_number_of_threads(asked.threads) as each:
        for _ in each:
            if asked.table:
                found["hand_over"].append(least_steps(asked.seconds))
                found["inference"] += ratios_of(asked.seconds)
            else:
                found["rows"] += rows(asked.seconds)
    name = "hand_over_table_cpu" if asked.table else "inference_cpu"
    path = recording.folder(asked.record) / f"{name}.json"
    recording.write(path, found)
    if not asked.table:
        lines = map(chosen_layers.line, found["rows"])
        print(recording.markdown(chosen_layers.HEAD, lines))
    print(f"record: {path}")


def measured(name: str, measure: Callable[[], Any]) -> Any:
    """Nothing is kept for a later call."""
    return measure()


def least_steps(seconds: float) -> dict[str, Any]:
    """A part of a table's "hand_over", with torch's number of threads."""
    nodes = least.Search(measured, seconds).training()
    points = {size: point for node in nodes for size, point in node}
    return fit_cpu.hand_over(points, torch.get_num_threads())


def ratios_of(seconds: float) -> list[dict[str, Any]]:
    """Parts of its "inference"."""
    nodes = ratios.measured(measured, seconds, bfloat16=False)
    found = {size: ratio for node in nodes for size, ratio in node.items()}
    return fit_cpu.ratios(found, torch.get_num_threads())


def rows(seconds: float) -> list[dict[str, Any]]:
    """A row for each size."""
    return [
        chosen_layers.measure(cell, T, B, H, seconds, INFERENCE, False, "ours_in_training")
        for cell in pairs.CELLS
        for H in SIZES
        for B in BATCHES
        for T in STEPS
        if T * B * H * H <= ratios.MOST
    ]


if __name__ == "__main__":
    main()

"""Layers under autocast to bfloat16 beside PyTorch's, on a CPU that multiplies bfloat16.

    python -m experiments.benchmarks.layers_bfloat16 --table --record    # for the planner's table
    python -m experiments.benchmarks.layers_bfloat16 --record            # what is chosen by it

With --table what `bl.calibrate` measures of them, for each number of threads; `tables` derives a
part of amd_epyc_2 from it. Without, sizes between those of the table: PyTorch's layer, ours
whatever the table says ("linear"), and whichever "auto" takes; also whether it would be ours in
float32 (ours_in_float32). Weights are float32; a step is a
forward and backward of every output, or in inference a forward. T steps, B batch, H input and
hidden size. Writes layers_bfloat16_table.json, or layers_bfloat16.json.
"""

import argparse
from typing import Any

import torch

from bppsa_lightning.calibration import fit_cpu, ratios
from bppsa_lightning.planner.request import MODES
from bppsa_lightning.recurrent.precision import multiplies_bfloat16
from experiments import recording
from experiments.benchmarks import chosen_layers

STEPS, BATCHES = (3, 30, 300), (2, 8, 32, 128)
SIZES = {"LSTM": (20, 48, 100, 200, 400), "GRU": (48, 200, 400), "RNN": (48, 200, 400)}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    chosen_layers.add_arguments(parser, seconds=0.4)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    if not multiplies_bfloat16():
        raise SystemExit("This processor has no instructions for bfloat16 that PyTorch would use.")
    found: list[dict[str, Any]] = []
    with chosen_layers.each_number_of_threads(asked.threads) as each:
        for _ in each:
            found += table(asked.seconds) if asked.table else rows(asked.seconds)
    name = "layers_bfloat16_table" if asked.table else "layers_bfloat16"
    path = recording.folder(asked.record) / f"{name}.json"
    recording.write(path, {"table" if asked.table else "rows": found})
    if not asked.table:
        for mode in MODES:
            lines = (chosen_layers.line(row) for row in found if row["mode"] == mode)
            print(f"\n{mode}\n")
            print(recording.markdown(chosen_layers.HEAD, lines))
    print(f"record: {path}")


def table(seconds: float) -> list[dict[str, Any]]:
    """Parts of a table's section, with torch's number of threads."""
    nodes = ratios.measured(lambda name, measure: measure(), seconds, bfloat16=True)
    found = {size: ratio for node in nodes for size, ratio in node.items()}
    return fit_cpu.ratios(found, torch.get_num_threads())


def rows(seconds: float) -> list[dict[str, Any]]:
    """A row for each mode and size."""
    return [
        chosen_layers.measure(cell, T, B, H, seconds, mode, True, "ours_in_float32")
        for mode in MODES
        for cell in SIZES
        for H in SIZES[cell]
        for B in BATCHES
        for T in STEPS
        if T * B * H * H <= ratios.MOST
    ]


if __name__ == "__main__":
    main()

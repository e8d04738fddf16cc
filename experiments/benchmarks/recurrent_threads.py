"""Recurrent layers on the CPU with a given number of threads: a part of the grid, in given minutes.

    python -m experiments.benchmarks.recurrent_threads 4
    python -m experiments.benchmarks.recurrent_threads 16 --minutes 10 --seconds 0.25

Rows are measured as in recurrent_cpu.py. Where the planner leaves a layer to PyTorch, the row also
has what it takes if scanned all the same ("scan"), so that a planner's table can be fitted to every
row. What is scanned and close to stock is measured again. The sizes come in rising order of their
work; those that the minutes do not reach are counted ("left_out"). Writes
grid_recurrent_cpu_<processor>_<threads>.json, row by row.

Letters: B batch, T steps, H hidden, I input.
"""

import argparse
import time

import torch

from experiments import recording
from experiments.benchmarks import recurrent_report
from experiments.benchmarks.recurrent_cases import Case
from experiments.benchmarks.recurrent_cpu import CLOSE, PAIRS_OF_CLOSE
from experiments.benchmarks.recurrent_rows import Row, add_arguments, measure

CPU = torch.device("cpu")
# B, T, H, I
SIZES = [
    (B, T, H, H)
    for H in (8, 20, 64, 128, 256, 512)
    for T in (1, 10, 100, 1000)
    for B in (1, 16, 64, 256)
]
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("threads", type=int)
    parser.add_argument("--minutes", type=float, default=2.0, help="for all sizes (default 2)")
    add_arguments(parser, seconds=0.25)
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    torch.set_num_threads(asked.threads)
    cases = [Case(cell, *size) for size in asked.sizes or SIZES for cell in asked.cells]
    cases.sort(key=work)
    name = recording.file_name(f"grid_recurrent_cpu_{recording.cpu_name()}_{asked.threads}")
    path = recording.folder(asked.record) / f"{name}.json"
    end, rows = time.perf_counter() + asked.minutes * 60, list[Row]()
    print(recurrent_report.heading())
    for i, case in enumerate(cases):
        start = time.perf_counter()
        seconds = min(asked.seconds, max(end - start, 0) / (len(cases) - i))
        row = measure(case, CPU, seconds, asked.pairs, scan=True)
        if row["scanned"] and row["ratio_stock"]["both"] < CLOSE:
            row = measure(case, CPU, 3 * seconds, asked.pairs, PAIRS_OF_CLOSE) | {"again": True}
        rows.append(row)
        print(recurrent_report.line(rows[-1]), flush=True)
        left_out = len(cases) - len(rows)
        if not asked.sizes:
            recording.write(path, {"rows": rows, "left_out": left_out})
        now = time.perf_counter()
        if now + (now - start) > end:  # the next takes as long, or longer
            print(f"{left_out} larger sizes left out: {asked.minutes:g} minutes are over")
            break


def work(case: Case) -> int:
    """Multiply-adds of a forward."""
    return case.B * case.T * case.H * (case.H + case.I) * GATES[case.cell]


if __name__ == "__main__":
    main()

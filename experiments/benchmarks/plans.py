"""The planner's choice against every fixed one: the backward of a recurrent layer, in one run.

    python experiments/benchmark_planner.py

For each cell and size, each fixed algorithm and the plan of "auto" take turns (once, where auto's
plan is one of the fixed: it is the same call); medians of the backward with
parameter gradients, in seconds, and the planner's estimate of the scan. Writes
experiments/records/planner_recurrent_cpu.json. On the CPU only.

Letters: B batch, T steps, H hidden.
"""

import time
from statistics import median

import record
import torch

import bppsa_lightning as bl

CELLS = {"rnn_tanh": 1, "gru": 3, "lstm": 4}
SIZES = [(B, T, H) for B in (1, 2, 16, 64) for T in (10, 100, 1000) for H in (1, 8, 20, 64)]
SIZES += [(1, 10000, 20), (1, 10000, 8), (16, 100, 128)]
SECONDS = 1.0
TURNS = 15


def main() -> None:
    rows, worst = [], 0.0
    for cell in CELLS:
        for B, T, H in SIZES:
            row = measure(cell, B, T, H)
            rows.append(row)
            best = min(row["seconds"][name] for name in row["seconds"] if name != "auto")
            row["auto_over_best"] = row["seconds"]["auto"] / best
            row["auto_minus_best"] = row["seconds"]["auto"] - best
            missed = row["auto_over_best"] > 1.1 and row["auto_minus_best"] > 50e-6
            worst = max(worst, row["auto_over_best"] if row["auto_minus_best"] > 50e-6 else 1.0)
            times = " ".join(f"{name} {t * 1e3:.3f}" for name, t in row["seconds"].items())
            print(cell, B, T, H, times, "ms", "MISSED" if missed else "", flush=True)
    print(f"auto is at most {worst:.2f}x the best fixed choice where that is more than 50 us")
    record.write(record.RECORDS / "planner_recurrent_cpu.json", {"rows": rows})


def measure(cell: str, B: int, T: int, H: int) -> dict:
    torch.manual_seed(0)
    bound, G = H**-0.5, CELLS[cell]
    weights = [torch.empty(G * H, n).uniform_(-bound, bound) for n in (1, H)]
    weights += [torch.empty(G * H).uniform_(-bound, bound) for _ in range(2)]
    x, u = torch.rand(T, B, 1), torch.randn(T, B, H)
    operands = (x, None, None, *weights, None, False)
    output, _, _, kept = torch.ops.bppsa.recurrent(cell, *operands, 2, "auto")
    plans = {
        name: bl.planner.choose(T, B, H, x.device, name)
        for name in ("auto", "linear", "chunked", "blelloch")
    }
    taken: dict[tuple[str, int, int], list[float]] = {_key(plan): [] for plan in plans.values()}
    start = time.perf_counter()
    while time.perf_counter() - start < SECONDS and len(taken[_key(plans["auto"])]) < TURNS:
        for plan, times in taken.items():
            # Twice, the second counts: the first finds the others' data in the caches.
            for _ in range(2):
                began = time.perf_counter()
                torch.ops.bppsa.recurrent_backward(
                    cell, u, None, None, output, kept, *operands, *plan, 0b1111000
                )
                took = time.perf_counter() - began
            times.append(took)
    return {
        "cell": cell, "B": B, "T": T, "H": H, "auto": plans["auto"].algorithm,
        "estimate": plans["auto"].seconds,
        "seconds": {name: median(taken[_key(plan)]) for name, plan in plans.items()},
    }  # fmt: skip


def _key(plan: bl.Plan) -> tuple[str, int, int]:
    return plan.algorithm, plan.chunk, plan.levels


if __name__ == "__main__":
    main()

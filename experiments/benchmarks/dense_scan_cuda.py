"""What the dense scan takes on this GPU, under each algorithm, beside the planner's estimate.

    python -m experiments.benchmarks.dense_scan_cuda

Writes gpu_dense_scan.json: bppsa::reverse_scan, milliseconds, medians, by CUDA events. The record
h200_dense_scan.json is such a file, of an H200. (Recurrent layers: recurrent_gpu.py.)

B batch, T steps, H state.
"""

import argparse
from typing import Any

import torch

import bppsa_lightning as bl
from bppsa_lightning import planner
from bppsa_lightning.planner import cost_dense
from bppsa_lightning.planner.plan import workers
from experiments import recording
from experiments.benchmarks import timing

SCANS = [(16, 1000, 20), (1, 1000, 20), (256, 1000, 20), (16, 10000, 20), (1, 10000, 20)]
SCANS += [(16, 1000, 64), (16, 300, 128), (4, 100, 256), (64, 100, 8)]
SCANS_OF_A_TURN = 7


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    rows = [row for size in SCANS for row in dense_scans(*size)]
    what = f"bppsa::reverse_scan, milliseconds, medians of {SCANS_OF_A_TURN}"
    path = recording.folder(asked.record) / "gpu_dense_scan.json"
    recording.write(path, {"what": what, "rows": rows})
    print(f"record: {path}")


def dense_scans(B: int, T: int, H: int) -> list[dict[str, Any]]:
    """A row for each plan of one size."""
    jac_t = torch.randn(T, B, H, H, device="cuda") / H**0.5
    grad = torch.randn(T + 1, B, H, device="cuda")
    plans = [bl.Plan("linear"), *(bl.Plan("chunked", chunk=c) for c in (8, 16, 32, 64))]
    plans += [bl.Plan("blelloch", levels=n) for n in (2, planner.max_levels(T))]
    on = cost_dense.machine(planner.DENSE, jac_t.device, workers(jac_t.device))
    rows = []
    for plan in plans:
        seconds = timing.turn(step_of(jac_t, grad, plan), SCANS_OF_A_TURN, unmeasured=2)["scan"]
        row = {"B": B, "T": T, "H": H, "algorithm": plan.algorithm, "chunk": plan.chunk}
        row |= {"levels": plan.levels, "ms": seconds * 1e3}
        row |= {"estimate_ms": cost_dense.estimate(plan, T, B, H, on) * 1e3}
        rows.append(row)
        print(row, flush=True)
    return rows


def step_of(jac_t: torch.Tensor, grad: torch.Tensor, plan: bl.Plan) -> timing.Step:
    how = (plan.algorithm, plan.chunk, plan.levels)

    def scan() -> object:
        return torch.ops.bppsa.reverse_scan(jac_t, grad, *how, False)

    return lambda: timing.timed(jac_t.device, scan=scan)


if __name__ == "__main__":
    main()

"""What the dense scan takes on this GPU, under each algorithm, beside the planner's estimate.

    python experiments/measure_gpu.py

Writes experiments/records/gpu_dense_scan.json: bppsa::reverse_scan, milliseconds, medians, by CUDA
events. The committed h200_dense_scan.json is such a file of an H200. (Recurrent layers:
benchmark_recurrent.py --device cuda.)

B batch, T steps, H state.
"""

from statistics import median

import record
import torch

import bppsa_lightning as bl

SCANS = [(16, 1000, 20), (1, 1000, 20), (256, 1000, 20), (16, 10000, 20), (1, 10000, 20)]
SCANS += [(16, 1000, 64), (16, 300, 128), (4, 100, 256), (64, 100, 8)]


def main() -> None:
    rows = [row for size in SCANS for row in dense_scans(*size)]
    what = "bppsa::reverse_scan, milliseconds, medians of 7"
    record.write(record.RECORDS / "gpu_dense_scan.json", {"what": what, "rows": rows})


def dense_scans(B: int, T: int, H: int) -> list[dict]:
    jac_t = torch.randn(T, B, H, H, device="cuda") / H**0.5
    grad = torch.randn(T + 1, B, H, device="cuda")
    plans = [bl.Plan("linear"), *(bl.Plan("chunked", chunk=c) for c in (8, 16, 32, 64))]
    plans += [bl.Plan("blelloch", levels=n) for n in (2, bl.planner.max_levels(T))]
    rows = []
    for plan in plans:
        times = []
        for _ in range(9):
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            marks[0].record()
            torch.ops.bppsa.reverse_scan(
                jac_t, grad, plan.algorithm, plan.chunk, plan.levels, False
            )
            marks[1].record()
            torch.cuda.synchronize()
            times.append(marks[0].elapsed_time(marks[1]))
        on = bl.planner.machine(jac_t.device)
        estimate = bl.planner.estimate(plan, T, B, H, on) * 1e3
        row = {"B": B, "T": T, "H": H, "algorithm": plan.algorithm, "chunk": plan.chunk}
        row |= {"levels": plan.levels, "ms": median(times[2:]), "estimate_ms": estimate}
        rows.append(row)
        print(row, flush=True)
    return rows


if __name__ == "__main__":
    main()

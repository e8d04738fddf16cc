"""What stock cuDNN and the dense scan take on this GPU: the ground that CUDA work is measured from.

    python experiments/measure_gpu.py

Writes experiments/records/gpu_stock_cudnn.json (nn.RNN, nn.GRU, nn.LSTM over the paper's grid,
input size 1, float32 without TF32, forward, backward of a loss on the last state, both) and
gpu_dense_scan.json (bppsa::reverse_scan under each algorithm, with the planner's estimate).
Milliseconds, medians; times of CUDA events, `both_ms` by the host's clock around an idle device.
The committed h200_*.json are such files of an H200.

B batch, T steps, H state.
"""

import time
from statistics import median

import record
import torch
from torch import nn

import bppsa_lightning as bl

LAYERS = [(16, T, 20) for T in (10, 30, 100, 300, 1000, 3000, 10000, 30000)]
LAYERS += [(B, 1000, 20) for B in (1, 2, 4, 8, 32, 64, 128, 256)]
LAYERS += [(16, 1000, H) for H in (8, 64, 128, 256)]
SCANS = [(16, 1000, 20), (1, 1000, 20), (256, 1000, 20), (16, 10000, 20), (1, 10000, 20)]
SCANS += [(16, 1000, 64), (16, 300, 128), (4, 100, 256), (64, 100, 8)]


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    rows = [stock(cell, *size) for cell in (nn.RNN, nn.GRU, nn.LSTM) for size in LAYERS]
    what = "stock nn layers, input size 1, float32, no TF32, milliseconds, medians"
    record.write(record.RECORDS / "gpu_stock_cudnn.json", {"what": what, "rows": rows})
    rows = [row for size in SCANS for row in dense_scans(*size)]
    what = "bppsa::reverse_scan, milliseconds, medians of 7"
    record.write(record.RECORDS / "gpu_dense_scan.json", {"what": what, "rows": rows})


def stock(cell: type[nn.RNNBase], B: int, T: int, H: int) -> dict:
    layer, x = cell(1, H, device="cuda"), torch.rand(T, B, 1, device="cuda")
    forward, backward, both = [], [], []
    for _ in range(12 if T * B <= 64000 else 6):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        torch.cuda.synchronize()
        start = time.perf_counter()
        marks[0].record()
        layer.zero_grad()
        last = layer(x)[1]
        loss = (last[0] if cell is nn.LSTM else last).sum()
        marks[1].record()
        loss.backward()
        marks[2].record()
        torch.cuda.synchronize()
        both.append((time.perf_counter() - start) * 1e3)
        forward.append(marks[0].elapsed_time(marks[1]))
        backward.append(marks[1].elapsed_time(marks[2]))
    times = {"forward_ms": forward, "backward_ms": backward, "both_ms": both}
    row = {"cell": cell.__name__, "B": B, "T": T, "H": H}
    row |= {name: median(values[2:]) for name, values in times.items()}
    print(row, flush=True)
    return row


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

"""The recurrent operators on a CUDA device against stock PyTorch's (cuDNN), in pairs, in one run.

    python experiments/benchmark_cuda.py                              # the grid below
    python experiments/benchmark_cuda.py --cells gru --sizes 16,1000,20 --profile

One step is a forward and a backward from a gradient of the last state to all weights and biases.
Ours are bare operator calls, linear and chunked with each chunk of CHUNKS; stock is nn.RNN, nn.GRU
or nn.LSTM. A turn is one step of stock and one of every plan of ours; each step starts on an idle
device and is timed with CUDA events, so that what the host does meanwhile is counted where the
device waits for it. Printed are medians in milliseconds, and for the best plan the median of the
ratios to stock of the same turn (above 1: ours is faster). Writes
experiments/records/benchmark_cuda.json.

Letters: B batch, T steps, H state.
"""

import argparse
import math
import time
from statistics import median

import record
import torch
from torch import nn

import bppsa_lightning  # noqa: F401  (loads the operators)

CELLS = {"rnn_tanh": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
GATES = {"rnn_tanh": 1, "gru": 3, "lstm": 4}
CHUNKS = [8, 16, 32, 64]
# B, T, H: the paper's sweeps, then larger states.
GRID = [(16, T, 20) for T in (10, 30, 100, 300, 1000, 3000, 10000, 30000)]
GRID += [(B, 1000, 20) for B in (2, 4, 8, 32, 64, 128, 256)]
GRID += [(16, 1000, H) for H in (64, 128, 256)]
WEIGHTS = 0b1111000  # of recurrent_backward's results: w_ih, w_hh, b_ih, b_hh
PARTS = ("forward", "backward", "both")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cells", nargs="*", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--sizes", nargs="*", help="B,T,H triples instead of the grid")
    parser.add_argument("--chunks", nargs="*", type=int, help="instead of CHUNKS and a few more")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each size (default 1)")
    parser.add_argument("--profile", action="store_true", help="print the time of each kernel too")
    parser.add_argument("--no-record", action="store_true", help="print only")
    arguments = parser.parse_args()
    sizes = [tuple(map(int, s.split(","))) for s in arguments.sizes or []] or GRID
    rows = []
    for cell in arguments.cells:
        print(f"\n{cell}: milliseconds; x: times faster than stock, with the best plan")
        names = "B", "T", "H", "stock f", "b", "both", "ours f", "b", "plan"
        print("".join(f"{n:>9}" for n in names) + "    f x      b x   both x   every plan's b")
        for B, T, H in sizes:
            row = measure(cell, B, T, H, arguments.chunks, arguments.seconds)
            rows.append(row)
            show(row)
            if arguments.profile:
                profile(cell, B, T, H, row["best"])
    if not arguments.no_record and not arguments.sizes:
        path = record.RECORDS / "benchmark_cuda.json"
        record.write(path, {"rows": rows})
        print(f"record: {path}")


def show(row: dict) -> None:
    stock, ours, ratio = row["stock"], row["plans"][row["best"]], row["ratio"]
    print(
        "".join(f"{row[n]:>9}" for n in "BTH")
        + "".join(f"{stock[part]:>9.3f}" for part in PARTS)
        + "".join(f"{ours[part]:>9.3f}" for part in PARTS[:2])
        + f"{row['best']:>9}"
        + "".join(f"{ratio[part]:>8.1f}x" for part in PARTS)
        + "   "
        + " ".join(f"{name}:{times['backward']:.3f}" for name, times in row["plans"].items()),
        flush=True,
    )


class Ours:
    """A layer's weights and one plan, as bare operator calls."""

    def __init__(self, cell: str, layer: nn.RNNBase, x: torch.Tensor, grad: torch.Tensor):
        self.cell, self.grad = cell, grad
        weights = [w.detach() for w in layer.all_weights[0]]
        self.operands = (x, None, None, *weights, None)
        self.plan = ("linear", 0, 0)

    def forward(self) -> None:
        self.output, _, _, self.kept = torch.ops.bppsa.recurrent(
            self.cell, *self.operands, False, 2, self.plan[0]
        )

    def backward(self) -> None:
        torch.ops.bppsa.recurrent_backward(
            *(self.cell, None, self.grad, None, self.output, self.kept, *self.operands),
            *(False, *self.plan, WEIGHTS),
        )


class Stock:
    """The same through autograd."""

    def __init__(self, layer: nn.RNNBase, x: torch.Tensor, grad: torch.Tensor):
        self.layer, self.x, self.grad = layer, x, grad

    def forward(self) -> None:
        self.layer.zero_grad(set_to_none=True)
        _, last = self.layer(self.x)
        self.last = last[0] if isinstance(last, tuple) else last

    def backward(self) -> None:
        self.last.backward(self.grad[None])


def pair(cell: str, B: int, T: int, H: int) -> tuple[Stock, Ours]:
    torch.manual_seed(0)
    layer = CELLS[cell](1, H, device="cuda")
    x = torch.rand(T, B, 1, device="cuda")
    grad = torch.randn(B, H, device="cuda") / B
    return Stock(layer, x, grad), Ours(cell, layer, x, grad)


def plans(T: int, H: int, chunks: list[int] | None) -> dict[str, tuple[str, int, int]]:
    found = {"linear": ("linear", 0, 0)}
    if H <= 32:
        # A chunk near the root of T balances the carry phase against the others.
        root = 2 ** max(round(math.log2(T) / 2), 3)
        for chunk in chunks or sorted({*CHUNKS, 2 * root, 4 * root}):
            if chunk < T:
                found[f"c{chunk}"] = ("chunked", chunk, 0)
    return found


def measure(cell: str, B: int, T: int, H: int, chunks: list[int] | None, seconds: float) -> dict:
    stock, ours = pair(cell, B, T, H)
    every = plans(T, H, chunks)
    turns = []
    end = time.perf_counter() + seconds
    while len(turns) < 5 or (time.perf_counter() < end and len(turns) < 30):
        turn = {"stock": once(stock)}
        for name, plan in every.items():
            ours.plan = plan
            turn[name] = once(ours)
        turns.append(turn)
    turns = turns[2:]
    medians = {
        who: {part: median(turn[who][part] for turn in turns) for part in PARTS} for who in turns[0]
    }
    best = min(every, key=lambda name: medians[name]["backward"])
    ratio = {part: median(t["stock"][part] / t[best][part] for t in turns) for part in PARTS}
    return {
        "cell": cell, "B": B, "T": T, "H": H, "stock": medians["stock"], "best": best,
        "plans": {name: medians[name] for name in every}, "ratio": ratio, "turns": len(turns),
    }  # fmt: skip


def once(who: Stock | Ours) -> dict[str, float]:
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
    torch.cuda.synchronize()
    marks[0].record()
    who.forward()
    marks[1].record()
    who.backward()
    marks[2].record()
    torch.cuda.synchronize()
    forward, backward = (a.elapsed_time(b) for a, b in zip(marks, marks[1:], strict=False))
    return {"forward": forward, "backward": backward, "both": forward + backward}


def profile(cell: str, B: int, T: int, H: int, best: str) -> None:
    stock, ours = pair(cell, B, T, H)
    for name, who in (("stock", stock), ("linear", ours), (best, ours)):
        if who is ours:
            ours.plan = plans(T, H, None).get(name, ("chunked", int(name.lstrip("c") or 1), 0))
        once(who)
        kinds = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=kinds) as found:
            for _ in range(3):
                once(who)
        print(f"  kernels of {name}: microseconds a call, calls a step")
        events = [e for e in found.key_averages() if e.self_device_time_total > 0]
        for event in sorted(events, key=lambda e: -e.self_device_time_total)[:8]:
            each = event.self_device_time_total / event.count
            print(f"  {each:>10.1f} {event.count / 3:>6.1f}  {event.key[:110]}")


if __name__ == "__main__":
    main()

"""Recurrent layers: forward and backward by scan against stock PyTorch, in pairs, in one run.

    python experiments/benchmark_recurrent.py                 # the grid below
    python experiments/benchmark_recurrent.py --sizes 16,1000,20 --repeats 50

One step is zero_grad, forward, backward of a loss on the last state, parameter gradients included,
on the same input and weights. A pair is six steps of ours, then six of stock, as training repeats
its steps; the first two of each turn find the other's data in the caches and the heap handed back,
and are not counted. Printed are medians over pairs, and the median of the pairwise ratios (above
1: ours is faster). Where the layer is left to PyTorch, it says so. Writes
experiments/records/benchmark_recurrent_<device>.json.
"""

import argparse
import copy
import time
from statistics import median

import record
import torch
from torch import nn

import bppsa_lightning as bl

# B, T, H; the paper's own setting first.
GRID = [(16, 1000, 20)]
GRID += [(16, T, 20) for T in (10, 30, 100, 300, 3000, 10000)]
GRID += [(B, 1000, 20) for B in (1, 2, 4, 8, 32, 64, 128, 256)]
GRID += [(16, 1000, H) for H in (1, 8, 64, 128, 256)]
GRID += [(1, 10000, 20)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", nargs="*", help="B,T,H triples instead of the grid")
    parser.add_argument("--repeats", type=int, default=15, help="pairs a size (default 15)")
    parser.add_argument("--no-record", action="store_true", help="print only")
    arguments = parser.parse_args()
    sizes = [tuple(map(int, s.split(","))) for s in arguments.sizes or []] or GRID
    device = torch.device(arguments.device)

    print("RNN-tanh, milliseconds, forward + backward with parameter gradients")
    columns = (
        "B",
        "T",
        "H",
        "fwd",
        "bwd",
        "both",
        "stock fwd",
        "bwd",
        "both",
        "fwd",
        "bwd",
        "both",
    )
    print("".join(f"{name:>10}" for name in columns))
    rows = []
    for B, T, H in sizes:
        row = measure(B, T, H, device, arguments.repeats)
        rows.append(row)
        times = [row[who][part] * 1e3 for who in ("ours", "stock") for part in PARTS]
        ratios = [row["ratio"][part] for part in PARTS]
        print(
            "".join(f"{n:>10}" for n in (B, T, H))
            + "".join(f"{t:>10.3f}" for t in times)
            + "".join(f"{r:>9.1f}x" for r in ratios)
            + ("" if row["scanned"] else "   left to PyTorch")
        )
    if not arguments.no_record and not arguments.sizes:
        path = record.RECORDS / f"benchmark_recurrent_{device.type}.json"
        record.write(path, {"cell": "RNN-tanh", "repeats": arguments.repeats, "rows": rows})
        print(f"record: {path}")


PARTS = ("forward", "backward", "both")


def measure(B: int, T: int, H: int, device: torch.device, repeats: int) -> dict:
    torch.manual_seed(0)
    stock = nn.RNN(1, H, device=device)
    ours = copy.deepcopy(stock)
    (chain,) = bl.attach(ours)
    x = torch.rand(T, B, 1, device=device)
    pairs = [(turn(ours, x), turn(stock, x)) for _ in range(repeats)]
    times = {
        who: {part: median(pair[i][part] for pair in pairs) for part in PARTS}
        for i, who in enumerate(("ours", "stock"))
    }
    ratio = {part: median(b[part] / a[part] for a, b in pairs) for part in PARTS}
    plan = chain.plan()
    algorithm = plan.algorithm if plan else None
    return {
        "B": B, "T": T, "H": H, "scanned": chain.calls > 0, "algorithm": algorithm,
        **times, "ratio": ratio,
    }  # fmt: skip


def turn(layer: nn.RNN, x: torch.Tensor) -> dict[str, float]:
    """Medians of six consecutive steps without the first two."""
    measured = [once(layer, x) for _ in range(6)][2:]
    return {part: median(step[part] for step in measured) for part in PARTS}


def once(layer: nn.RNN, x: torch.Tensor) -> dict[str, float]:
    layer.zero_grad()
    start = now(x)
    _, last = layer(x)
    loss = last.sum()
    middle = now(x)
    loss.backward()
    end = now(x)
    return {"forward": middle - start, "backward": end - middle, "both": end - start}


def now(x: torch.Tensor) -> float:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return time.perf_counter()


if __name__ == "__main__":
    main()

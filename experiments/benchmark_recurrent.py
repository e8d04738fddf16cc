"""Recurrent layers: forward and backward by scan against stock PyTorch, and JAX where installed.

    python experiments/benchmark_recurrent.py                      # the table of the README
    python experiments/benchmark_recurrent.py --grid               # every size of GRID, coarser
    python experiments/benchmark_recurrent.py --cells LSTM --sizes 16,1000,20,1 --no-record

One step is zero_grad, forward, backward from a gradient of every output, parameter gradients
included, on the same input and weights. (A loss on the last state alone would flatter us: its
gradient fades into denormal numbers, which slow stock PyTorch down up to 15 times on Intel cores.)
A pair is a turn of ours, then one of stock (then one of JAX), see turns.py. Printed are medians
over pairs, and the median of the pairwise ratios (above 1: ours is faster). JAX is jax.jit of
lax.scan's value and gradient; its step is not split. Peak memory is what one forward and backward
of a fresh process adds to its resident set (CPU), or to the allocator's peak (CUDA). Where the
layer is left to PyTorch, the table says so. Writes
experiments/records/benchmark_recurrent_<device>.json and .png (with --grid: grid_…).

Letters: B batch, T steps, H hidden, I input.
"""

import argparse
import copy
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import record
import torch
import turns
from torch import nn
from turns import now

import bppsa_lightning as bl

CELLS = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}
# B, T, H, I
TABLE = [(16, 1000, 20, 1), (1, 10000, 20, 1), (16, 1000, 128, 128), (16, 1000, 128, 1)]
TABLE += [(16, T, 20, 1) for T in (1, 10, 100, 10000)]
TABLE += [(B, 1000, 20, 1) for B in (1, 64, 256)]
GRID = [
    (B, T, H, H)
    for H in (1, 8, 20, 64, 128, 256, 512)
    for T in (1, 10, 100, 1000)
    for B in (1, 2, 16, 64, 256)
]
MEMORY = (16, 30000, 20, 1)
PARTS = ("forward", "backward", "both")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cells", nargs="*", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--sizes", nargs="*", help="B,T,H,I instead of the table")
    parser.add_argument("--grid", action="store_true", help="every size of GRID, without JAX")
    parser.add_argument("--pairs", type=int, default=11, help="at most, for a size (default 11)")
    parser.add_argument("--seconds", type=float, default=6.0, help="for a size (default 6)")
    parser.add_argument("--no-record", action="store_true", help="print only")
    parser.add_argument("--memory-of", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        print(json.dumps(peak_memory(*arguments.memory_of)))
        return
    sizes = [tuple(map(int, s.split(","))) for s in arguments.sizes or []]
    sizes = sizes or (GRID if arguments.grid else TABLE)
    device = torch.device(arguments.device)
    rows = []
    print("milliseconds, forward + backward with parameter gradients; x: stock / ours, JAX / ours")
    columns = ("cell", "B", "T", "H", "I", "fwd", "bwd", "both", "stock fwd", "bwd", "both", "JAX")
    print("".join(f"{name:>9}" for name in (*columns, "fwd x", "bwd x", "both x", "JAX x")))
    for B, T, H, I in sizes:
        for cell in arguments.cells:
            row = measure(cell, B, T, H, I, device, arguments)
            rows.append(row)
            show(row)
    results: dict[str, Any] = {"rows": rows}
    if not (arguments.sizes or arguments.grid):
        results["peak_memory"] = [memory(cell, device) for cell in arguments.cells]
    if not arguments.no_record and not arguments.sizes:
        name = f"{'grid' if arguments.grid else 'benchmark'}_recurrent_{device.type}"
        record.write(record.RECORDS / f"{name}.json", results)
        draw(rows, record.RECORDS / f"{name}.png")
        print(f"record: {record.RECORDS / name}.json, .png")


def measure(
    cell: str, B: int, T: int, H: int, I: int, device: torch.device, arguments: argparse.Namespace
) -> dict:
    torch.manual_seed(0)
    stock = CELLS[cell](I, H, device=device)
    ours = copy.deepcopy(stock)
    (chain,) = bl.attach(ours)
    x = torch.rand(T, B, I, device=device)
    cotangent = torch.randn(T, B, H, device=device)
    steps: dict[str, Any] = {
        "ours": lambda: torch_step(ours, x, cotangent),
        "stock": lambda: torch_step(stock, x, cotangent),
    }
    if device.type == "cpu" and not arguments.grid:
        jax_step = jax_of(cell, stock, x, cotangent)
        if jax_step is not None:
            steps["jax"] = jax_step
    measured = turns.measure(steps, arguments.seconds, arguments.pairs)
    row: dict[str, Any] = {"cell": cell, "B": B, "T": T, "H": H, "I": I}
    plan = chain.plan()
    row["scanned"] = chain.calls > 0
    row["algorithm"] = plan.algorithm if plan else None
    row["left_to_pytorch"] = chain.reason
    return row | measured


def torch_step(layer: nn.RNNBase, x: torch.Tensor, cotangent: torch.Tensor) -> dict[str, float]:
    layer.zero_grad()
    start = now(x)
    output, _ = layer(x)
    middle = now(x)
    output.backward(cotangent)
    end = now(x)
    return {"forward": middle - start, "backward": end - middle, "both": end - start}


def jax_of(cell: str, layer: nn.RNNBase, x: torch.Tensor, cotangent: torch.Tensor) -> Any:
    """One step of the same layer in jitted JAX, or None without JAX."""
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        return None

    def one(weights: Any, state: Any, x_t: Any) -> Any:
        w_ih, w_hh, b_ih, b_hh = weights
        h = state[0]
        a, b = x_t @ w_ih.T + b_ih, h @ w_hh.T + b_hh
        if cell == "RNN":
            return (jnp.tanh(a + b),)
        if cell == "GRU":
            (ar, az, an), (br, bz, bn) = jnp.split(a, 3, -1), jnp.split(b, 3, -1)
            r, z = jax.nn.sigmoid(ar + br), jax.nn.sigmoid(az + bz)
            n = jnp.tanh(an + r * bn)
            return (n + z * (h - n),)
        i, f, g, o = jnp.split(a + b, 4, -1)
        c = jax.nn.sigmoid(f) * state[1] + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c)

    def loss(weights: Any, xs: Any, u: Any) -> Any:
        zero = jnp.zeros((xs.shape[1], layer.hidden_size))
        first = (zero, zero) if cell == "LSTM" else (zero,)

        def scanned(state: Any, x_t: Any) -> Any:
            state = one(weights, state, x_t)
            return state, state[0]

        _, outputs = jax.lax.scan(scanned, first, xs)
        return (outputs * u).sum(), outputs

    weights = [jnp.asarray(w.detach().numpy()) for w in layer.parameters()]
    xs, u = jnp.asarray(x.numpy()), jnp.asarray(cotangent.numpy())
    gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))

    def step() -> dict[str, float]:
        start = time.perf_counter()
        jax.block_until_ready(gradient(weights, xs, u))
        return {"both": time.perf_counter() - start}

    step()
    return step


def memory(cell: str, device: torch.device) -> dict:
    """Peak extra bytes of one forward and backward at MEMORY, each way in a fresh process."""
    row: dict[str, Any] = {"cell": cell, **dict(zip("BTHI", MEMORY, strict=True))}
    for who in ("ours", "stock"):
        command = [sys.executable, __file__, "--memory-of", cell, who, str(device)]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        row[who] = json.loads(found)
    B, T, H, _ = MEMORY
    row["numbers_per_TBH"] = {who: row[who] / 4 / (T * B * H) for who in ("ours", "stock")}
    print(f"peak memory {cell} {MEMORY}: " + ", ".join(
        f"{who} {n:.2f} T B H numbers" for who, n in row["numbers_per_TBH"].items()
    ))  # fmt: skip
    return row


def peak_memory(cell: str, who: str, device: str) -> int:
    B, T, H, I = MEMORY
    layer = CELLS[cell](I, H, device=device)
    if who == "ours":
        bl.attach(layer)
    x, cotangent = torch.rand(T, B, I, device=device), torch.randn(T, B, H, device=device)
    torch_step(layer, x[:100], cotangent[:100])  # what any first step sets up
    if device != "cpu":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        torch_step(layer, x, cotangent)
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    torch_step(layer, x, cotangent)
    return resident("VmHWM") - before


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def show(row: dict) -> None:
    cells = [f"{row[k]:>9}" for k in ("cell", "B", "T", "H", "I")]
    cells += [f"{row[who][part] * 1e3:>9.3f}" for who in ("ours", "stock") for part in PARTS]
    cells.append(f"{row['jax']['both'] * 1e3:>9.3f}" if "jax" in row else f"{'-':>9}")
    cells += [f"{row['ratio_stock'][part]:>8.2f}x" for part in PARTS]
    cells.append(f"{row['ratio_jax']['both']:>8.2f}x" if "jax" in row else f"{'-':>9}")
    print("".join(cells) + ("" if row["scanned"] else "   left to PyTorch"), flush=True)


def draw(rows: list[dict], path: Path) -> None:
    cells = list(dict.fromkeys(row["cell"] for row in rows))
    figure, axes = record.pyplot().subplots(1, len(cells), figsize=(6 * len(cells), 5), sharey=True)
    for axis, cell in zip(torch.atleast_1d(torch.arange(len(cells))).tolist(), cells, strict=True):
        panel = axes[axis] if len(cells) > 1 else axes
        mine = sorted(
            (r for r in rows if r["cell"] == cell), key=lambda r: r["T"] * r["B"] * r["H"]
        )
        x = range(len(mine))
        panel.bar(x, [r["ratio_stock"]["both"] for r in mine], color=[
            "tab:blue" if r["scanned"] else "lightgray" for r in mine
        ])  # fmt: skip
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set_yscale("log")
        panel.set_title(f"{cell}: stock PyTorch's time / ours (gray: left to PyTorch)")
        if len(mine) <= 40:
            labels = [f"{r['B']},{r['T']},{r['H']},{r['I']}" for r in mine]
            panel.set_xticks(list(x), labels, rotation=70, fontsize=8)
            panel.set_xlabel("B,T,H,I")
        else:
            panel.set_xlabel("sizes, by T·B·H")
    figure.tight_layout()
    record.save_figure(figure, path)


if __name__ == "__main__":
    main()

"""Recurrent layers on a CUDA device against stock PyTorch's (cuDNN), in pairs, in one run.

    python experiments/benchmark_cuda.py                           # everything, under 10 minutes
    python experiments/benchmark_cuda.py --cells gru --sizes 16,1000,20 --profile

Four tables:

    plans      for each size of GRID, forward and backward from a gradient of the last state to all
               weights and biases: stock is nn.RNN, nn.GRU or nn.LSTM; attached is the same module
               after bppsa_lightning.attach, autograd and the planner included; every plan of the
               backward is bare operator calls. The planner is fitted to these (fit_planner.py).
    options    the attached module against stock in what the planner has no figures for: other
               dtypes, autocast, wide inputs, several layers, both directions; and at the very
               end, sequences longer than cuDNN takes ("long").
    graphs     a forward and backward replayed from a CUDA graph.
    training   whole steps of experiments/bitstream_rnn.py through Trainer, data loading included.

A turn is one step of each; each measured step follows one of its own that is not measured, starts
on an idle device and is timed with CUDA events, so that what the host does meanwhile is counted
where the device waits for it. Printed are medians in milliseconds, and medians of the ratios to
stock of the same turn (above 1: ours is faster). Stock has torch's own settings, with which cuDNN
may use TF32; ours is IEEE float32. Writes experiments/records/<name of the GPU>.json
and, where matplotlib is installed, .png.

Letters: B batch, T steps, H state, I input.
"""

import argparse
import copy
import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import lightning.pytorch as pl
import record
import torch
from bitstream_rnn import BitstreamRNN
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.datasets import BitstreamDataModule
from bppsa_lightning.planner import gpu

CELLS = {"rnn_tanh": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
# B, T, H: the paper's sweeps, then larger states.
GRID = [(16, T, 20) for T in (10, 30, 100, 300, 1000, 3000, 10000, 30000)]
GRID += [(B, 1000, 20) for B in (2, 4, 8, 32, 64, 128, 256)]
GRID += [(16, 1000, H) for H in (8, 32, 48, 64, 96, 128, 192, 256)]
GRID += [(B, 1000, H) for B in (64, 256) for H in (64, 128)]
# B, T, H, I and settings of the module; "autocast" and "dtype" are ours.
OPTIONS: list[tuple[int, int, int, int, dict[str, Any]]] = [
    (16, 1000, 20, 1, {"dtype": torch.float64}),
    (16, 1000, 32, 1, {"dtype": torch.float64}),
    (16, 1000, 20, 1, {"autocast": torch.float16}),
    (16, 1000, 64, 1, {"autocast": torch.float16}),
    (16, 1000, 20, 1, {"num_layers": 2}),
    (16, 1000, 20, 1, {"bidirectional": True}),
    (16, 1000, 64, 1, {"bidirectional": True}),
    (32, 259, 20, 38, {}),
    (16, 1000, 64, 64, {}),
    (16, 1000, 128, 128, {}),
]
# Longer than cuDNN takes; the last thing measured, in case its failure takes the context along.
LONG = (16, 70000, 20, 1, {})
WEIGHTS = 0b1111000  # of recurrent_backward's results: w_ih, w_hh, b_ih, b_hh
PARTS = ("forward", "backward", "both")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cells", nargs="*", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--sizes", nargs="*", help="only these B,T,H triples, and no record")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each size (default 1)")
    parser.add_argument("--steps", type=int, default=300, help="of a training (default 300)")
    parser.add_argument("--profile", action="store_true", help="print the time of each kernel too")
    parser.add_argument("--no-record", action="store_true", help="print only")
    arguments = parser.parse_args()
    sizes = [tuple(map(int, s.split(","))) for s in arguments.sizes or []]
    results: dict[str, Any] = {"rows": []}
    for cell in arguments.cells:
        heading(f"{cell}: milliseconds; x: times faster than stock")
        for B, T, H in sizes or GRID:
            results["rows"].append(plans_row(cell, B, T, H, arguments.seconds))
            show(results["rows"][-1])
            if arguments.profile:
                profile(cell, B, T, H)
    if sizes:
        return
    heading("options: the attached module")
    results["options"] = [
        options_row(cell, *option, seconds=arguments.seconds)
        for option in OPTIONS
        for cell in arguments.cells
    ]
    heading("graphs: B=16 T=1000 H=20")
    results["graphs"] = [graphs_row(cell, arguments.seconds) for cell in arguments.cells]
    heading("training: seconds a step of bitstream_rnn through Trainer, B=16 T=1000 H=20")
    results["training"] = training(arguments.steps)
    path = record.RECORDS / torch.cuda.get_device_name().lower().replace(" ", "_")
    if not arguments.no_record:
        record.write(path.with_suffix(".json"), results)
        draw(results["rows"], path.with_suffix(".png"))
    heading("long")
    results["long"] = [
        options_row(cell, *LONG, seconds=arguments.seconds) for cell in arguments.cells
    ]
    if not arguments.no_record:
        record.write(path.with_suffix(".json"), results)
        print(f"record: {path.with_suffix('.json')}")


def heading(text: str) -> None:
    print(f"\n{text}", flush=True)


class Module:
    """A step of a recurrent module, stock or attached, through autograd."""

    def __init__(self, layer: nn.RNNBase, x: torch.Tensor, autocast: torch.dtype | None = None):
        self.layer, self.x, self.autocast = layer, x, autocast
        self.grad: torch.Tensor | None = None

    def forward(self) -> None:
        self.layer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", self.autocast or torch.float16, enabled=bool(self.autocast)):
            _, last = self.layer(self.x)
        self.last = last[0] if isinstance(last, tuple) else last

    def backward(self) -> None:
        if self.grad is None:
            torch.manual_seed(1)
            self.grad = torch.randn_like(self.last) / self.last.shape[1]
        self.last.backward(self.grad)


class Operator:
    """A step by bare operator calls under one plan."""

    def __init__(self, cell: str, layer: nn.RNNBase, x: torch.Tensor, plan: bl.Plan):
        weights = [w.detach() for w in layer.all_weights[0]]
        self.cell, self.operands = cell, (x, None, None, *weights, None)
        self.plan = (plan.algorithm, plan.chunk, plan.levels)
        self.grad = torch.randn(x.shape[1], layer.hidden_size, device="cuda") / x.shape[1]

    def forward(self) -> None:
        self.output, _, _, self.kept = torch.ops.bppsa.recurrent(
            self.cell, *self.operands, False, 2, self.plan[0]
        )

    def backward(self) -> None:
        torch.ops.bppsa.recurrent_backward(
            *(self.cell, None, self.grad, None, self.output, self.kept, *self.operands),
            *(False, *self.plan, WEIGHTS),
        )


Step = Module | Operator


def modules(
    cell: str, B: int, T: int, H: int, I: int = 1, autocast: Any = None, **settings: Any
) -> tuple[Module, Module]:
    """The same module, stock and attached."""
    torch.manual_seed(0)
    dtype = settings.get("dtype", torch.float32)
    stock = CELLS[cell](I, H, device="cuda", **settings)
    ours = copy.deepcopy(stock)
    bl.attach(ours)
    x = torch.rand(T, B, I, device="cuda", dtype=dtype)
    return Module(stock, x, autocast), Module(ours, x, autocast)


def plans_row(cell: str, B: int, T: int, H: int, seconds: float) -> dict[str, Any]:
    stock, attached = modules(cell, B, T, H)
    every = {"linear": bl.Plan("linear")}
    if H <= gpu.MOST_COMPOSED:
        every |= {f"c{c}": bl.Plan("chunked", chunk=c) for c in gpu.chunks(T)}
    steps: dict[str, Step] = {"stock": stock, "attached": attached}
    steps |= {n: Operator(cell, stock.layer, stock.x, plan) for n, plan in every.items()}
    medians, ratios, turns = compared(steps, seconds)
    best = min(every, key=lambda name: medians[name]["backward"])
    chain = attached.layer.forward
    return {
        "cell": cell, "B": B, "T": T, "H": H, "stock": medians["stock"],
        "attached": medians["attached"], "left_to_cudnn": chain.reason, "plan": plan_of(chain),
        "best": best, "plans": {name: medians[name] for name in every}, "ratio": ratios[best],
        "ratio_attached": ratios["attached"], "turns": turns,
    }  # fmt: skip


def plan_of(chain: Any) -> str | None:
    plan = chain.plan()
    return plan and (f"c{plan.chunk}" if plan.algorithm == "chunked" else plan.algorithm)


def options_row(
    cell: str, B: int, T: int, H: int, I: int, settings: dict[str, Any], seconds: float
) -> dict[str, Any]:
    stock, attached = modules(cell, B, T, H, I, **settings)
    row: dict[str, Any] = {"cell": cell, "B": B, "T": T, "H": H, "I": I}
    row["settings"] = {name: str(value) for name, value in settings.items()}
    steps: dict[str, Step] = {"attached": attached, "stock": stock}
    try:
        once(stock)
    except RuntimeError as error:
        row["stock_fails"] = str(error).splitlines()[0]
        del steps["stock"]
    medians, ratios, row["turns"] = compared(steps, seconds)
    row |= medians
    row["ratio_attached"] = ratios.get("attached")
    row["left_to_cudnn"] = attached.layer.forward.reason
    both = f"{row['ratio_attached']['both']:.2f}x" if "stock" in steps else row["stock_fails"]
    times = ", ".join(f"{who} {medians[who]['both']:.3f} ms" for who in steps)
    left = "  LEFT TO CUDNN" if row["left_to_cudnn"] else ""
    print(f"{cell:>9} B={B} T={T} H={H} I={I} {row['settings']}: {times}, {both}{left}", flush=True)
    return row


def graphs_row(cell: str, seconds: float) -> dict[str, Any]:
    """One replay takes the time of a forward and backward without the host's."""
    row: dict[str, Any] = {"cell": cell, "B": 16, "T": 1000, "H": 20}
    for who, step in zip(("stock", "attached"), modules(cell, 16, 1000, 20), strict=True):
        try:
            replay = captured(step)
        except RuntimeError as error:
            row[who] = str(error).splitlines()[0]
            continue
        end, times = time.perf_counter() + seconds / 2, []
        while len(times) < 5 or time.perf_counter() < end:
            times.append(timed([replay])[0])
        row[who] = median(times)
    print(row, flush=True)
    return row


def captured(step: Step) -> Callable[[], None]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step.forward()
            step.backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.forward()
        step.backward()
    return graph.replay


def compared(
    steps: dict[str, Step], seconds: float
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]], int]:
    """Medians of each step's parts, medians of the ratios of stock's to each, and the turns."""
    turns = []
    end = time.perf_counter() + seconds
    while len(turns) < 4 or (time.perf_counter() < end and len(turns) < 30):
        turns.append({who: once(step) for who, step in steps.items()})
    turns = turns[1:]

    def over_turns(value: Callable[[dict[str, dict[str, float]], str], float]) -> dict[str, float]:
        return {part: median(value(turn, part) for turn in turns) for part in PARTS}

    medians = {who: over_turns(lambda turn, part, w=who: turn[w][part]) for who in steps}
    if "stock" not in steps:
        return medians, {}, len(turns)
    ratios = {
        who: over_turns(lambda turn, part, w=who: turn["stock"][part] / turn[w][part])
        for who in steps
    }
    return medians, ratios, len(turns)


def once(step: Step) -> dict[str, float]:
    step.forward()
    step.backward()
    forward, backward = timed([step.forward, step.backward])
    return {"forward": forward, "backward": backward, "both": forward + backward}


def timed(calls: list[Callable[[], None]]) -> list[float]:
    """Milliseconds of each of the calls, one after the other, from an idle device."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(len(calls) + 1)]
    torch.cuda.synchronize()
    marks[0].record()
    for call, mark in zip(calls, marks[1:], strict=True):
        call()
        mark.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in zip(marks, marks[1:], strict=False)]


class Clock(pl.Callback):
    """Seconds a training step, over all steps but the first `skipped`."""

    def __init__(self, skipped: int) -> None:
        self.skipped, self.steps = skipped, 0

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.steps += 1
        if self.steps == self.skipped:
            torch.cuda.synchronize()
            self.start = time.perf_counter()

    def on_train_end(self, *_: Any) -> None:
        torch.cuda.synchronize()
        self.seconds = (time.perf_counter() - self.start) / (self.steps - self.skipped)


def training(steps: int) -> dict[str, Any]:
    """Runs in pairs: stock, bppsa, three times."""
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    taken: dict[str, list[float]] = {"auto": [], "bppsa": []}
    with tempfile.TemporaryDirectory() as folder:
        data = BitstreamDataModule(data_dir=folder, num_samples=16 * (steps + 20))
        for strategy in [*taken] * 3:
            pl.seed_everything(0, verbose=False)
            clock = Clock(skipped=20)
            trainer = pl.Trainer(
                strategy=strategy, accelerator="cuda", devices=1, max_steps=steps + 20,
                callbacks=[clock], logger=False, enable_checkpointing=False,
                enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0,
                gradient_clip_val=1.0, default_root_dir=folder,
            )  # fmt: skip
            trainer.fit(BitstreamRNN(lr=1e-4), data)
            taken[strategy].append(clock.seconds)
    stock, ours = (median(seconds) for seconds in taken.values())
    ratio = median(a / b for a, b in zip(*taken.values(), strict=True))
    print(f"stock {stock * 1e3:.3f} ms, bppsa {ours * 1e3:.3f} ms, {ratio:.2f}x", flush=True)
    return {"seconds_a_step": {"stock": stock, "bppsa": ours}, "ratio": ratio, "steps": steps}


def show(row: dict[str, Any]) -> None:
    def three(times: dict[str, float]) -> str:
        return "/".join(f"{times[part]:.3f}" for part in PARTS)

    left = "  LEFT TO CUDNN" if row["left_to_cudnn"] else f"  {row['plan']}"
    print(
        f"B={row['B']:<4} T={row['T']:<6} H={row['H']:<4} stock {three(row['stock'])}  attached "
        f"{three(row['attached'])} {row['ratio_attached']['both']:.2f}x{left}; best {row['best']} "
        f"{three(row['plans'][row['best']])} "
        + "/".join(f"{row['ratio'][part]:.1f}x" for part in PARTS)
        + "; backwards "
        + " ".join(f"{name}:{times['backward']:.3f}" for name, times in row["plans"].items()),
        flush=True,
    )


def profile(cell: str, B: int, T: int, H: int) -> None:
    kinds = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    for name, step in zip(("stock", "attached"), modules(cell, B, T, H), strict=True):
        once(step)
        with torch.profiler.profile(activities=kinds) as found:
            for _ in range(3):
                step.forward()
                step.backward()
            torch.cuda.synchronize()
        print(f"  kernels of {name}: microseconds a call, calls a step")
        events = [e for e in found.key_averages() if e.self_device_time_total > 0]
        for event in sorted(events, key=lambda e: -e.self_device_time_total)[:10]:
            each = event.self_device_time_total / event.count
            print(f"  {each:>10.1f} {event.count / 3:>6.1f}  {event.key[:110]}")


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Stock's time over ours, of the attached module: over T, over B, over H."""
    try:
        pyplot = record.pyplot()
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    sweeps: dict[str, Callable[[dict[str, Any]], bool]] = {
        "T": lambda row: row["B"] == 16 and row["H"] == 20,
        "B": lambda row: row["T"] == 1000 and row["H"] == 20,
        "H": lambda row: row["T"] == 1000 and row["B"] == 16,
    }
    figure, axes = pyplot.subplots(2, 3, figsize=(13, 7), layout="tight")
    for column, (letter, belongs) in enumerate(sweeps.items()):
        for line, part in enumerate(("backward", "both")):
            panel = axes[line][column]
            for cell in dict.fromkeys(row["cell"] for row in rows):
                mine = sorted(
                    (row for row in rows if row["cell"] == cell and belongs(row)),
                    key=lambda row: row[letter],
                )
                ratios = [row["ratio_attached"][part] for row in mine]
                panel.plot([row[letter] for row in mine], ratios, marker="o", label=cell)
            panel.axhline(1, color="black", linewidth=0.8)
            panel.set(xscale="log", yscale="log", xlabel=letter, title=f"{part}: cuDNN / attached")
            panel.grid(alpha=0.3)
            panel.legend()
    record.save_figure(figure, path)


if __name__ == "__main__":
    main()

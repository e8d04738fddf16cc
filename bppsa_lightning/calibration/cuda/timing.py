"""Times one recurrent layer by cuDNN and under each plan, in turns, on a GPU.

Forward, and backward from a gradient of every output to those of all weights; I = 1, float32.
(From the last state alone, a walk of all steps passes over those that no gradient reaches any more,
which is most of them: "linear" would be chosen for losses of every output, too, and they take
several times as long.)

B batch, T steps, H state.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from bppsa_lightning import ops
from bppsa_lightning.calibration.cuda.fit import OPERATORS
from bppsa_lightning.planner import Plan

Seconds = dict[str, float]
Way = Callable[[], Seconds]
STOCK = "stock"
_LAYERS = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}
_MOST_TURNS, _LEAST_TURNS = 21, 3


def row(
    size: dict[str, Any],
    plans: Sequence[str],
    seconds: float,
    device: torch.device,
    announce: Callable[[str], None],
) -> dict[str, Any]:
    """A row for fit.py: {"cell", "B", "T", "H", "stock": times, "plans": {name: times}}.

    Args:
        size: "cell" ("RNN", "GRU", "LSTM"), "B", "T", "H".
        plans: "linear", or "c32" for chunks of 32 steps.
        seconds: for all turns together.
        device: the GPU.
        announce: is called with the name of each way before its first step.
    """
    ways = _ways(size, plans, device)
    for name, way in ways.items():
        announce(name)
        way()
    turns: dict[str, list[Seconds]] = {name: [] for name in ways}
    end = time.perf_counter() + seconds
    for count in range(_MOST_TURNS):
        if count >= _LEAST_TURNS and time.perf_counter() > end:
            break
        for name, way in ways.items():
            turns[name].append(way())
    medians = {
        name: {part: median(t[part] for t in times) for part in times[0]}
        for name, times in turns.items()
    }
    return {**size, STOCK: medians.pop(STOCK), "plans": medians}


def plan_named(name: str) -> Plan:
    """ "c32" as a plan of chunks of 32 steps; else the algorithm."""
    return Plan(name) if not name.startswith("c") else Plan("chunked", chunk=int(name[1:]))


def name_of(plan: Plan) -> str:
    """The plan as `plan_named` takes it."""
    return f"c{plan.chunk}" if plan.algorithm == "chunked" else plan.algorithm


def _ways(size: dict[str, Any], plans: Sequence[str], device: torch.device) -> dict[str, Way]:
    torch.manual_seed(0)
    layer = _LAYERS[size["cell"]](1, size["H"]).to(device)
    weights = list(layer.parameters())
    x = torch.rand(size["T"], size["B"], 1, device=device)
    grad = torch.randn(size["T"], size["B"], size["H"], device=device)

    def way(forward: Callable[[], Tensor]) -> Way:
        return lambda: _timed(
            device, forward, lambda output: torch.autograd.grad(output, weights, grad)
        )

    def stock() -> Tensor:
        output: Tensor = layer(x)[0]
        return output

    def ours(plan: Plan) -> Callable[[], Tensor]:
        given = ops.Operands(x, None, None, *weights)
        cell = OPERATORS[size["cell"]]
        return lambda: ops.run_layer(cell, given, False, plan.algorithm, plan)[0]

    return {STOCK: way(stock)} | {name: way(ours(plan_named(name))) for name in plans}


def _timed(
    device: torch.device, forward: Callable[[], Tensor], backward: Callable[[Tensor], object]
) -> Seconds:
    """Seconds of one step from an idle device, the host's time counted where the device waits."""
    mark = _event if device.type == "cuda" else time.perf_counter
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = mark()
    output = forward()
    middle = mark()
    backward(output)
    end = mark()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    both = _between(start, middle), _between(middle, end)
    return {"forward": both[0], "backward": both[1], "both": sum(both)}


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(start: Any, end: Any) -> float:
    return float(end - start) if isinstance(start, float) else float(start.elapsed_time(end)) / 1e3

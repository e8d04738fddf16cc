"""Times one recurrent layer computed here beside PyTorch's own, in turns, on the CPU.

Devices are named, not set as the default: while there is one, each call of torch from Python takes
a microsecond more, of which a short layer has many.

T steps, B batch, H input and hidden size.
"""

import copy
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from bppsa_lightning.attach import attach
from bppsa_lightning.calibration.fit_cpu import Size
from bppsa_lightning.planner import Plan
from bppsa_lightning.planner.request import INFERENCE, TRAINING

CELLS = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}


class Pair(NamedTuple):
    """Median seconds of a forward and backward, by the fused kernels and by PyTorch's."""

    ours: float
    stock: float


def pair(
    size: Size,
    seconds: float,
    turns: int = 7,
    padded: bool | None = None,
    bfloat16: bool = False,
    mode: str = TRAINING,
) -> Pair:
    """Measures one size: forward and backward with parameter gradients, of every output.

    In inference the forward alone.

    Args:
        size: of the layer; its input size is H.
        seconds: what it may take, where a step of each takes less.
        turns: of each way, at most.
        padded: whether, of samples of different lengths, most would be padding; None for samples
            of one length.
        bfloat16: whether under autocast; else in float32.
        mode: as `planner.Request.mode`.
    """
    stock = _layer(size)
    ours = copy.deepcopy(stock)
    attach(ours, "linear")  # obeyed, whatever the tables say
    x = torch.rand(size.T, size.B, size.H, dtype=torch.float32, device="cpu")
    call: Any = x if padded is None else pack_padded_sequence(x, _lengths(size, padded))
    ways = [_step(module, call, bfloat16, mode) for module in (ours, stock)]
    for step in ways:
        step()
    longest = max(_timed(step) for step in ways)
    count = max(1, min(20, int(seconds / (2 * turns * longest)) - 1))
    times: list[list[float]] = [[], []]
    end = time.perf_counter() + seconds
    while len(times[0]) < 2 or (len(times[0]) < turns and time.perf_counter() < end):
        for step, taken in zip(ways, times, strict=True):
            if longest < seconds / 10:
                step()  # finds the other way's data in the caches
            taken.append(median(_timed(step) for _ in range(count)))
    return Pair(*map(median, times))


def fastest(size: Size, I: int, seconds: float) -> float:
    """Least seconds of a forward and backward, as `pair`, by the faster kernels.

    What disturbs a measurement takes time and gives none, so that the least is the best guess.
    """
    stock = _layer(size, I)
    ours = copy.deepcopy(stock)
    attach(ours, "linear")
    x = torch.rand(size.T, size.B, I, dtype=torch.float32, device="cpu")
    best = float("inf")
    for step in (_step(ours, x), _step(stock, x)):
        step()
        end, worth = time.perf_counter() + seconds, True
        while worth:
            taken = _timed(step)
            worth = taken < 2 * best and time.perf_counter() < end
            best = min(best, taken)
    return best


def backward(size: Size, algorithm: str, seconds: float) -> tuple[Plan, float]:
    """Measures the backward of a layer by one algorithm: its plan, and median seconds."""
    layer = _layer(size)
    (chain,) = attach(layer, algorithm)
    x = torch.rand(size.T, size.B, size.H, dtype=torch.float32, device="cpu")
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or (len(times) < 50 and time.perf_counter() < end):
        layer.zero_grad()
        output = layer(x)[0]
        grad = torch.ones_like(output)
        start = time.perf_counter()
        output.backward(grad)
        times.append(time.perf_counter() - start)
    assert chain.plan is not None
    return chain.plan, median(times[1:])


def _layer(size: Size, I: int | None = None) -> nn.RNNBase:
    return CELLS[size.cell](I or size.H, size.H, dtype=torch.float32, device="cpu")


def _lengths(size: Size, padded: bool) -> list[int]:
    """B of them, falling, the first T: near T, or an eighth of it for most."""
    T, B = size.T, size.B
    if padded:
        long = max(1, B // 7)
        return [T] * long + [max(1, T // 8)] * (B - long)
    return [T - round(i * max(1, T // 5) / max(B - 1, 1)) for i in range(B)]


def _step(
    module: nn.Module, x: Tensor | PackedSequence, bfloat16: bool = False, mode: str = TRAINING
) -> Callable[[], None]:
    grads: list[Tensor] = []

    def forward() -> Any:
        if not bfloat16:  # which to enter takes microseconds
            return module(x)[0]
        with torch.autocast("cpu", torch.bfloat16):
            return module(x)[0]

    def step() -> None:
        if mode == INFERENCE:
            with torch.no_grad():
                forward()
            return
        module.zero_grad()
        output = forward()
        data = output.data if isinstance(output, PackedSequence) else output
        if not grads:
            grads.append(torch.randn_like(data))
        data.backward(grads[0])

    return step


def _timed(step: Callable[[], None]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start

"""What the recurrent benchmarks measure: a layer and its sizes, and the ways to compute it.

A way is a `timing.Step`: it does one forward and backward and returns the seconds of its parts,
"forward", "backward" and "both".

Letters: B batch, T steps, H hidden, I input.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import bppsa_lightning as bl
from experiments.benchmarks.timing import Seconds, timed

CELLS = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}
OPERATORS = {"RNN": "rnn_tanh", "GRU": "gru", "LSTM": "lstm"}
PARTS = ("forward", "backward", "both")
WEIGHTS = 0b1111000  # of recurrent_backward's results: w_ih, w_hh, b_ih, b_hh


@dataclass(frozen=True)
class Case:
    """One layer to be measured.

    Args:
        cell: "RNN", "GRU" or "LSTM".
        loss: "every": the gradient of every output flows in; "last": only the last state's.
        settings: of the module (``num_layers``, …, ``dtype``); and two of ours: ``autocast``, a
            dtype; ``lengths="different"``, a PackedSequence of B lengths from T/4 to T.
    """

    cell: str
    B: int
    T: int
    H: int
    I: int = 1
    loss: str = "every"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """For a record."""
        sizes = {letter: getattr(self, letter) for letter in ("cell", "B", "T", "H", "I")}
        settings = {n: str(value).removeprefix("torch.") for n, value in self.settings.items()}
        return {**sizes, "loss": self.loss, **({"settings": settings} if settings else {})}

    def layer(self, device: torch.device) -> nn.RNNBase:
        torch.manual_seed(0)
        own = {n: v for n, v in self.settings.items() if n not in ("autocast", "lengths")}
        return CELLS[self.cell](self.I, self.H, device=device, **own)

    def input(self, device: torch.device) -> torch.Tensor | PackedSequence:
        torch.manual_seed(1)
        dtype = self.settings.get("dtype", torch.float32)
        x = torch.rand(self.T, self.B, self.I, device=device, dtype=dtype)
        if self.settings.get("lengths") is None:
            return x
        lengths = torch.linspace(self.T, max(self.T // 4, 1), self.B).long()
        return pack_padded_sequence(x, lengths)


def pair(case: Case, device: torch.device) -> tuple["LayerStep", "LayerStep"]:
    """The same layer, attached and stock."""
    stock = case.layer(device)
    ours = copy.deepcopy(stock)
    ours.flatten_parameters()  # a copy's lie apart, and cuDNN would gather them at every call
    bl.attach(ours)
    x = case.input(device)
    return LayerStep(ours, x, case), LayerStep(stock, x, case)


def scanned(case: Case, device: torch.device) -> "LayerStep":
    """The attached layer, never left to PyTorch because that is estimated to be faster."""
    step, _ = pair(case, device)
    # Planned by the operator, and not in windows.
    step.layer.forward._decide = lambda input: (None, None, False)
    return step


class LayerStep:
    """A layer through autograd, stock or attached."""

    def __init__(self, layer: nn.RNNBase, x: torch.Tensor | PackedSequence, case: Case) -> None:
        self.layer, self.x, self.case = layer, x, case
        self.device = next(layer.parameters()).device
        self.autocast: torch.dtype | None = case.settings.get("autocast")
        self.grad: torch.Tensor | None = None

    def __call__(self) -> Seconds:
        self.layer.zero_grad()
        return forward_backward(self)

    def forward(self) -> None:
        with torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None):
            output, last = self.layer(self.x)
        if self.case.loss == "last":
            output = last[0] if isinstance(last, tuple) else last
        self.result = output.data if isinstance(output, PackedSequence) else output

    def backward(self) -> None:
        if self.grad is None:
            torch.manual_seed(2)
            self.grad = torch.randn_like(self.result)
        self.result.backward(self.grad)


class OperatorStep:
    """The operators alone, under one plan of the backward; float32, one layer, no options."""

    def __init__(self, case: Case, plan: bl.Plan, device: torch.device) -> None:
        self.device, self.plan = device, plan
        weights = [w.detach() for w in case.layer(device).all_weights[0]]
        self.cell, self.operands = OPERATORS[case.cell], (case.input(device), None, None, *weights)
        torch.manual_seed(2)
        every = torch.randn(case.T, case.B, case.H, device=device)
        self.grads = (every, None) if case.loss == "every" else (None, every[-1].clone())

    def __call__(self) -> Seconds:
        return forward_backward(self)

    def forward(self) -> None:
        self.output, _, _, self.kept = torch.ops.bppsa.recurrent(
            self.cell, *self.operands, None, False, 2, self.plan.algorithm
        )

    def backward(self) -> None:
        plan = (self.plan.algorithm, self.plan.chunk, self.plan.levels)
        torch.ops.bppsa.recurrent_backward(
            *(self.cell, *self.grads, None, self.output, self.kept, *self.operands, None),
            *(False, *plan, WEIGHTS),
        )


def name_of(plan: bl.Plan) -> str:
    """ "c32" for chunks of 32 steps, else the algorithm."""
    return f"c{plan.chunk}" if plan.algorithm == "chunked" else plan.algorithm


class Replay:
    """A whole step of a way, captured in a CUDA graph: without the host's time."""

    def __init__(self, step: LayerStep) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step.forward()
                step.backward()
        torch.cuda.current_stream().wait_stream(side)
        step.layer.zero_grad()
        self.device, self.graph = step.device, torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            step.forward()
            step.backward()

    def __call__(self) -> Seconds:
        return timed(self.device, both=self.graph.replay)


def forward_backward(step: LayerStep | OperatorStep) -> Seconds:
    """Seconds of both, one after the other, and of the two together."""
    times = timed(step.device, forward=step.forward, backward=step.backward)
    return times | {"both": sum(times.values())}

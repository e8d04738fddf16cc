"""Loops over nn.RNNCell and its kind that a model runs by hand: what they cost, for `explain`.

A scan cannot see into such a loop. Its calls are PyTorch's; here they are counted, and on the CPU
timed.
"""

from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from bppsa_lightning import planner
from bppsa_lightning._context import is_tracing
from bppsa_lightning._replacement import SUPER_FORWARD, Made, Replacement, replacement_of
from bppsa_lightning._scripting import Scriptable

_ENOUGH = 3


class CellLoop(Scriptable):
    """Stands before a cell's own forward, and counts the calls that follow one another.

    A loop begins with a call whose state is new (none, or one that no gradient goes through), and
    with the first call after a backward through the last one. After three loops that is known, and
    it steps aside: the cell runs as if it were not there.

    Attributes:
        steps: calls of the last loop, under grad mode. seconds: of its forwards, on the CPU.
        shape: (B, H) of its last call.
    """

    def __init__(self, name: str, module: nn.Module) -> None:
        super().__init__(name, module)
        self.loops = 0
        self._ended = True
        self.steps = 0
        self.seconds = 0.0
        self.shape: tuple[int, int] = 1, module.hidden_size  # type: ignore[assignment]
        self.device = torch.device("cpu")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        forward = type(self.module).forward
        if is_tracing() or not torch.is_grad_enabled():
            return forward(self.module, *args, **kwargs)
        start = perf_counter()
        result = forward(self.module, *args, **kwargs)
        self._count(args[1] if len(args) > 1 else kwargs.get("hx"), result, perf_counter() - start)
        return result

    def _count(self, state: Any, result: Any, seconds: float) -> None:
        state = state[0] if isinstance(state, tuple | list) and state else state
        result = result[0] if isinstance(result, tuple) and result else result
        if self._ended or not isinstance(state, Tensor) or state.grad_fn is None:
            self.loops += self.steps > 1
            if self.loops == _ENOUGH:
                return self._step_aside()
            self.steps, self.seconds, self._ended = 0, 0.0, False
            if isinstance(result, Tensor) and result.requires_grad:
                result.register_hook(self._end)
        self.steps += 1
        self.seconds += seconds
        if isinstance(result, Tensor):
            self.device = result.device
            self.shape = (result.shape[0] if result.dim() > 1 else 1), result.shape[-1]

    def _end(self, _: Tensor) -> None:
        """The backward has come through the first call."""
        self._ended = True

    def detach(self) -> None:
        super().detach()
        if self.module.__dict__.get(SUPER_FORWARD) is self:
            del self.module.__dict__[SUPER_FORWARD]

    def _step_aside(self) -> None:
        """To where it is found, and does nothing."""
        self.detach()
        self.module.__dict__[SUPER_FORWARD] = self

    def cost(self) -> str:
        """The last loop in words; empty if there was none of several calls."""
        if self.steps < 2:
            return ""
        cell, layer = _KINDS.get(torch_cell(self.module), lambda _: (None, ""))(self.module)
        on_cpu = self.device.type == "cpu"
        took = f", {self.seconds * 1e3:.1f} ms in their forwards" if on_cpu else ""
        text = f"its last loop: {self.steps} calls{took}"
        if cell is None:
            return text
        B, H = self.shape
        request = planner.Request(cell, self.steps, B, H, self.device, I=self.module.input_size)
        seconds = planner.plan(request).seconds
        if not seconds:
            return text
        return f"{text}; the backward of {layer} takes about {seconds * 1e3:.1f} ms"


def torch_cell(module: nn.Module) -> Any:
    """The class of PyTorch's that a cell is of."""
    return next((kind for kind in _KINDS if isinstance(module, kind)), None)


_KINDS: dict[Any, Any] = {
    nn.RNNCell: lambda cell: (f"rnn_{cell.nonlinearity}", "nn.RNN"),
    nn.GRUCell: lambda cell: ("gru", "nn.GRU"),
    nn.LSTMCell: lambda cell: ("lstm", "nn.LSTM"),
}


def watch(module: nn.Module, made: Made) -> list[Replacement]:
    """Counts the calls of every cell in a module from now on; returns what is new."""
    new: list[Replacement] = []
    for name, child in module.named_modules():
        if isinstance(child, nn.RNNCellBase) and "forward" not in child.__dict__:
            loop = made(CellLoop, name, child)
            loop.attach()
            new.append(loop)
    return new


def cost(module: nn.Module) -> str:
    """What the loop over a cell costs, in words; empty if that is not known."""
    loop = replacement_of(module, CellLoop)
    return "" if loop is None else loop.cost()

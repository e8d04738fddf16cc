"""The ways to compute one layer that windows_gpu.py compares: walks, and windows over engines.

Letters: B batch, T steps, H hidden, I input.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import bppsa_lightning as bl
from bppsa_lightning.recurrent.engines import LayerEngine, PytorchEngine
from bppsa_lightning.windows import Cut, Levels, Memory, Report, choose_cut, look, speculate
from experiments.benchmarks.recurrent_cases import OPERATORS, Case, LayerStep
from experiments.benchmarks.windows_model import AUTO, CUDNN, LINEAR

ENGINES = {LINEAR: LayerEngine, CUDNN: PytorchEngine}
CHOSEN, ATTACHED = "chosen", "attached, speculative"


class InWindows(nn.Module):
    """A layer of PyTorch's in windows over an engine.

    Args:
        layer: one layer, one direction.
        kind: of the engine.
        cut: None for what `choose_cut` says, of what looks have seen.
        levels: with a cut.

    Attributes:
        cut, report: of the last call.
    """

    def __init__(
        self, layer: nn.RNNBase, kind: type[LayerEngine], cut: Cut | None, levels: Levels | None
    ) -> None:
        super().__init__()
        self.layer, self.kind, self.cut, self.levels = layer, kind, cut, levels
        self.memory = Memory() if cut is None else None
        self.report: Report | None = None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | tuple[Tensor, ...]]:
        engine, state = engine_of(self.kind, self.layer), first_state(self.layer, x)
        if self.memory is not None:
            plan = self.memory.plan(engine, [x], state, asked=True)
            self.cut, self.levels, self.report = plan or (None, None, None)
        else:
            self.report = Report()
        if self.cut is None:
            [y], last = engine([x], state)
        else:
            assert self.levels is not None and self.report is not None
            [y], last = speculate(engine, [x], state, self.cut, self.levels, self.report)
        states = tuple(s.unsqueeze(0) for s in last)
        return y, states if len(states) > 1 else states[0]


def engine_of(kind: type[LayerEngine], layer: nn.RNNBase) -> LayerEngine:
    return kind(OPERATORS[type(layer).__name__], list(layer.parameters()))


def first_state(layer: nn.RNNBase, x: Tensor) -> list[Tensor]:
    parts = 2 if isinstance(layer, nn.LSTM) else 1
    return [x.new_zeros(x.shape[1], layer.hidden_size) for _ in range(parts)]


@dataclass(frozen=True)
class Way:
    """A step, and whose kernels it walks with: `CUDNN`, `LINEAR` or `AUTO`; None if it depends."""

    step: LayerStep
    who: str | None

    @property
    def windows(self) -> InWindows | None:
        layer: nn.Module = self.step.layer
        return layer if isinstance(layer, InWindows) else None

    def described(self) -> dict[str, Any]:
        """For a record, of the last call."""
        windows = self.windows
        if windows is None:
            chain = getattr(self.step.layer.forward, "plan", None)
            return {"windows": chain.windows} if chain is not None and chain.windows else {}
        if windows.cut is None or windows.report is None:
            return {}
        T, K, span, warm, _ = windows.cut
        return {
            "windows": K, "span": span, "head": T - K * span, "warm": warm,
            "chosen": windows.memory is not None, "missed": windows.report.missed,
            "backward_passes": windows.report.backward_passes,
        }  # fmt: skip


def ways_of(
    case: Case, device: torch.device, numbers: Sequence[int], warm: int | None
) -> dict[str, Way]:
    """All ways by name, cuDNN's walk first.

    Args:
        numbers: of windows; those that do not fit are left out.
        warm: steps of warm-up; None for what a look says.
    """
    stock, x = case.layer(device), case.input(device)
    assert isinstance(x, Tensor)

    def way(layer: nn.Module, who: str | None) -> Way:
        return Way(LayerStep(layer, x, case), who)

    def attached(algorithm: str) -> nn.Module:
        layer = copy.deepcopy(stock)
        layer.flatten_parameters()
        bl.attach(layer, algorithm)
        return layer

    ways = {
        CUDNN: way(stock, CUDNN),
        LINEAR: way(attached(LINEAR), LINEAR),
        AUTO: way(attached(AUTO), AUTO),
        ATTACHED: way(attached("speculative"), None),
    }
    for who, kind in ENGINES.items():
        for name, cut, levels in _cuts(engine_of(kind, stock), stock, x, numbers, warm):
            layer = InWindows(copy.deepcopy(stock), kind, cut, levels)
            ways[f"{who}, windows: {name}"] = way(layer, who)
    return ways


def _cuts(
    engine: LayerEngine, layer: nn.RNNBase, x: Tensor, numbers: Sequence[int], warm: int | None
) -> list[tuple[str, Cut | None, Levels | None]]:
    """Names and cuts; None where `choose_cut` has the choice."""
    T, B = x.shape[:2]
    with torch.no_grad():
        seen = look(engine, [x], first_state(layer, x), max(1, T // 8))
    found: list[tuple[str, Cut | None, Levels | None]] = []
    steps = warm or seen.warm
    if steps is not None:
        cuts = [Cut(T, K, T // K, steps) for K in numbers if K > 1]
        found += [(str(cut.windows), cut, seen.levels) for cut in cuts if steps <= cut.span]
    if seen.warm and choose_cut(T, B, seen.warm, engine.cost, engine.call, gain=0.0):
        found.append((CHOSEN, None, None))
    return found

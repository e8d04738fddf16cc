"""A recurrent layer's sequences in windows of time: what `algorithm="speculative"` asks for.

Letters as in recurrent/layer.py.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bppsa_lightning import planner
from bppsa_lightning.recurrent.config import RecurrentConfig
from bppsa_lightning.recurrent.engines import LayerEngine, PytorchEngine
from bppsa_lightning.windows import Cut, Memory, in_words, speculate

# As many windows are about as many samples: PyTorch's kernels or ours are chosen by these.
_WINDOWS = 16


def side_by_side(request: planner.Request) -> planner.Request:
    """One direction of one layer's sequence as the samples that its windows are."""
    T, B = max(1, request.T // _WINDOWS), _WINDOWS * request.B
    return request._replace(T=T, B=B, layers=1, directions=1)


class Windows:
    """The windows of all layers and directions of a module.

    Attributes:
        plan: of the last scan in windows.
    """

    def __init__(self, config: RecurrentConfig) -> None:
        self._config = config
        self._memories: dict[int, Memory] = {}
        self._cuts: dict[int, Cut | None] = {}
        self._loaded: dict[int, dict[str, Any]] = {}
        self.plan: planner.Plan | None = None

    def rest(self, T: int) -> bool:
        """Whether a call of T steps is left to the walk, as windows paid in none of its scans."""
        memories = self._memories.values()
        if not memories or not all(memory.rests(T) for memory in memories):
            return False
        for memory in memories:
            memory.rest()
        return True

    def scan(
        self,
        x: Tensor,
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        reverse: bool,
        k: int,
        asked: bool,
    ) -> tuple[Tensor, ...] | None:
        """One direction of one layer, the k-th, as `RecurrentChain` does it; None to walk it.

        Args:
            asked: whether windows were asked for by name.
        """
        T, B = x.shape[:2]
        if T < 2 or B < 1 or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
            return None
        engine = self._engine(x, weights)
        state = list(states) or [x.new_zeros(B, size) for size in self._config.state_sizes]
        xs = [x.flip(0) if reverse else x]
        memory = self._memories.setdefault(k, Memory())
        if k in self._loaded:
            memory.load_state_dict(self._loaded.pop(k), x.device)
        plan = memory.plan(engine, xs, state, asked)
        cut = self._cuts[k] = None if plan is None else plan.cut
        if plan is None or cut is None:
            return None
        [output], last = speculate(engine, xs, state, *plan)
        reason = f"{'as asked; ' * asked}warm-up of {cut.warm} steps"
        self.plan = planner.Plan("speculative", cut.span, reason=reason, windows=cut.windows)
        return (output.flip(0) if reverse else output, *last)

    def _engine(self, x: Tensor, weights: Sequence[Tensor]) -> LayerEngine:
        """What walks the windows: PyTorch's kernels where they are faster at it."""
        c, (T, B) = self._config, x.shape[:2]
        request = planner.Request(
            c.cell.name, T, B, c.hidden_size, x.device, "auto", None, c.input_size,
            c.output_size if c.projected else 0,
        )  # fmt: skip
        # (One sequence is walked where it lies by ours, and copied for PyTorch's.)
        in_place = x.is_cpu and B == 1
        ours = in_place or planner.fallback_reason(side_by_side(request)) is None
        return (LayerEngine if ours else PytorchEngine)(c.cell.name, self._operands(weights))

    def walk_by_pytorch(
        self, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], reverse: bool
    ) -> tuple[Tensor, ...]:
        """The same without windows, by PyTorch's kernels."""
        engine = PytorchEngine(self._config.cell.name, self._operands(weights))
        state = list(states) or [x.new_zeros(x.shape[1], n) for n in self._config.state_sizes]
        [output], last = engine([x.flip(0) if reverse else x], state)
        return (output.flip(0) if reverse else output, *last)

    def _operands(self, weights: Sequence[Tensor]) -> list[Tensor | None]:
        c = self._config
        biases = weights[2:4] if c.bias else (None, None)
        return [*weights[:2], *biases, weights[-1] if c.projected else None]

    def details(self) -> list[str]:
        """Lines for `explain`."""
        lines = []
        for k, cut in sorted(self._cuts.items()):
            memory, name = self._memories[k], self._name(k)
            report = memory.report
            if cut is None or report is None:
                lines.append(f"{name}walked: {memory.reason}")
                continue
            lines.append(f"{name}{in_words(cut, report)}")
        return lines

    def _name(self, k: int) -> str:
        layer, backwards = divmod(k, self._config.directions)
        if self._config.layers * self._config.directions == 1:
            return ""
        return f"layer {layer}{' backwards' if backwards else ''}: "

    def state_dict(self) -> dict[str, Any]:
        """Of all memories, for a checkpoint."""
        return {str(k): memory.state_dict() for k, memory in self._memories.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint, when each is next used."""
        self._loaded = {int(k): memory for k, memory in state.items()}
        self._memories, self._cuts = {}, {}

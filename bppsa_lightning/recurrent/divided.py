"""A recurrent layer divided over ranks: each holds a span of time.

Letters as in recurrent/layer.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from bppsa_lightning import ops, planner
from bppsa_lightning.divided import (
    Division,
    GraphWalk,
    Leaves,
    RaggedWalk,
    RankMemory,
    Report,
    Walk,
    Way,
    choose,
    in_words,
)  # fmt: skip
from bppsa_lightning.divided.states import Start
from bppsa_lightning.ops.log import record_scan
from bppsa_lightning.ranks import Exchange, Spans, span_of, summed, whole_of
from bppsa_lightning.recurrent import packed_span
from bppsa_lightning.recurrent.beginning import Beginning, Told
from bppsa_lightning.recurrent.config import OneLayer, RecurrentConfig
from bppsa_lightning.recurrent.engines import LayerEngine, PytorchEngine
from bppsa_lightning.recurrent.in_place import KernelsInPlace
from bppsa_lightning.recurrent.kernel_walk import KernelWalk, WindowsWalk
from bppsa_lightning.recurrent.packed import Scan
from bppsa_lightning.recurrent.packed_span import PackedSpan
from bppsa_lightning.windows import Cut, choose_cut

Tensors = Sequence[Tensor]

# Of each rank, below which a layer is not divided: in less time than a message takes, all walk all.
LEAST_STEPS = 64

# Bytes of copies for composing a span on a GPU, beyond which gradients are passed on.
_MOST_COPIED = 1 << 31


class DividedLayer:
    """All layers and directions of a module, over the ranks of a process group.

    Args:
        config: of the module. name: of the module, for errors.
        group: the ranks, in the order of their spans.
        sharded: whether a rank is given its own span alone, and gives its own span; else all ranks
            are given the whole, and give the whole.
        alike: whether all that draws random numbers draws the same in all ranks, as in a Trainer.

    Attributes:
        exchange: the way to the other ranks, and what went over it.
        looks: whether to look if ranks may all begin at once.
        ways, reports: of each layer and direction, how it was walked last.
    """

    def __init__(
        self, config: RecurrentConfig | OneLayer, name: str, group: dist.ProcessGroup,
        sharded: bool, alike: bool = False,
    ) -> None:  # fmt: skip
        self._config, self.sharded, self._alike = config, sharded, alike
        self.exchange = Exchange(group, name)
        self.looks = True
        self._memories: dict[int, RankMemory] = {}
        self._loaded: dict[int, dict[str, Any]] = {}
        self.ways: dict[int, Way] = {}
        self.reports: dict[int, Report] = {}
        self.spans = Spans([0])
        self._calls, self.batch = 0, 0
        self._short: tuple[int, int] | None = None
        self._chosen: dict[Any, Way] = {}
        self._of_size: dict[Any, Way] = {}
        self._cuts: dict[Any, Cut | None] = {}  # of a rank's span into windows
        self._beginning = Beginning(sharded, alike)
        self._told: Callable[[], Told] | None = None
        self._before: Tensor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> DividedLayer:
        """Of a copied module: over the same ranks, with all to learn."""
        exchange = self.exchange
        return DividedLayer(self._config, exchange.name, exchange.group, self.sharded, self._alike)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self.exchange.name or 'module'}: found a layer divided over a process group, which "
            "cannot be pickled; wanted one that is not: bl.detach(module)"
        )

    # What goes in, and comes out

    def layers(
        self, x: Tensor, states: Tensors, weights: Tensors, algorithm: str,
        run: Callable[..., tuple[Tensor, list[Tensor]]],
    ) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
        """All layers, over time that is divided: x (T, B, I), or of this rank's span alone.

        Args:
            run: the layers in turn, of x, states, weights, a scan and a dropout.

        Returns:
            output (T, B, D*P), likewise; and the last states, on all ranks.
        """
        self._begin(x, algorithm)
        scan = partial(self._scan, algorithm=algorithm)
        try:
            if self.sharded:
                return run(x, states, weights, scan)
            x, states, weights = self._shared(x, states, weights)
            own = span_of(self.exchange, self.spans, x)
            output, last = run(own, states, weights, scan, self._same_dropout)
        finally:
            self._settle()  # as a call that breaks off before must not leave a message unread
        return whole_of(self.exchange, self.spans, output), last

    def whole_scan(
        self, x: Tensor, states: Tensors, weights: Tensors, reverse: bool, place: int,
        algorithm: str,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """One direction of one layer, of x (T, B, I) on all ranks: output and last states."""
        self._begin(x, algorithm)
        try:
            x, states, weights = self._shared(x, states, weights)
            own = span_of(self.exchange, self.spans, x)
            output, *last = self._scan(own, states, weights, reverse, place, algorithm)
        finally:
            self._settle()
        return whole_of(self.exchange, self.spans, output), *last

    def span_scan(
        self, x: Tensor, states: Tensors, weights: Tensors, reverse: bool, algorithm: str
    ) -> tuple[Tensor, ...]:
        """One direction of one layer, of this rank's span: its output, and the last states."""
        self._begin(x, algorithm)
        try:
            return self._scan(x, states, weights, reverse, 0, algorithm)
        finally:
            self._settle()

    def packed_scan(self, input: PackedSequence, states: Tensors, algorithm: str) -> Scan:
        """One direction of one layer, of the data (N, I) of this rank's steps of packed ones."""
        data, sizes = input.data, input.batch_sizes
        nothing = data.new_empty(len(sizes), 0, data.shape[1])
        self._begin(nothing, algorithm, packed_span.told(input, states))
        found = self._settle()
        name = self.exchange.name or "module"
        self.batch = packed_span.samples(
            name, [numbers[-4:-1] for numbers in found], self.spans.lengths
        )
        span = PackedSpan.of(sizes, self.batch, data.device)

        def scan(
            x: Tensor, states: Tensors, weights: Tensors, reverse: bool, place: int
        ) -> tuple[Tensor, ...]:
            padded = span.padded(x)
            output, *last = self._scan(
                padded, states, weights, reverse, place, algorithm, span.steps
            )
            return span.data(output), *last

        return scan

    def _shared(
        self, x: Tensor, states: Tensors, weights: Tensors
    ) -> tuple[Tensor, Tensors, Tensors]:
        """What all ranks hold, with gradients that are whole on all of them."""
        n = len(states)
        tensors = summed(self.exchange, (*states, *weights))
        return x, tensors[:n], tensors[n:]

    def _same_dropout(self, x: Tensor, p: float) -> Tensor:
        """With the mask of one process, of which each rank takes its span."""
        mask = ops.dropout(x.new_ones(self.spans.T, *x.shape[1:]), p)
        return x * mask[self.spans.of(self.exchange.rank)]

    def _begin(self, x: Tensor, algorithm: str, packed: tuple[int, int, int] | None = None) -> None:
        """Tells the other ranks what this one has come for, before anything else is exchanged.

        Args:
            packed: what they are `told` of steps that are packed; x is then (T, 0, F).
        """
        self._calls, self.batch = self._calls + 1, x.shape[1]
        self._told = self._beginning.begin(self.exchange, self._calls, x, algorithm, packed)
        if not self.sharded:
            self.spans = Spans.equal(len(x), self.exchange.size)

    def _settle(self) -> list[list[int]]:
        """Waits until all have come for the same; what they brought. Nothing if that is known."""
        if self._told is None:
            return []
        told, self._told = self._told, None
        found, self._before = told()
        if self.sharded:
            self.spans = Spans([n[0] for n in found])
        return found

    def pays(self, T: int, B: int, algorithm: str) -> bool:
        """Whether a call is divided; one that is named is, if each rank has a step."""
        least = LEAST_STEPS if algorithm == "auto" else 1
        short = self.exchange.size * least > T
        self._short = (T, least) if short else None
        return self.exchange.size > 1 and not short

    def plan(self) -> planner.Plan:
        """Of the last call, for people."""
        way = self.ways[max(self.ways)]
        names = {"relay": "linear", "compose": "blelloch", "follow": planner.SPECULATIVE}
        P, name = self.exchange.size, names[way.backward]
        windows = P if name == planner.SPECULATIVE else 0
        return planner.Plan(name, self.spans.longest, reason=f"over {P} ranks", windows=windows)

    # One direction of one layer

    def _scan(
        self, x: Tensor, states: Tensors, weights: Tensors, reverse: bool, place: int,
        algorithm: str, steps: Tensor | None = None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """x (T, B, I) of this rank's span -> output (T, B, P), and the last states.

        Args:
            steps: (1, B), how many of them each sample has, by falling numbers; None for all.
        """
        exchange = self.exchange.towards(reverse)
        B, guess = x.shape[1], self.spans.longest
        state = list(states) or [x.new_zeros(B, n) for n in self._config.state_sizes]
        xs = [x.flip(0) if reverse else x, *([] if steps is None else [steps])]
        engine = self._engine(x, weights, guess)
        self._settle()  # here, as what the others tell takes time to arrive
        lengths = self.spans.lengths[::-1] if reverse else self.spans.lengths
        if max(lengths) != guess:
            engine = self._engine(x, weights, max(lengths))
        size = place, max(lengths), B
        if torch._C._current_graph_task_id() != -1 and size in self._of_size:
            # A checkpoint is walked again, in a backward: in the same way.
            way, report = self._of_size[size], Report()
        else:
            way = self._way(exchange, engine, xs, state, lengths, place, algorithm)
            report = self._memories[place].report = self.reports[place] = Report()
            self.ways[place] = self._of_size[size] = way
        like = [x.new_empty(1, self._config.output_size)]
        start: Start = partial(self._walk, engine, way)
        if steps is not None:
            start = partial(_ragged, start, reverse, like[0])
        call = Division(exchange, engine, start, way, like, report, self._log)
        if place == 0 and self.sharded and not reverse and steps is None:
            call.before = self._beginning.used(way, x, self._before)
        [output], last = call(xs, state)
        return (output.flip(0) if reverse else output, *last)

    def _log(self) -> None:
        """A backward, among the scans."""
        c, T = self._config, self.spans.T
        record_scan(c.cell.label, (T, self.batch, c.hidden_size), self.plan())

    def _way(
        self, exchange: Exchange, engine: LayerEngine, xs: Leaves, state: Leaves,
        lengths: Sequence[int], place: int, algorithm: str,
    ) -> Way:  # fmt: skip
        composes = type(engine) is LayerEngine and self._copies_fit(xs[0], max(lengths))
        B, S = len(state[0]), sum(s.shape[1] for s in state)
        asked = max(lengths), B, algorithm, place  # the same on all ranks
        if asked not in self._chosen:
            composes = not any(exchange.most([float(not composes)], xs[0].device))
            self._chosen[asked] = choose(
                exchange, engine.cost, max(lengths), B, S, algorithm, composes, xs[0]
            )
        otherwise = self._chosen[asked]
        memory = self._memories.setdefault(place, RankMemory())
        if place in self._loaded:
            memory.load_state_dict(self._loaded.pop(place), xs[0].device)
        may_meet = self.looks and algorithm in ("auto", planner.SPECULATIVE)
        if len(xs) > 1:
            memory.reason, may_meet = "samples end at different steps", False
        if not may_meet or exchange.size == 1 or not B:
            return otherwise
        return memory.way(exchange, engine, xs, state, lengths, otherwise)

    def _copies_fit(self, x: Tensor, T: int) -> bool:
        """Whether a GPU can hold what it needs to compose a span."""
        c, B = self._config, x.shape[1]
        return (
            x.is_cpu
            or ops.bytes_of_walk(
                c.cell.name, T, B, x.shape[2], c.hidden_size, c.output_size, x.element_size()
            )
            <= _MOST_COPIED
        )

    def _engine(self, x: Tensor, weights: Tensors, T: int) -> LayerEngine:
        """What walks a span of about T steps: PyTorch's kernels where they are faster at it."""
        c, B = self._config, x.shape[1]
        request = planner.Request(
            c.cell.name, max(1, T), B, c.hidden_size, x.device, "auto", None, c.input_size,
            c.output_size if c.projected else 0,
        )  # fmt: skip
        biases = weights[2:4] if c.bias else (None, None)
        operands = [*weights[:2], *biases, weights[-1] if c.projected else None]
        ours = planner.fallback_reason(request) is None
        return (LayerEngine if ours else PytorchEngine)(c.cell.name, operands)

    def _walk(
        self, engine: LayerEngine, way: Way, xs: Leaves, state: Leaves, tail: int, keep: bool,
        wanted: Sequence[bool],
    ) -> Walk:  # fmt: skip
        """This rank's span: in windows of its own, where one sample forgets."""
        [x] = xs
        if type(engine) is not LayerEngine:
            own = engine.with_own_tensors() if keep else engine
            return GraphWalk(own, own, xs, state, tail, keep, wanted)
        if way.forward == "meet" and way.backward == "follow" and x.is_cpu and x.shape[1] == 1:
            sizes = engine.cell, len(x), way.warm, x.shape[2]
            if sizes not in self._cuts:
                self._cuts[sizes] = choose_cut(
                    len(x), 1, way.warm, engine.cost, engine.call, engine.gain, engine.near,
                    engine.rows, engine.calls,
                )  # fmt: skip
            cut = self._cuts[sizes]
            tensors = [t.detach() for t in engine.tensors]
            sequence = None if cut is None else engine.in_place(xs, state, tensors, keep)
            if cut is not None and isinstance(sequence, KernelsInPlace):
                assert way.levels is not None
                return WindowsWalk(sequence, state, cut, way.levels, tail, wanted)
        rows = self.spans.T * self.batch
        return KernelWalk(engine.cell, engine.weights, xs, state, tail, keep, wanted, rows)

    # For people, and for checkpoints

    def details(self) -> list[str]:
        """Lines for `explain`."""
        exchange, counts = self.exchange, self.exchange.counts
        lengths, c = self.spans.lengths, self._config
        lines = []
        if self._short is not None:
            T, least = self._short
            ranks = f"each of {exchange.size} ranks"
            lines.append(f"{T} steps were not divided: fewer than {least} for {ranks}")
        if not self._calls:
            return lines
        lines.append(
            f"divided over {exchange.size} ranks, {min(lengths)} to {max(lengths)} steps each; "
            f"so far {self._calls} calls, {counts.rounds} rounds, {counts.bytes:,} bytes sent, "
            f"{counts.collectives} collectives"
        )
        for k, way in sorted(self.ways.items()):
            layer, backwards = divmod(k, c.directions)
            name = f"layer {layer}{' backwards' * backwards}: " if len(self.ways) > 1 else ""
            lines.append(name + in_words(way, self.reports[k], self._memories[k].reason))
        return lines

    def state_dict(self) -> dict[str, Any]:
        """Of all memories."""
        return {str(k): memory.state_dict() for k, memory in self._memories.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From a checkpoint, when each is next used."""
        self._loaded = {int(k): memory for k, memory in state.items()}
        self._memories = {}


def _ragged(
    start: Start, reverse: bool, like: Tensor, xs: Leaves, state: Leaves, tail: int, keep: bool,
    wanted: Sequence[bool],
) -> Walk:  # fmt: skip
    """The walk of steps that not all samples have, of such as all have."""
    of_piece = wanted[0], *wanted[2:]
    return RaggedWalk(
        lambda x, state: start([x], state, tail, keep, of_piece), xs, reverse, state, like, wanted
    )

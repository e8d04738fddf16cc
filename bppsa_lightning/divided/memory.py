"""What ranks have learned about a recurrence that they divide: whether it forgets, and how fast.

All ranks see the same, and so decide the same: what one sees alone they exchange first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from bppsa_lightning.divided.divide import Way
from bppsa_lightning.divided.states import Report
from bppsa_lightning.divided.walk import Leaves
from bppsa_lightning.ranks import Exchange
from bppsa_lightning.windows import Engine, Levels, forget_casts, levels, look

# Calls between two looks; and those that are relayed after spans did not meet, at first, at most.
_CALLS_BETWEEN, _FIRST_REST, _LONGEST_REST = 64, 8, 512

# The part of a span that a rank may warm up for.
_PART_OF_SPAN = 2

# Steps that a look takes at most: a look at more is a copy of more.
_LONGEST_LOOK = 4096


class RankMemory:
    """Of one recurrence, from call to call.

    Attributes:
        warm: steps of warm-up; None if spans are not known to meet.
        fades: whether gradients were seen to fade within a span.
        reason: why spans do not begin at once, for people.
        report: of the last call.
    """

    def __init__(self) -> None:
        self.warm: int | None = None
        self.fades = True
        self.levels: Levels | None = None
        self.reason: str | None = None
        self.report: Report | None = None
        self._rest = 0
        self._next_rest = _FIRST_REST
        self._in_vain = 0  # steps of the last look, if they were too few

    def way(
        self, exchange: Exchange, engine: Engine, xs: Leaves, state: Leaves,
        lengths: Sequence[int], otherwise: Way,
    ) -> Way:  # fmt: skip
        """How to walk a call: spans that meet, or `otherwise`.

        Args:
            lengths: of all ranks' spans.
        """
        self._learn(exchange)
        self.report = None
        most = min(min(lengths) // _PART_OF_SPAN, _LONGEST_LOOK)
        if most < 1:
            self.reason = f"spans of {min(lengths)} steps are too short to warm up"
            return otherwise
        sees_more = 0 < 2 * self._in_vain <= most
        if self._rest > 0 and self._knows(state) and not sees_more:
            self._rest -= 1
        else:
            self._look(exchange, engine, xs, state, most)
        if self.warm is None:
            return otherwise
        if self.warm > most:
            self.reason = f"spans of {min(lengths)} steps are too short to warm up for {self.warm}"
            return otherwise
        self.reason = None
        backward = "follow" if self.fades else otherwise.backward
        return Way("meet", backward, 1, self.warm, self.levels)

    def _knows(self, state: Leaves) -> bool:
        seen = () if self.levels is None else self.levels.rounding
        return [(r.dtype, r.device) for r in seen] == [(s.dtype, s.device) for s in state]

    def _look(
        self, exchange: Exchange, engine: Engine, xs: Leaves, state: Leaves, most: int
    ) -> None:
        with torch.no_grad():
            seen = look(engine, [x.detach() for x in xs], [s.detach() for s in state], most)
        forget_casts()
        device = state[0].device
        own = seen.levels
        warm, gradients, *sizes = exchange.most(
            [math.inf if seen.warm is None else seen.warm, own.gradients, *own.sizes], device
        )
        rounding = tuple(exchange.largest(own.rounding))
        self.levels = Levels(rounding, tuple(sizes), gradients)
        if math.isinf(warm):
            self._give_up(f"it remembers more than {most} steps")
            self._in_vain = most
        else:
            self.warm, self.fades = int(warm), True
            self._rest, self._in_vain = _CALLS_BETWEEN, 0

    def _learn(self, exchange: Exchange) -> None:
        """From the last call, once its backward is over."""
        report = self.report
        if report is None or report.forward != "meet" or self.warm is None:
            return
        if report.passes > 1:
            self._give_up("states of its spans did not meet")
            return
        if report.missed:
            self.warm += max(1, self.warm // 2)
        else:
            self._next_rest = _FIRST_REST
        if report.backward_passes > 1 and exchange.size > 2:
            self.fades = False

    def _give_up(self, reason: str) -> None:
        self.warm, self.reason, self._in_vain = None, reason, 0
        self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, _LONGEST_REST)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "warm": self.warm,
            "fades": self.fades,
            **levels.saved(self.levels),
            "rest": self._rest,
            "next_rest": self._next_rest,
            "in_vain": self._in_vain,
            "report": None if self.report is None else vars(self.report).copy(),
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """From a checkpoint, perhaps of another number of ranks."""
        self.warm, self.fades = state["warm"], state["fades"]
        self._rest, self._next_rest = state["rest"], state["next_rest"]
        self._in_vain = state.get("in_vain", 0)
        self.levels = levels.loaded(state, device)
        self.report = None if state["report"] is None else Report(**state["report"])

"""What a recurrence has learned about itself: how long windows warm up, or that they do not pay.

It depends on what was seen, call by call, and on nothing else: a training that is run again decides
the same, and so does one that goes on from a checkpoint which holds the `state_dict`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from bppsa_lightning.windows import levels
from bppsa_lightning.windows.cut import Cut, Leaves, choose_cut
from bppsa_lightning.windows.engine import Engine
from bppsa_lightning.windows.forward import forget_casts
from bppsa_lightning.windows.levels import Levels
from bppsa_lightning.windows.look import look
from bppsa_lightning.windows.report import Report

# Calls between two looks at a recurrence whose windows meet: weights change slowly.
_CALLS_BETWEEN = 64

# Calls that are left to the walk after windows did not meet: at first, and at most.
_FIRST_REST, _LONGEST_REST = 8, 512

# A look may take this part of the steps: beyond, warm-ups would not pay either.
_PART_OF_STEPS = 8

# What is kept of the last sizes. (Choosing a cut takes as long as some thousand short steps.)
_MOST_KEPT = 64

# Of a step forward and backward, the forward's part.
_FORWARD = 0.5

# No recurrence is thought to forget in fewer steps: where these do not pay, nobody looks.
LEAST_WARM = 32


class Plan(NamedTuple):
    """How a call's sequence is cut, by which levels windows meet, and what it reports to."""

    cut: Cut
    levels: Levels
    report: Report


class Memory:
    """Of one recurrence, from call to call.

    Attributes:
        warm: steps of warm-up; None if windows do not pay.
        back: the same for gradients, at least.
        reason: why they do not, for people.
        report: of the last call in windows, but of those where a checkpoint walks again.
        silent: whether the loss reads the end alone, when last seen.
        calls, windowed: how many calls there were, and how many of them in windows.
    """

    def __init__(self) -> None:
        self.warm: int | None = None
        self.back = 0
        self.levels: Levels | None = None
        self.reason: str | None = None
        self.report: Report | None = None
        self.silent = False
        self.calls = self.windowed = 0
        self._chosen: dict[tuple[object, ...], Cut | None] = {}
        self._too_few = 0  # steps that did not pay with this warm-up
        self._rest = 0  # calls until the next look
        self._next_rest = _FIRST_REST
        self._in_vain = 0  # steps of the last look, if they were too few
        # Of the last calls, by their sizes: how they were cut; by their steps: whether they rested.
        # Each with the number of the forward, in which several calls may follow each other.
        self._cuts: dict[tuple[int, int], tuple[int, Cut | None]] = {}
        self._rested: dict[int, tuple[int, bool]] = {}
        self._forward = self._held = 0
        self._had_graph, self._walked_again = True, False

    def plan(self, engine: Engine, xs: Leaves, state: Leaves, asked: bool) -> Plan | None:
        """How to cut this call's sequence, xs (T, B, ...) each; None to walk it.

        Within a backward, where a checkpoint walks again, as the last call of its size: whatever
        was learned in between, it has to find the same tensors to keep. For the same reason calls
        of one forward that may be walked again are all cut alike.

        Args:
            asked: whether windows were asked for by name: then any that fit are taken.
        """
        T, B = xs[0].shape[:2]
        if self._holds(self._cuts, (T, B)) and self._knows(state):
            report, cut = Report(), self._cuts[T, B][1]
            if not _in_backward():
                self.calls += 1
                self.windowed += cut is not None
                if self.report is None or not self.report.missed:  # else that is to be learned from
                    self.report = None if cut is None else report
            elif not self._had_graph:  # a checkpoint that is reentrant: its gradients come now
                self.report, self._had_graph = report, True
        else:
            # (Another thread may call the same step meanwhile: what is this call's is not read
            # from attributes again.)
            cut, report = self._new_cut(engine, xs, state, asked), Report()
            _keep(self._cuts, (T, B), (self._forward, cut))
            if cut is not None:
                self.report = report
            self._had_graph = torch.is_grad_enabled()
        levels = self.levels
        return None if cut is None or levels is None else Plan(cut, levels, report)

    def _holds(self, decided: Mapping[Any, tuple[int, Any]], size: Any) -> bool:
        """Whether what was decided for a size holds for this call as well."""
        if _in_backward():
            self._walked_again = True
            return size in decided
        if self._walked_again or self._held >= _CALLS_BETWEEN:
            self._forward += 1
            self._walked_again, self._held = False, 0
        holds = size in decided and decided[size][0] == self._forward and _may_be_walked_again()
        self._held += holds
        return holds

    def _new_cut(self, engine: Engine, xs: Leaves, state: Leaves, asked: bool) -> Cut | None:
        self._learn(self.report)
        self.calls += 1
        T, B = xs[0].shape[:2]
        least = 1 if asked else min(LEAST_WARM, self.warm or LEAST_WARM)
        if self._choose(engine, T, B, least, asked, False) is None:
            self.reason = f"{T} steps are too few for windows"
            return None
        if self._rest > 0 and self._knows(state) and not self._sees_more(T):
            self._rest -= 1
        else:
            self._look(engine, xs, state)
        warm = self.warm
        if warm is None:
            return None
        cut = self._choose(engine, T, B, warm, asked, self.silent)
        self._too_few = T if cut is None and not asked else 0
        if cut is None:
            self.reason = f"{T} steps are too few for windows that warm up for {warm}"
            return None
        self.windowed += 1
        self.reason = None
        return cut._replace(back=max(warm, self.back))

    def rests(self, T: int) -> bool:
        """Whether a call of T steps is left to the walk, by what was seen not long ago.

        Windows did not meet, or so many steps were too few for them.
        """
        if self._holds(self._rested, T):  # as for `cut`
            return self._rested[T][1]
        self._learn(self.report)
        in_vain = self.warm is None and not self._sees_more(T)
        rests = self._rest > 0 and (in_vain or self._too_few >= T)
        _keep(self._rested, T, (self._forward, rests))
        return rests

    def rest(self) -> None:
        """Counts a call that is left to the walk."""
        if not _in_backward():
            self.calls += 1
            self._rest -= 1

    def _choose(
        self, engine: Engine, T: int, B: int, warm: int, asked: bool, silent: bool
    ) -> Cut | None:
        """By the engine's costs, of a walk forwards alone if `silent`; asked again, the same."""
        key = T, B, warm, asked, silent, type(engine), engine.call, torch.get_num_threads()
        if key not in self._chosen:
            gain = 0.0 if asked else engine.gain
            share = _FORWARD if silent else 1.0
            chosen = choose_cut(
                T,
                B,
                warm,
                lambda rows: share * engine.cost(rows),
                engine.call,
                gain,
                engine.near,
                engine.rows,
                engine.calls,
            )
            _keep(self._chosen, key, chosen)
        return self._chosen[key]

    def _knows(self, state: Leaves) -> bool:
        """Whether it has looked at states of this dtype, on this device."""
        seen = () if self.levels is None else self.levels.rounding
        return [(r.dtype, r.device) for r in seen] == [(s.dtype, s.device) for s in state]

    def _sees_more(self, T: int) -> bool:
        """Whether the last look was in vain, and one at T steps takes twice as many at least."""
        return 0 < 2 * self._in_vain <= T // _PART_OF_STEPS

    def _look(self, engine: Engine, xs: Leaves, state: Leaves) -> None:
        T = xs[0].shape[0]
        # What it finds is used in training, too, and gradients are part of it.
        inputs, first = [x.detach() for x in xs], [s.detach() for s in state]
        try:
            with torch.inference_mode(False), torch.no_grad():
                seen = look(engine, inputs, first, max(1, T // _PART_OF_STEPS))
        except Exception as error:
            if not engine.may_fail:
                raise
            return self.fail(error)
        finally:
            forget_casts()
        self.warm, self.levels = seen.warm, seen.levels
        self.silent = False  # which a walk does not tell
        if seen.warm is None:
            self._give_up(f"it remembers more than {T // _PART_OF_STEPS} steps")
            self._in_vain = T // _PART_OF_STEPS
        else:
            self._rest, self._in_vain = _CALLS_BETWEEN, 0
            self.back -= self.back // 4

    def _learn(self, report: Report | None) -> None:
        """From the last call in windows, once its backward is over."""
        warm = self.warm
        if report is None or warm is None:
            return
        self.report = None
        if report.silent is not None:
            self.silent = report.silent
        states_met = report.walked_from is None and 2 * report.passes < report.windows
        if not states_met or report.backward_passes > 1 + report.windows // 2:
            what = "gradients" if states_met else "states"
            self._give_up(f"{what} of its windows did not meet")
            return
        if 8 * report.gradients_missed > report.windows:
            self.back = max(self.back, warm) * 3 // 2 + 1
        if 8 * report.missed > report.windows:
            self.warm = warm + max(1, warm // 2)
        elif not report.missed:
            self._next_rest = _FIRST_REST

    def fail(self, error: Exception) -> None:
        """States that the walk does not come to are none for this recurrence.

        Raises it within a backward, where it is how a checkpoint says that it has what it wants.
        """
        if _in_backward():
            raise error
        words = str(error).partition("\n")[0] or type(error).__name__
        self.report = None
        self._give_up(f"it fails for other states ({words})")

    def _give_up(self, reason: str) -> None:
        self.warm, self.reason, self._in_vain = None, reason, 0
        self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, _LONGEST_REST)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "warm": self.warm,
            "back": self.back,
            **levels.saved(self.levels),
            "rest": self._rest,
            "next_rest": self._next_rest,
            "too_few": self._too_few,
            "in_vain": self._in_vain,
            "silent": self.silent,
            "report": None if self.report is None else vars(self.report).copy(),
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """From a checkpoint."""
        self.warm, self._rest = state["warm"], state["rest"]
        self.back = state["back"]
        self._next_rest, self._too_few = state["next_rest"], state.get("too_few", 0)
        self.silent, self._in_vain = state.get("silent", False), state.get("in_vain", 0)
        self.levels = levels.loaded(state, device)
        self.report = None if state["report"] is None else Report(**state["report"])


def _in_backward() -> bool:
    """Whether this thread is in a backward: then a forward is a checkpoint's."""
    return bool(torch._C._current_graph_task_id() != -1)


def _may_be_walked_again() -> bool:
    """Whether somebody looks after the tensors that graphs save, as a checkpoint does."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _keep(of_size: dict[Any, Any], size: Any, value: Any) -> None:
    if len(of_size) >= _MOST_KEPT:
        of_size.clear()
    of_size[size] = value

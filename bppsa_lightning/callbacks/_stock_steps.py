"""Times some steps of a training against stock PyTorch, for a small share of the training's time.

Of a step that is timed, the parts are measured (`StepTimer`), and the calls of accelerated layers
are recorded. When it has ended, each call is run again, by our kernels and by PyTorch's, on copies
of the layers alone: see `bppsa_lightning.gains`. So the training keeps its bits, and the user's
code runs once.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bppsa_lightning._replacement import Replacement
from bppsa_lightning.callbacks.step_timer import PARTS, StepTimer
from bppsa_lightning.gains import Comparison, Recording
from bppsa_lightning.gains.recording import PIECES, Call, accelerated_calls, recordable
from bppsa_lightning.gains.replay import Seconds, Twins, run

if TYPE_CHECKING:
    import lightning.pytorch as pl

_WARM_UP = 2  # steps that nobody times: memory is allocated, code compiled
# Before anything is known of stock's speed: how many of our steps may a 16th of one of its steps
# take, and one where there is no such piece? GRUs of 20 units were seen at 85 of ours, whole.
_OF_A_PIECE, _OF_A_STEP = 10, 30
_LEAST = 3  # steps, for a median that a single one does not make
_TO_TIME_ONE = 3  # steps: one counts the layers' calls, one finds those that ran, one is timed


class _PartsTimer(StepTimer):
    """Of single steps, beside another timer that times them all."""

    def _watch_loading(self, profiler: Any) -> None:
        """Not needed here."""


class StockSteps:
    """What a training's callback calls at each of its hooks.

    Args:
        wanted: how many steps to time.
        share: of the training's time so far, that timing may have taken at any moment.

    Attributes:
        comparison: what was measured.
        spent: seconds that it took.
        obstacle: why nothing can be measured; None as long as it can.
    """

    def __init__(self, wanted: int, share: float) -> None:
        if wanted < 0 or share < 0:
            raise ValueError(
                f"stock_steps, stock_share: found {wanted!r}, {share!r}, wanted no negative numbers"
            )
        self.wanted, self.share = wanted, share
        self._reset()

    def _reset(self) -> None:
        self.comparison = Comparison()
        self.spent = 0.0
        self.obstacle: str | None = None
        self._start, self._steps = 0.0, 0
        self._cost: float | None = None  # seconds of timing a step
        self._calls: dict[Replacement, int] = {}  # counted at the end of the step before
        self._armed: list[Replacement] = []  # those to record in the next step
        self._refusal: str | None = None
        self._twins: dict[Replacement, Twins] = {}
        self._timer: StepTimer | None = None
        self._recording: Recording | None = None
        self._names: dict[Any, str] = {}

    @property
    def is_done(self) -> bool:
        return self.obstacle is not None or len(self.comparison.steps) >= self.wanted

    @property
    def has_figures(self) -> bool:
        """Whether enough steps were timed to speak of them."""
        return len(self.comparison.steps) >= self._enough > 0

    @property
    def _enough(self) -> int:
        return min(_LEAST, self.wanted)

    def why_none(self, module: pl.LightningModule) -> str | None:
        """Why there are no figures, for people; None if no layer of a model ran here, either."""
        if self.obstacle is not None or self._refusal is not None:
            return self.obstacle or self._refusal
        if not any(accelerated_calls(r) for r in recordable(module)):
            return None
        # The last one that warms up counts calls already; the first that is timed tells the cost.
        needed = _WARM_UP - 1 + _TO_TIME_ONE * (1 + self._enough)
        if self._steps < needed:
            return f"the training was too short: {self._steps} steps, and {needed} are needed"
        return (
            f"a few steps of it would have taken more than {self.share:.0%} of this run. "
            "ChainMonitor(stock_share=...) allows more"
        )

    def begin(self) -> None:
        """A training starts."""
        self.end()
        self._reset()
        self._start = time.perf_counter()

    def batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, *args: Any) -> None:
        if self.is_done or not self._armed:
            return
        armed, self._armed = self._armed, []
        self._names = {child: name for name, child in module.named_modules()}
        self._timer = _PartsTimer(log=False)
        self._timer.on_train_start(trainer, module)
        self._recording = Recording(armed)
        self._timer.on_train_batch_start(trainer, *args)

    def mark(self, hook: str) -> None:
        """A hook of `StepTimer` in between."""
        if self._timer is not None:
            getattr(self._timer, hook)()

    def batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *args: Any) -> bool:
        """Whether a step was timed."""
        if self.is_done:
            return False
        self._steps += 1
        start, timed = time.perf_counter(), False
        if self._timer is not None and self._recording is not None:
            self._timer.on_train_batch_end(trainer, module, *args)
            seconds = {part: getattr(self._timer, part)[-1] for part in PARTS}
            calls = self._recording.calls
            self._stop()
            timed = self._time(seconds, calls)
            self.spent += time.perf_counter() - start
        elif self._may_time():
            self._look(module)
            self.spent += time.perf_counter() - start
        if self.is_done:
            self._twins = {}
        return timed

    def end(self) -> None:
        """The training is over, or broke off."""
        self._stop()
        self._twins, self._calls, self._armed = {}, {}, []

    def _stop(self) -> None:
        if self._recording is not None:
            self._recording.stop()
        if self._timer is not None:
            self._timer.on_train_end()
        self._timer = self._recording = None

    def _may_time(self) -> bool:
        """Whether the next step's timing is within the share of the time so far."""
        if self.is_done or self._steps < _WARM_UP:
            return False
        elapsed = time.perf_counter() - self._start
        mean = (elapsed - self.spent) / self._steps
        cost = _OF_A_PIECE * mean if self._cost is None else self._cost
        return self.spent + cost <= self.share * elapsed

    def _look(self, module: pl.LightningModule) -> None:
        """Which layers ran here in the step that ended: the next step's calls are recorded."""
        before, self._calls = self._calls, {}
        grown = [r for r, calls in before.items() if accelerated_calls(r) > calls]
        if grown:
            self._armed = grown
            return  # else: fallbacks, or compiled ones
        twins: dict[Replacement, Twins] = {}
        refused: set[Any] = set()
        while True:
            layers = recordable(module, refused)
            new = next((r for r in layers if r not in twins), None)
            if new is None:
                break
            known = self._twins.get(new)
            try:
                twins[new] = known if known is not None and known.fit(new) else Twins(new)
            except ValueError as error:
                refused.add(new.module)
                self._refusal = str(error)
        self._twins = twins
        self._calls = {r: accelerated_calls(r) for r in layers}

    def _time(self, seconds: dict[str, float], calls: list[Call]) -> bool:
        """Runs the calls of a step both ways."""
        calls = [call for call in calls if call.intact and call.replacement in self._twins]
        if not calls:
            return False
        try:
            if self._cost is None:
                self._cost = self._estimate(calls, sum(seconds.values()))
                return False
            start = time.perf_counter()
            layers: dict[str, tuple[Seconds, Seconds]] = {}
            turn = len(self.comparison.steps) % 2
            for call in calls:
                pair = self._both(call, turn)
                name = self._names.get(call.replacement.module, call.replacement.name)
                before = layers.get(name, (Seconds(0.0, 0.0),) * 2)
                layers[name] = before[0].plus(pair[0]), before[1].plus(pair[1])
            self._cost = time.perf_counter() - start
        except Exception as error:  # of memory, of a layer in a state that no copy has
            self.obstacle = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            return False
        self.comparison.add(seconds, layers)
        return True

    def _both(self, call: Call, turn: int) -> tuple[Seconds, Seconds]:
        """By ours and by stock's, in turns the first."""
        twins = self._twins[call.replacement]
        found = {}
        for stock in (False, True) if turn else (True, False):
            found[stock] = run(call, twins.stock if stock else twins.ours, stock)
        return found[False], found[True]

    def _estimate(self, calls: list[Call], step: float) -> float:
        """Seconds that timing a step will take: from a piece of it, where there is one."""
        cost = 0.0
        for call in calls:
            piece = call.piece()
            if piece is None:
                cost += _OF_A_STEP * step / len(calls)
            else:
                cost += PIECES * sum(run(piece, self._twins[call.replacement].stock, stock=True))
        return cost + step

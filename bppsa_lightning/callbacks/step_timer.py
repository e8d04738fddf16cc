"""Where a training step's time goes: a callback for any Trainer."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from torch.optim import Optimizer
from typing_extensions import override

from bppsa_lightning._trees import stand_in
from bppsa_lightning.callbacks._trainer import is_accumulating, is_logging_step
from bppsa_lightning.gains.clock import Clock, clock_of

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.profilers import Profiler
else:
    Callback = stand_in("pytorch.callbacks.Callback")

PARTS = ("forward", "backward", "optimizer", "rest")
LOADING = "[_TrainingEpochLoop].train_dataloader_next"  # as Lightning's loop tells its profiler


def _figure(name: str) -> property:
    def seconds(timer: StepTimer) -> list[float]:
        return timer._read()[name]

    return property(seconds, doc=f"Seconds of {name} in each step so far.")


class StepTimer(Callback):
    """Measures the parts of every training step, in seconds.

    A step runs from the start of a batch to its end, and is the sum of four parts:

    - forward: `training_step` up to the backward, so it includes the loss. Under manual
      optimisation, all of `training_step` but the two parts that follow.
    - backward: the sum, if there are several.
    - optimizer: clipping and the optimizer's own step. Forward and backward, which run inside its
      closure, are not counted here. Where the Trainer sets the gradients to zero (automatic
      optimisation), that belongs to it.
    - rest: hooks, and the Trainer's own work; under manual optimisation it is part of forward.

    Apart from them stands data: how long the loop waited for the step's batch, on the host.

    On CUDA an event is recorded on the current stream at each boundary, so that the parts are the
    device's time. Nothing waits for the device until they are read: by an attribute, or at a
    logging step. Other devices are timed on the host.

    Args:
        log: log "seconds/forward" and the other parts, "seconds/step", "seconds/data" and
            "seconds/elapsed" (wall clock since training began, everything included) at every
            logging step of the Trainer: means over the batches since the one before.
        prog_bar: show the four parts, as of the last logging step, in the progress bar.

    Attributes:
        forward: seconds in each step so far; backward, optimizer, rest, step, data: likewise.
    """

    forward = _figure("forward")
    backward = _figure("backward")
    optimizer = _figure("optimizer")
    rest = _figure("rest")
    step = _figure("step")
    data = _figure("data")

    def __init__(self, log: bool = True, prog_bar: bool = False) -> None:
        self._logs = log  # `self.log` is where the Trainer puts the model's own
        self._shows = prog_bar
        self._clock = Clock()
        self._seconds: dict[str, list[float]] = {name: [] for name in (*PARTS, "step", "data")}
        self._marks: list[tuple[str, Any]] = []  # of this step: which part begins, and when
        self._unread: deque[tuple[list[tuple[str, Any]], float]] = deque()  # marks, data
        self._unlogged = 0  # the first step that no logging step has told of
        self._train_start = 0.0
        self._fetch_start = 0.0
        self._loading = 0.0
        self._otherwise = "rest"  # the part outside of backward and optimizer
        self._undo: list[Callable[[], None]] = []
        self._hooked: set[Optimizer] = set()

    def medians(self) -> dict[str, float]:
        """Median seconds of each part, of "step" and of "data"; empty before the first step."""
        return {name: median(values) for name, values in self._read().items() if values}

    # --- boundaries ------------------------------------------------------------------------------

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._unlogged = len(self._read()["step"])
        self._release()
        self._clock = clock_of(trainer.strategy.root_device)
        self._otherwise = "rest" if pl_module.automatic_optimization else "forward"
        self._watch_loading(trainer.profiler)  # type: ignore[attr-defined]
        self._train_start = time.perf_counter()

    @override
    def on_train_batch_start(self, trainer: pl.Trainer, *args: Any) -> None:
        for optimizer in trainer.optimizers:
            self._watch_step(optimizer)
        self._marks = [("forward", self._clock.now())]

    @override
    def on_before_zero_grad(self, *args: Any) -> None:
        self._begin("optimizer")

    @override
    def on_before_backward(self, *args: Any) -> None:
        self._begin("backward")

    @override
    def on_after_backward(self, *args: Any) -> None:
        self._begin(self._otherwise)

    @override
    def on_before_optimizer_step(self, *args: Any) -> None:
        self._begin("optimizer")

    @override
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        self._begin("end")
        self._unread.append((self._marks, self._loading))
        self._marks, self._loading = [], 0.0
        self._read(wait=False)
        accumulates = self._otherwise == "rest" and is_accumulating(trainer)
        if is_logging_step(trainer) and not accumulates:
            self._log_means(pl_module)

    @override
    def on_train_end(self, *args: Any) -> None:
        self._release()

    @override
    def on_exception(self, *args: Any) -> None:
        self._release()

    def _begin(self, part: str) -> None:
        """Ends the part at hand."""
        if self._marks:  # in a training step
            self._marks.append((part, self._clock.now()))

    def _watch_step(self, optimizer: Optimizer) -> None:
        """Marks the start and end of the optimizer's step, and of the closure that it calls."""
        if not isinstance(optimizer, Optimizer) or optimizer in self._hooked:
            return
        self._hooked.add(optimizer)

        def before(_: Optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            self._begin("optimizer")
            if len(args) > 1:  # args[0] is the optimizer
                args = (args[0], self._marked(args[1]), *args[2:])
            elif "closure" in kwargs:
                kwargs = {**kwargs, "closure": self._marked(kwargs["closure"])}
            return args, kwargs

        def after(*_: Any) -> None:
            self._begin(self._otherwise)

        self._undo.append(optimizer.register_step_pre_hook(before).remove)
        self._undo.append(optimizer.register_step_post_hook(after).remove)

    def _marked(self, closure: Callable[[], Any] | None) -> Callable[[], Any] | None:
        if closure is None:
            return None

        def marked() -> Any:
            self._begin("forward")
            loss = closure()
            self._begin("optimizer")
            return loss

        return marked

    def _watch_loading(self, profiler: Profiler) -> None:
        """Times the loop's waiting for data, which only the Trainer's profiler is told of."""
        start, stop = profiler.start, profiler.stop

        def marked_start(action_name: str) -> None:
            if action_name == LOADING:
                self._fetch_start = time.perf_counter()
            start(action_name)

        def marked_stop(action_name: str) -> None:
            stop(action_name)
            if action_name == LOADING:
                self._loading += time.perf_counter() - self._fetch_start

        own = {"start": marked_start, "stop": marked_stop}
        profiler.__dict__.update(own)

        def undo() -> None:
            for name, function in own.items():
                if profiler.__dict__.get(name) is function:
                    del profiler.__dict__[name]

        self._undo.append(undo)

    def _release(self) -> None:
        for undo in self._undo:
            undo()
        self._undo, self._marks, self._loading = [], [], 0.0
        self._hooked = set()

    # --- figures ---------------------------------------------------------------------------------

    def _read(self, wait: bool = True) -> dict[str, list[float]]:
        """The figures of each step; those that the device has not done with yet only by waiting."""
        while self._unread and (wait or self._clock.passed(self._unread[0][0][-1][1])):
            marks, loading = self._unread.popleft()
            parts = dict.fromkeys(PARTS, 0.0)
            for (part, begin), (_, end) in pairwise(marks):
                parts[part] += self._clock.between(begin, end)
            whole = sum(parts.values())
            for name, seconds in {**parts, "step": whole, "data": loading}.items():
                self._seconds[name].append(seconds)
        return self._seconds

    def _log_means(self, pl_module: pl.LightningModule) -> None:
        if not (self._logs or self._shows):
            return
        seconds = self._read()
        means = {f"seconds/{name}": fmean(v[self._unlogged :]) for name, v in seconds.items()}
        self._unlogged = len(seconds["step"])
        parts = {name: means.pop(name) for name in (f"seconds/{part}" for part in PARTS)}
        pl_module.log_dict(parts, prog_bar=self._shows, logger=self._logs)
        if self._logs:
            means["seconds/elapsed"] = time.perf_counter() - self._train_start
            pl_module.log_dict(means)

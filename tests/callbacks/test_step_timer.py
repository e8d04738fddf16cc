"""StepTimer under any strategy: what it counts, what it logs, that its figures fit together."""

import time
from statistics import fmean
from types import SimpleNamespace

import pytest
import torch
from support.cases import needs_gpu
from support.helpers import Classifier, Memory, data, fit, trainer
from torch.utils.data import DataLoader

import bppsa_lightning as bl
from bppsa_lightning.gains.clock import CudaClock

PARTS = {"forward", "backward", "optimizer", "rest"}
FIGURES = PARTS | {"step", "data"}
NAMES = {f"seconds/{figure}" for figure in FIGURES | {"elapsed"}}

pytestmark = pytest.mark.parametrize("strategy", ["auto", "bppsa"])


def assert_consistent(timer, steps, backward=True):
    """`steps` of each figure; parts that add up to the whole."""
    assert all(len(getattr(timer, figure)) == steps for figure in FIGURES)
    for i in range(steps):
        parts = {part: getattr(timer, part)[i] for part in PARTS}
        assert parts["forward"] > 0 and parts["rest"] >= 0 and parts["optimizer"] >= 0
        assert (parts["backward"] > 0) == backward
        assert sum(parts.values()) == pytest.approx(timer.step[i], rel=1e-9)
        assert timer.data[i] > 0


class TwoBackwards(Classifier):
    """Manual optimisation: two losses, two backwards, a forward between them."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for _ in range(2):
            loss = super().training_step(batch, batch_idx)
            self.optimizers().zero_grad()
            self.manual_backward(loss)
            self.optimizers().step()


class NoBackward(Classifier):
    """Skips every batch."""

    def training_step(self, batch, batch_idx):
        return None


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (Classifier, {}),
        (Classifier, {"accumulate_grad_batches": 2}),
        (Classifier, {"gradient_clip_val": 0.1}),
        (TwoBackwards, {}),
    ],
    ids=["plain", "accumulation", "clipping", "manual"],
)
def test_counts_each_batch_with_consistent_figures(model, settings, strategy):
    timer = bl.StepTimer()
    assert timer.medians() == {}
    fit(strategy, model, callbacks=[timer], max_epochs=2, **settings)
    assert_consistent(timer, steps=8)
    medians = timer.medians()
    assert medians.keys() == FIGURES
    for name, value in medians.items():
        assert min(getattr(timer, name)) <= value <= max(getattr(timer, name))


def test_a_step_without_backward(strategy):
    timer = bl.StepTimer()
    fit(strategy, NoBackward, callbacks=[timer], max_epochs=1)
    assert_consistent(timer, steps=4, backward=False)
    assert timer.backward == [0.0] * 4


# --- what counts as what, by a clock that moves only where it is told to -------------------------

TAKES = {"data": 1, "forward": 2, "zero": 4, "backward": 8, "after": 16, "clip": 32, "step": 64}


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(seconds=0)
    clock.perf_counter = lambda: float(clock.seconds)
    monkeypatch.setattr("bppsa_lightning.gains.clock.time", clock)
    monkeypatch.setattr("bppsa_lightning.callbacks.step_timer.time", clock)
    return clock


@pytest.fixture
def told(clock):
    """(forward, backward, optimizer, rest, data) of each step of a model on that clock."""

    class Slow(torch.optim.SGD):
        evaluations = 1

        def step(self, closure=None):
            for _ in range(self.evaluations if closure else 0):
                closure()
            clock.seconds += TAKES["step"]
            return super().step()

    class Twice(Slow):
        evaluations = 2

    class Told(Classifier):
        optimizer = Slow

        def loss(self, batch):
            clock.seconds += TAKES["forward"]
            return super().loss(batch)

        def optimizer_zero_grad(self, *args):
            clock.seconds += TAKES["zero"]
            super().optimizer_zero_grad(*args)

        def backward(self, loss, *args, **kwargs):
            super().backward(loss, *args, **kwargs)
            clock.seconds += TAKES["backward"]

        def on_after_backward(self):
            clock.seconds += TAKES["after"]

        def configure_gradient_clipping(self, *args, **kwargs):
            clock.seconds += TAKES["clip"]

        def configure_optimizers(self):
            return self.optimizer(self.parameters(), lr=0.1)

    class EvaluatedTwice(Told):
        optimizer = Twice

    class Manual(Told):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def configure_optimizers(self):
            return [Slow(self.rnn.parameters(), lr=0.1), Slow(self.head.parameters(), lr=0.1)]

        def training_step(self, batch, batch_idx):
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(super().training_step(batch, batch_idx))
                optimizer.step()

    class ManualClosure(Manual):
        def training_step(self, batch, batch_idx):
            self.toggle_optimizer(first := self.optimizers()[0])
            first.step(closure=lambda: self.manual_backward(self.loss(batch)))
            self.untoggle_optimizer(first)

    class Unwrapped(Manual):
        def training_step(self, batch, batch_idx):
            self.manual_backward(self.loss(batch))
            self.optimizers(use_pl_optimizer=False)[1].step()

    def collate(samples):
        clock.seconds += TAKES["data"]
        return torch.utils.data.default_collate(samples)

    models = {m.__name__: m for m in (Told, EvaluatedTwice, Manual, ManualClosure, Unwrapped)}

    def run(strategy, model, **settings):
        timer = bl.StepTimer()
        loader = DataLoader(data().dataset, batch_size=4, collate_fn=collate)
        fit(
            strategy, models[model], loader=loader, callbacks=[timer], max_epochs=1,
            limit_train_batches=2, **settings,
        )  # fmt: skip
        names = ("forward", "backward", "optimizer", "rest", "data")
        assert [sum(p) for p in zip(*(getattr(timer, n) for n in names[:4]))] == timer.step
        return list(zip(*(getattr(timer, name) for name in names)))

    return run


@pytest.mark.parametrize(
    ("model", "settings", "wanted"),
    [
        ("Told", {}, [(2, 8, 4 + 32 + 64, 16, 1)] * 2),
        # The first batch only sets to zero; the second clips and steps.
        (
            "Told",
            {"accumulate_grad_batches": 2},
            [(2, 8, 4, 16, 1), (2, 8, 32 + 64, 16, 1)],
        ),
        ("EvaluatedTwice", {}, [(4, 16, 8 + 64 + 64, 32, 1)] * 2),
        # All else of a manual training_step is forward, hooks inside of it included.
        ("Manual", {}, [(4 + 32, 16, 128, 0, 1)] * 2),
        ("ManualClosure", {}, [(2 + 16, 8, 64, 0, 1)] * 2),
        ("Unwrapped", {}, [(2 + 16, 8, 64, 0, 1)] * 2),
    ],
)
def test_each_second_belongs_to_its_part(told, model, settings, wanted, strategy):
    assert told(strategy, model, **settings) == wanted


# --- CUDA events ---------------------------------------------------------------------------------


class Device:
    """A device that lags behind: events that it has not passed say so, and may be waited for."""

    def __init__(self, monkeypatch):
        self.waits, self.recorded, self.passed = 0, 0, 0
        device = self

        class Event:
            def __init__(self, enable_timing=False):
                assert enable_timing

            def record(self, stream):
                assert stream == "stream of cuda:0"
                device.recorded += 1
                self.moment = device.recorded

            def query(self):
                return self.moment <= device.passed

            def synchronize(self):
                if not self.query():
                    device.waits += 1
                    device.passed = self.moment

            def elapsed_time(self, later):
                assert later.query(), "read before it was recorded"
                return 1e3 * (later.moment - self.moment)

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
        clock = CudaClock(torch.device("cuda:0"))
        monkeypatch.setattr("bppsa_lightning.callbacks.step_timer.clock_of", lambda device: clock)


def test_on_cuda_only_logging_steps_wait_for_the_device(monkeypatch, strategy):
    device, memory = Device(monkeypatch), Memory()
    timer = bl.StepTimer()
    waits = []

    class Watched(Classifier):
        def on_train_batch_end(self, *args):
            waits.append(device.waits)

    fit(
        strategy, Watched, callbacks=[timer], logger=memory, log_every_n_steps=3,
        max_epochs=2, max_steps=8,
    )  # fmt: skip
    assert [b > a for a, b in zip([0, *waits], waits)] == [False, False, True] * 2 + [False] * 2
    assert [step for step, _ in memory.timings()] == [2, 5]
    before = device.waits
    assert_consistent(timer, steps=8)
    assert device.waits > before and timer.backward == [1.0] * 8


def test_on_cuda_steps_that_the_device_is_done_with_are_read_without_waiting(monkeypatch, strategy):
    device, timer = Device(monkeypatch), bl.StepTimer(log=False)

    class Caught(Classifier):
        def on_train_batch_start(self, *args):
            device.passed = device.recorded  # also what came last in the step before

    fit(strategy, Caught, callbacks=[timer])
    assert len(timer._seconds["step"]) == 3 and len(timer._unread) == 1 and device.waits == 0
    assert_consistent(timer, steps=4)


@pytest.mark.parametrize("accelerator", [pytest.param("gpu", marks=needs_gpu)])
@pytest.mark.parametrize("size", [64, 2048])
@pytest.mark.usefixtures("accelerate_everything")
def test_on_cuda_the_parts_are_the_devices_time(size, accelerator, strategy):
    class Products(Classifier):
        def loss(self, batch):
            x = torch.randn(size, size, device=self.device)
            for _ in range(100):
                x = torch.tanh(x @ x)
            return super().loss(batch) + 0 * x.sum()

    timer = bl.StepTimer()
    start = time.perf_counter()
    fit(strategy, Products, callbacks=[timer], accelerator=accelerator, max_epochs=4, max_steps=16)
    whole = time.perf_counter() - start
    assert_consistent(timer, steps=16)
    assert sum(timer.step) < whole
    # 100 products on any device are longer than one layer's backward, though launched at once.
    assert size == 64 or timer.medians()["forward"] > timer.medians()["backward"]


# --- what is logged ------------------------------------------------------------------------------


def test_validation_is_no_part_of_a_step(strategy):
    class Validated(Classifier):
        def validation_step(self, batch, batch_idx):
            self.log("loss", self.loss(batch))

    timer = bl.StepTimer()
    run = trainer(strategy, callbacks=[timer], max_epochs=1, val_check_interval=2)
    run.fit(Validated(), data(), data())
    assert_consistent(timer, steps=4)


@pytest.mark.parametrize("every", [1, 2])
def test_logs_its_figures_at_logging_steps(every, strategy):
    timer, memory = bl.StepTimer(), Memory()
    fit(strategy, callbacks=[timer], logger=memory, log_every_n_steps=every)
    steps = range(every - 1, 4, every)
    logged = memory.timings()
    assert [step for step, _ in logged] == list(steps)
    for step, metrics in logged:
        assert metrics.keys() == NAMES
        for name in FIGURES:
            figures = getattr(timer, name)[step + 1 - every : step + 1]
            assert metrics[f"seconds/{name}"] == pytest.approx(fmean(figures), rel=1e-6)
        assert metrics["seconds/elapsed"] >= 0.999 * sum(timer.step[: step + 1])
    elapsed = [metrics["seconds/elapsed"] for _, metrics in logged]
    assert elapsed == sorted(elapsed)


def test_logs_every_batch_that_was_accumulated(strategy):
    timer, memory = bl.StepTimer(), Memory()
    fit(
        strategy, callbacks=[timer], logger=memory, log_every_n_steps=2, max_epochs=2,
        max_steps=-1, accumulate_grad_batches=2,
    )  # fmt: skip
    ((step, metrics), (_, last)) = memory.timings()
    assert step == 1 and metrics["seconds/step"] == pytest.approx(fmean(timer.step[:4]), rel=1e-6)
    assert last["seconds/step"] == pytest.approx(fmean(timer.step[4:]), rel=1e-6)


def test_logs_under_manual_optimisation(strategy):
    memory = Memory()
    fit(
        strategy, TwoBackwards, callbacks=[bl.StepTimer()], logger=memory,
        max_epochs=1, log_every_n_steps=1,
    )  # fmt: skip
    assert memory.timings() and all(m.keys() == NAMES for _, m in memory.timings())


def test_log_false_logs_nothing(strategy):
    timer, memory = bl.StepTimer(log=False), Memory()
    fit(strategy, callbacks=[timer], logger=memory, log_every_n_steps=1)
    assert_consistent(timer, steps=4)
    assert memory.timings() == []


@pytest.mark.parametrize("log", [True, False])
def test_shows_its_parts_in_the_progress_bar_if_asked(log, strategy):
    shown = {"seconds/" + part for part in PARTS}
    for prog_bar in (False, True):
        memory, timer = Memory(), bl.StepTimer(log=log, prog_bar=prog_bar)
        run = fit(strategy, callbacks=[timer], logger=memory, log_every_n_steps=2).trainer
        found = {k: v for k, v in run.progress_bar_metrics.items() if k.startswith("seconds")}
        assert found.keys() == (shown if prog_bar else set())
        for name, value in found.items():
            last = getattr(timer, name.removeprefix("seconds/"))[-2:]
            assert value == pytest.approx(fmean(last), rel=1e-6)
        assert bool(memory.timings()) == log


def test_leaves_optimizer_and_profiler_as_they_were(strategy):
    class Interrupted(Classifier):
        def on_train_batch_end(self, *args):
            raise KeyError

    def assert_untouched(run):
        hooks = run.optimizers[0]._optimizer_step_pre_hooks
        assert not hooks and not run.optimizers[0]._optimizer_step_post_hooks
        assert not {"start", "stop"} & run.profiler.__dict__.keys()

    assert_untouched(fit(strategy, callbacks=[bl.StepTimer(), bl.StepTimer()]).trainer)
    run = trainer(strategy, callbacks=[bl.StepTimer()])
    with pytest.raises(KeyError):
        run.fit(Interrupted(), data())
    assert_untouched(run)


def test_a_timer_changes_no_result(strategy):
    with_timer = fit(strategy, callbacks=[bl.StepTimer()])
    assert with_timer.losses == fit(strategy).losses
    assert all(
        torch.equal(a, b)
        for a, b in zip(with_timer.parameters(), fit(strategy).parameters(), strict=True)
    )


def test_one_timer_through_two_fits_goes_on_counting(strategy):
    timer = bl.StepTimer()
    for _ in range(2):
        fit(strategy, callbacks=[timer])
    assert_consistent(timer, steps=8)

"""StepTimer under any strategy: what it counts, what it logs, that its figures fit together."""

import pytest
import torch
from helpers import Classifier, data, fit, trainer
from lightning.pytorch.loggers import Logger

import bppsa_lightning as bl

PARTS = {"forward", "backward", "step"}
NAMES = {f"seconds/{part}" for part in PARTS | {"elapsed"}}

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.parametrize("strategy", ["auto", "bppsa"]),
]


class Memory(Logger):
    """Keeps what is logged as (step, {name: value})."""

    name, version = "memory", 0

    def __init__(self):
        super().__init__()
        self.logged = []

    def log_metrics(self, metrics, step=None):
        self.logged.append((step, metrics))

    def log_hyperparams(self, *args, **kwargs):
        pass

    def timings(self):
        """The logged figures of each step, without the Trainer's own."""
        found = [(step, {n: v for n, v in m.items() if n != "epoch"}) for step, m in self.logged]
        return [(step, metrics) for step, metrics in found if metrics]


def assert_consistent(timer, steps, backward=True):
    """`steps` triples; parts positive and no longer than the whole."""
    assert len(timer.forward) == len(timer.backward) == len(timer.step) == steps
    for forward, back, whole in zip(timer.forward, timer.backward, timer.step, strict=True):
        assert forward > 0 and whole > 0 and (back > 0) == backward
        assert forward + back <= whole


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
    assert medians.keys() == PARTS
    for name, value in medians.items():
        assert min(getattr(timer, name)) <= value <= max(getattr(timer, name))


def test_a_step_without_backward(strategy):
    timer = bl.StepTimer()
    fit(strategy, NoBackward, callbacks=[timer], max_epochs=1)
    assert_consistent(timer, steps=4, backward=False)
    assert timer.backward == [0.0] * 4


def test_forward_ends_at_the_first_backward_and_backwards_add_up(strategy, monkeypatch):
    """By a clock that moves on by one at each look."""
    ticks = iter(range(1000))
    monkeypatch.setattr("bppsa_lightning.timer._now", lambda trainer: float(next(ticks)))
    timer = bl.StepTimer(log=False)
    fit(strategy, TwoBackwards, callbacks=[timer], max_epochs=1)
    assert (timer.forward, timer.backward, timer.step) == ([1.0] * 4, [2.0] * 4, [5.0] * 4)


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
        for part in PARTS:
            figure = getattr(timer, part)[step]
            assert metrics[f"seconds/{part}"] == pytest.approx(figure, rel=1e-6)
        assert metrics["seconds/elapsed"] >= 0.999 * sum(timer.step[: step + 1])
    elapsed = [metrics["seconds/elapsed"] for _, metrics in logged]
    assert elapsed == sorted(elapsed)


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

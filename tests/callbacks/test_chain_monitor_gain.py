"""What ChainMonitor says of a gain: once, honestly, and for a small share of the time."""

import logging
import warnings

import pytest
import torch
from support.helpers import Classifier, Memory, data, fit, trainer
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.callbacks import _stock_steps
from bppsa_lightning.callbacks._stock_steps import StockSteps
from bppsa_lightning.gains import Comparison
from bppsa_lightning.gains.replay import Seconds

pytestmark = pytest.mark.filterwarnings("ignore:Memory takes no")
SOON = {"stock_steps": 4, "stock_share": 1e6}
STEP = {"forward": 2.0, "backward": 1.0, "optimizer": 1.0, "rest": 0.0}


@pytest.fixture
def said():
    """The lines that Lightning's log has of this package."""
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("lightning.pytorch")
    logger.addHandler(handler)
    yield lambda: [m for r in records if "BPPSA" in (m := r.getMessage())]
    logger.removeHandler(handler)


def measured(monkeypatch, ours, stock):
    """As if each step that is timed took this long in its layers."""

    def time(self, seconds, calls):
        self._cost = 0.0
        self.comparison.add(STEP, {"rnn": (Seconds(*ours), Seconds(*stock))})
        return True

    monkeypatch.setattr(StockSteps, "_time", time)


def test_a_line_at_the_start_and_one_at_the_end(monkeypatch, said):
    measured(monkeypatch, (1, 0.5), (2, 2.5))
    memory = Memory()
    fit("bppsa", callbacks=[bl.ChainMonitor(**SOON)], logger=memory, max_epochs=8, max_steps=-1)
    start, end = said()
    assert start.startswith("BPPSA accelerates 1 of 1 recurrent layers: rnn (RNN-tanh)")
    assert end == "BPPSA: backward 3.0x, step 1.8x of stock on this machine (4 steps each)"
    ((_, found),) = [(s, m) for s, m in memory.logged if "speed_up/step" in m]
    assert found == {
        "speed_up/forward": 1.5, "speed_up/backward": 3.0, "speed_up/step": 1.75,
    }  # fmt: skip


def test_a_callback_beside_the_strategy_repeats_nothing(monkeypatch, said):
    measured(monkeypatch, (1, 0.5), (2, 2.5))
    callbacks = [bl.Attach(), bl.ChainMonitor(**SOON)]
    fit("bppsa", callbacks=callbacks, max_epochs=8, max_steps=-1)
    assert len(said()) == 2


def test_under_another_strategy(monkeypatch, said):
    measured(monkeypatch, (1, 0.5), (2, 2.5))
    callbacks = [bl.Attach(), bl.ChainMonitor(**SOON)]
    fit("auto", callbacks=callbacks, max_epochs=8, max_steps=-1)
    assert [line.partition(",")[0] for line in said()] == [
        "BPPSA accelerates 1 of 1 recurrent layers: rnn (RNN-tanh). Details: bl.explain(model)",
        "BPPSA: backward 3.0x",
    ]


def test_a_strategy_that_is_slower_costs_one_warning(monkeypatch, said):
    measured(monkeypatch, (2, 1), (1, 0.5))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fit("bppsa", callbacks=[bl.ChainMonitor(**SOON)], max_epochs=8, max_steps=-1)
    (text,) = [t for w in found if "BPPSA" in (t := str(w.message))]
    assert text == (
        "BPPSA is slower than stock PyTorch here: backward 0.50x, step 0.62x of stock on this "
        'machine (4 steps each). Train with strategy="auto", or measure this machine once with '
        'bl.calibrate(), by which "auto" chooses better. See docs/troubleshooting.md#slower'
    )
    assert len(said()) == 1  # the start


def test_a_training_with_too_little_time_for_it_says_how_to_measure(said):
    fit("bppsa", callbacks=[bl.ChainMonitor()], max_epochs=8, max_steps=13)
    assert said()[1:] == [
        "BPPSA: not timed against stock PyTorch: a few steps of it would have taken more than 1% "
        "of this run. ChainMonitor(stock_share=...) allows more"
    ]


@pytest.mark.parametrize(("wanted", "needed"), [(1, 7), (2, 10), (12, 13)])
def test_a_training_that_is_too_short_says_so(said, wanted, needed):
    """However much time may be spent: as many steps as are needed are enough, one less is not."""
    for steps in (needed - 1, needed):
        monitor = bl.ChainMonitor(stock_steps=wanted, stock_share=1e6)
        fit("bppsa", callbacks=[monitor], max_epochs=8, max_steps=steps)
        assert monitor._stock.has_figures == (steps == needed)
    assert said()[1] == (
        "BPPSA: not timed against stock PyTorch: the training was too short: "
        f"{needed - 1} steps, and {needed} are needed"
    )


@pytest.mark.parametrize("strategy", ["bppsa", "auto"])
def test_nothing_is_said_where_it_is_off_or_nothing_runs(said, strategy):
    monitor = bl.ChainMonitor(stock_steps=0) if strategy == "bppsa" else bl.ChainMonitor(**SOON)
    fit(strategy, callbacks=[monitor], max_epochs=5, max_steps=-1)
    assert len(said()) == (strategy == "bppsa") and not monitor.comparison.steps


def test_what_cannot_be_run_again_is_said_and_costs_nothing(monkeypatch, said):
    def no_memory(*args):
        raise torch.OutOfMemoryError("CUDA out of memory.\nmore")

    monkeypatch.setattr(_stock_steps, "run", no_memory)
    model = fit("bppsa", callbacks=[bl.ChainMonitor(**SOON)], max_epochs=3, max_steps=-1)
    assert model.losses == fit("bppsa", max_epochs=3, max_steps=-1).losses
    line = "BPPSA: not timed against stock PyTorch: OutOfMemoryError: CUDA out of memory."
    assert said().count(line) == 1


def test_an_exception_leaves_the_layers_as_they_were():
    class Breaks(Classifier):
        def on_after_backward(self):
            if self.trainer.callbacks[0]._stock._recording is not None:
                raise ValueError("no")

    model = Breaks()
    bl.attach(model)
    kind = type(model.rnn.forward)
    with pytest.raises(ValueError, match="no"):
        trainer("auto", callbacks=[bl.ChainMonitor(**SOON)], max_epochs=9).fit(model, data())
    assert type(model.rnn.forward) is kind


@pytest.mark.slow
def test_compiled_layers_are_left_alone(said):
    class Compiled(Classifier):
        def __init__(self):
            super().__init__()
            self.run = torch.compile(self.forward, backend="eager")

        def loss(self, batch):
            return nn.functional.cross_entropy(self.run(batch[0]), batch[1])

    with torch._dynamo.config.patch(allow_rnn=True, error_on_recompile=True):
        monitor = bl.ChainMonitor(**SOON)
        fit("bppsa", Compiled, callbacks=[monitor], max_epochs=5, max_steps=-1)
    assert not monitor.comparison.steps and len(said()) == 1


def test_arguments():
    for wrong in ({"stock_steps": -1}, {"stock_share": -0.1}):
        with pytest.raises(ValueError, match="stock_steps, stock_share: found .* wanted no negat"):
            bl.ChainMonitor(**wrong)


# --- the share of the training's time ------------------------------------------------------------


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def perf_counter(self):
        return self.now


@pytest.mark.parametrize("cost", [0.5, 9.0, 40.0])
def test_timing_never_takes_more_than_its_share(monkeypatch, cost):
    """A step takes 1 s, and to time one takes `cost`: a sixteenth is tried first."""
    clock, model = Clock(), Classifier()
    bl.attach(model)
    monkeypatch.setattr(_stock_steps, "time", clock)

    def time(self, seconds, calls):
        if self._cost is None:
            clock.now += cost / 16
            self._cost = cost
            return False
        clock.now += cost
        self.comparison.add(STEP, {})
        return True

    monkeypatch.setattr(StockSteps, "_time", time)
    steps, x = StockSteps(4, 0.1), next(iter(data()))
    stopped = trainer("auto")
    stopped.strategy.connect(model)
    steps.begin()
    shares = []
    while not steps.is_done:
        steps.batch_start(stopped, model, x, 0)
        model.loss(x).backward()
        clock.now += 1
        steps.batch_end(stopped, model, None, x, 0)
        shares.append(steps.spent / clock.now)
        assert len(shares) < 1e5
    assert max(shares) <= 0.1
    assert len(shares) <= 1.1 * (4.1 * cost * 10 + 100)
    assert isinstance(steps.comparison, Comparison) and len(steps.comparison.steps) == 4

"""More features of the Trainer under strategy="bppsa": finders, dry runs, profilers, summaries."""

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.profilers import PyTorchProfiler, SimpleProfiler
from lightning.pytorch.tuner import Tuner
from lightning.pytorch.utilities.model_summary import ModelSummary
from support.helpers import (
    Classifier,
    assert_close,
    data,
    fit,
    is_attached,
    trainer,
    weights,
)
from support.strategy_models import STOCK, assert_same_training, both

pytestmark = pytest.mark.usefixtures("accelerate_everything")


@pytest.mark.parametrize(
    "settings", [{"overfit_batches": 2, "max_epochs": 3}, {"fast_dev_run": 3}], ids=str
)
def test_a_few_batches_or_a_dry_run(settings):
    stock, scanned = both(**settings)
    assert_same_training(stock, scanned)
    assert len(scanned.losses) == {"overfit_batches": 6, "fast_dev_run": 3}[next(iter(settings))]


def test_exponential_moving_averages_of_the_weights():
    found = []
    for strategy in (STOCK, "bppsa"):
        average = EMAWeightAveraging(decay=0.5)
        model = fit(strategy, precision="64-true", max_epochs=2, callbacks=[average])
        found.append(weights(model))  # the averages take their place at the end
        assert not is_attached(model.rnn)
    assert_close(found[1], found[0], 1e-10)
    plain = weights(fit(STOCK, precision="64-true", max_epochs=2))
    assert not torch.equal(plain["rnn.weight_hh_l0"], found[0]["rnn.weight_hh_l0"])


class Sized(pl.LightningDataModule):
    def __init__(self):
        super().__init__()
        self.batch_size = 1

    def train_dataloader(self):
        return data(batch_size=self.batch_size)


@pytest.mark.slow
def test_the_batch_size_finder():
    found = []
    for strategy in (STOCK, "bppsa"):
        torch.manual_seed(0)
        model, batches = Classifier(), Sized()
        train = trainer(strategy, precision="64-true", max_epochs=1)
        found.append(Tuner(train).scale_batch_size(model, batches, max_trials=3, steps_per_trial=2))
        assert not is_attached(model.rnn)
        train.fit(model, batches)
        found.append(model.losses[-2:])
    assert found[0] == found[2] > 1
    assert found[3] == pytest.approx(found[1], rel=1e-10)


def test_the_simple_profiler_sees_the_backward():
    stock, scanned = (SimpleProfiler() for _ in range(2))
    fit(STOCK, profiler=stock)
    fit("bppsa", profiler=scanned)
    names = [
        {name.replace("BPPSAStrategy", "SingleDeviceStrategy") for name in p.recorded_durations}
        for p in (stock, scanned)
    ]
    assert names[0] == names[1]
    assert len(scanned.recorded_durations["[Strategy]BPPSAStrategy.backward"]) == 4


def test_the_scan_has_a_readable_name_in_torchs_profiler(tmp_path):
    profiler = PyTorchProfiler(tmp_path, "trace", schedule=None, record_module_names=False)
    fit("bppsa", profiler=profiler)
    names = {event.name for event in profiler.function_events}
    assert {"bppsa::recurrent", "bppsa::recurrent_backward"} <= names


def test_the_model_summary_is_the_same_in_fit():
    seen = []

    class Summed(Classifier):
        example_input_array = torch.zeros(2, 5, 3)

        def on_train_start(self):
            seen.append(str(ModelSummary(self, max_depth=2)))

    for strategy in (STOCK, "bppsa"):
        fit(strategy, Summed)
    assert seen[0] == seen[1] and "GRU" not in seen[0] and "RNN" in seen[0]
    assert "Total Flops" in seen[0]


def test_two_trainers_in_turns_share_a_strategy():
    import bppsa_lightning as bl

    strategy = bl.BPPSAStrategy("linear")
    stock = fit(STOCK, precision="64-true", max_epochs=2)
    torch.manual_seed(0)
    first = Classifier()
    trainer(strategy, precision="64-true", max_epochs=2).fit(first, data())
    torch.manual_seed(0)
    second = Classifier()
    trainer(strategy, precision="64-true", max_epochs=2).fit(second, data())
    for model in (first, second):
        assert_same_training(stock, model)
    assert "1 of 1 recurrent" in strategy.explanation

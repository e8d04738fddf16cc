"""bl.Attach: scanned for a run of the Trainer, under whatever strategy, and no longer."""

import pytest
import torch
from support import forked
from support.helpers import Classifier, data, fit, is_attached, stock_training, trainer
from support.strategy_models import STOCK, assert_same_training

import bppsa_lightning as bl


class Attachment(Classifier):
    """Notes whether the chain is attached."""

    def training_step(self, batch, batch_idx):
        assert is_attached(self.rnn)
        return super().training_step(batch, batch_idx)

    def test_step(self, batch, batch_idx):
        assert is_attached(self.rnn)

    validation_step = predict_step = test_step


def test_the_training_is_that_of_the_strategy_alone():
    attach = bl.Attach("chunked")
    model = fit(STOCK, Attachment, precision="64-true", callbacks=[attach], max_epochs=2)
    assert_same_training(stock_training(precision="64-true", max_epochs=2), model)
    assert not is_attached(model.rnn) and attach.chains == []
    assert "chunked" in attach.explanation and "1 of 1 recurrent" in attach.explanation


@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_evaluation_alone(stage):
    attach, model = bl.Attach("chunked"), Attachment()
    getattr(trainer(STOCK, callbacks=[attach]), stage)(model, data())
    assert not is_attached(model.rnn) and attach.chains == []
    assert "1 of 1 recurrent" in attach.explanation


def test_what_was_attached_before_stays():
    torch.manual_seed(0)
    model = Classifier()
    [chain] = bl.attach(model, "linear")
    trainer("bppsa", callbacks=[bl.Attach("chunked")]).fit(model, data())
    assert chain.algorithm == "linear" and model.rnn.forward is chain


def test_an_exception_detaches():
    class Fails(Attachment):
        def on_train_batch_end(self, *args):
            raise RuntimeError("stop here")

    model, attach = Fails(), bl.Attach()
    with pytest.raises(RuntimeError, match="stop here"):
        trainer(STOCK, callbacks=[attach]).fit(model, data())
    assert not is_attached(model.rnn) and attach.chains == []


def test_an_unknown_algorithm_is_refused_at_once():
    with pytest.raises(ValueError, match="algorithm: found 'fast', wanted one of auto"):
        bl.Attach("fast")


@pytest.mark.slow
def test_beside_sharded_parameters_of_two_processes(tmp_path):
    script = forked.TESTS / "support" / "sharded_training.py"
    forked.run(tmp_path, script, tmp_path, ranks=2)
    for rank in (0, 1):
        left = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert left["sharded"] == "FSDPGRU" and len(left["losses"]) == 8
        assert left["losses"] == pytest.approx(left["stock"], rel=1e-5)
        assert left["calls"] == [(8, 0)] and not left["attached"]
        assert "1 of 1 recurrent layers accelerated" in left["explanation"]
        assert left["tested"][1] == pytest.approx(left["tested"][0], rel=1e-5)
        assert "1 of 1 recurrent layers accelerated" in left["explanation_of_test"]

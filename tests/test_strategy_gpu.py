"""The strategy on a CUDA device."""

import pytest
import torch
from support.cases import needs_gpu
from support.helpers import (
    Classifier,
    data,
    fit,
    is_attached,
    trainer,
)
from support.strategy_models import STOCK, assert_same_training

import bppsa_lightning as bl


class OnGPU(Classifier):
    """Checks where its parameters and batches are."""

    def training_step(self, batch, batch_idx):
        assert {p.device.type for p in self.parameters()} == {"cuda"}
        assert {t.device.type for t in batch} == {"cuda"}
        return super().training_step(batch, batch_idx)

    def on_after_backward(self):
        super().on_after_backward()
        assert all(p.grad.device.type == "cuda" for p in self.parameters())


@pytest.mark.parametrize(
    "strategy",
    [pytest.param(how, marks=needs_gpu) for how in ("bppsa", "instance", "device")],
)
@pytest.mark.usefixtures("accelerate_everything")
def test_on_a_gpu(strategy):
    made = {
        "instance": lambda: bl.BPPSAStrategy(algorithm="chunked"),
        "device": lambda: bl.BPPSAStrategy(device="cuda:0"),
    }
    found = fit(made.get(strategy, lambda: strategy)(), OnGPU, accelerator="cuda", max_steps=20)
    assert found.trainer.strategy.root_device == torch.device("cuda", 0)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        stock = fit(STOCK, OnGPU, accelerator="cuda", max_steps=20)
    assert_same_training(stock, found, 1e-3)
    assert not is_attached(found.rnn)


@pytest.mark.parametrize(
    "precision", [pytest.param(p, marks=needs_gpu) for p in ("16-mixed", "bf16-mixed")]
)
@pytest.mark.usefixtures("accelerate_everything")
def test_mixed_precision_on_a_gpu(precision):
    settings = {"accelerator": "cuda", "precision": precision, "max_steps": 60}
    stock, found = fit(STOCK, OnGPU, **settings), fit("bppsa", OnGPU, **settings)
    assert found.losses == pytest.approx(stock.losses, rel=0.05)
    assert sum(found.losses[-4:]) < 0.9 * sum(found.losses[:4])


@pytest.mark.parametrize("stage", [pytest.param(s, marks=needs_gpu) for s in ("test", "predict")])
@pytest.mark.usefixtures("accelerate_everything")
def test_evaluation_alone_on_a_gpu(stage):
    class Evaluated(OnGPU):
        def predict_step(self, batch, batch_idx):
            assert is_attached(self.rnn) == isinstance(self.trainer.strategy, bl.BPPSAStrategy)
            return self(batch[0]).cpu()

        def test_step(self, batch, batch_idx):
            self.log("mean", self.predict_step(batch, batch_idx).mean())

    found = []
    for strategy in (STOCK, "bppsa"):
        torch.manual_seed(0)
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            found.append(getattr(trainer(strategy, accelerator="cuda"), stage)(Evaluated(), data()))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)

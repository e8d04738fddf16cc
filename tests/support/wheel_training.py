"""What an installed wheel does with nothing beside it but torch and Lightning: operators, and a
training that is as one by PyTorch.

    python wheel_training.py [FOLDER]   # of the environment that the package has to be in

The release runs it with every wheel; so do the tests.
"""

import sys
import tempfile
import warnings
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything

import bppsa_lightning as bl
from bppsa_lightning.datasets import BitstreamDataModule


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.RNN(1, 20, batch_first=True)
        self.head = torch.nn.Linear(20, 10)
        self.losses = []

    def training_step(self, batch):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.head(self.rnn(x)[0][:, -1]), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def losses(strategy, folder):
    seed_everything(0, verbose=False)
    model = Model()
    trainer = Trainer(
        strategy=strategy,
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    data = BitstreamDataModule(folder, steps=300, batch_size=16, num_samples=320)
    trainer.fit(model, datamodule=data)
    return model.losses, trainer.strategy


def main(environment=None):
    where = Path(bl.__file__).resolve()
    assert environment is None or where.is_relative_to(Path(environment).resolve()), where
    jac_t, grad = torch.randn(6, 2, 3, 3), torch.randn(7, 2, 3)
    for algorithm in ("linear", "chunked", "blelloch"):
        found = bl.ops.reverse_scan(jac_t, grad, algorithm)
        torch.testing.assert_close(found, bl.reference.reverse_scan(jac_t, grad))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, strategy = losses(bl.BPPSAStrategy(algorithm="linear"), folder)
        theirs, _ = losses("auto", folder)
    assert len(ours) == 40 and sum(ours[20:]) < sum(ours[:20]), ours
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=1e-4, atol=1e-5)
    assert strategy.scans, "no backward pass was scanned"
    kernels, version = bl.ops.cpu_capability(), bl.__version__
    print(f"trained with bppsa_lightning {version}, {kernels} kernels, torch {torch.__version__}")


if __name__ == "__main__":
    main(*sys.argv[1:])

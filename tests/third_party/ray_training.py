"""Ray Train's RayDDPStrategy on two workers of this machine, with `bl.Attach` and without.

    python -m tests.third_party.ray_training

Fails unless the losses of both are the same and the layer was scanned in each worker.
"""

import sys
import tempfile

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train(config):
    import lightning.pytorch as pl
    import ray.train.lightning as ray_lightning
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    import bppsa_lightning as bl

    class Classifier(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 6, batch_first=True)
            self.head = nn.Linear(6, 3)
            self.losses = []

        def training_step(self, batch, batch_idx):
            x, y = batch
            loss = nn.functional.cross_entropy(self.head(self.rnn(x)[0].mean(1)), y)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 0.01)

    torch.set_num_threads(1)
    losses, attach = [], bl.Attach("linear")
    for callbacks in ([], [attach]):
        torch.manual_seed(0)
        model = Classifier()
        data = TensorDataset(torch.randn(64, 20, 3), torch.randint(3, (64,)))
        trainer = pl.Trainer(
            strategy=ray_lightning.RayDDPStrategy(), callbacks=callbacks, max_epochs=2,
            plugins=[ray_lightning.RayLightningEnvironment()], accelerator="cpu", devices="auto",
            logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False,
        )  # fmt: skip
        ray_lightning.prepare_trainer(trainer).fit(model, DataLoader(data, 8))
        assert trainer.world_size == 2
        losses.append(model.losses)
    assert len(losses[0]) == 8
    assert max(abs(a - b) for a, b in zip(*losses, strict=True)) < 1e-5, losses
    assert "linear" in attach.explanation and "1 of 1" in attach.explanation
    assert "forward" not in model.rnn.__dict__


def main():
    ray.init(num_cpus=3, include_dashboard=False)
    with tempfile.TemporaryDirectory() as folder:
        TorchTrainer(
            train,
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=folder),
        ).fit()
    print("two workers of Ray Train: the same losses, scanned in each")
    sys.exit(0)


if __name__ == "__main__":
    main()

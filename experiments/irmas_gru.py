"""The paper's GRU on IRMAS (arXiv:1907.10134, section 4.2): which instrument plays?

A GRU of 20 states reads the MFCCs of three seconds of music frame by frame, and names one of eleven
instruments. A LightningCLI application; its defaults stand in irmas_gru.yaml beside it: a corpus
like IRMAS, rendered from a soundfont at first use, as IRMAS is not at hand without a network.

Features, GRU and batch are the paper's. Its program reads out the last state and trains for 400
epochs of all 6,705 excerpts by Adam at 3e-4. Each coefficient is scaled over its excerpt, so the
colour of a sound is not in a frame but in how coefficients move together, all through the excerpt; the
last state knows the last notes. Ours therefore reads out the mean of all states, and learns in 30
epochs: a learning rate of 1e-2 that falls to 0, and three things against learning the excerpts by
heart: weight decay, noise on the features, and channels that change places. `--model.readout last
--model.lr 3e-4 --model.weight_decay 0 --model.noise 0 --model.swap_channels false --model.anneal
false` are the paper's.

    python experiments/irmas_gru.py fit
    python experiments/irmas_gru.py fit --data.features L --data.batch_size 64
    python experiments/irmas_gru.py fit --data bppsa_lightning.datasets.IRMASDataModule \\
      --data.download true                                                  # IRMAS, 3 GB
    python experiments/irmas_gru.py fit --trainer.strategy auto             # stock PyTorch
    python experiments/compare.py irmas_gru                                 # both
    python experiments/irmas_curves.py                                      # both, of S, M and L
"""

from typing import Any, Literal

import application
import lightning.pytorch as pl
import torch
from classifier import Classifier
from torch import Tensor, nn


class IRMASGRU(Classifier):
    """A one-layer GRU and a linear read-out of its states.

    Nothing in it knows of the scan: the strategy is the Trainer's business.

    Args:
        input_size: features of a frame, of two channels side by side; on the command line, those of
            the data.
        hidden_size: state size H.
        num_classes: instruments.
        readout: what is read out: "mean" of all states, or the "last" one, as in the paper.
        lr: learning rate of AdamW at the start.
        weight_decay: AdamW's (0: Adam).
        anneal: whether the rate falls to 0 over `max_epochs` along a cosine, epoch by epoch.
        noise: standard deviation of the noise added to features (of variance 1) in training.
        swap_channels: whether half of the excerpts change left and right in training.

    Raises:
        ValueError: `readout` is another word.
    """

    def __init__(
        self,
        input_size: int = 38,
        hidden_size: int = 20,
        num_classes: int = 11,
        readout: Literal["mean", "last"] = "mean",
        lr: float = 1e-2,
        weight_decay: float = 0.1,
        anneal: bool = True,
        noise: float = 0.3,
        swap_channels: bool = True,
    ) -> None:
        super().__init__()
        if readout not in ("mean", "last"):
            raise ValueError(f"readout: found {readout!r}, wanted 'mean' or 'last'")
        self.save_hyperparameters()
        self.gru = nn.GRU(input_size, hidden_size, batch_first=True)
        self.classify = nn.Linear(hidden_size, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, num_classes) of features x (B, T, input_size)."""
        states, last = self.gru(x)
        return self.classify(states.mean(1) if self.hparams["readout"] == "mean" else last[0])

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return super().training_step((self.vary(x), y), batch_idx)

    def vary(self, x: Tensor) -> Tensor:
        """Features x (B, T, input_size) as training sees them: other noise, other channels."""
        if self.hparams["swap_channels"]:
            swapped = torch.rand(len(x), 1, 1, device=x.device) < 0.5
            x = torch.where(swapped, x.roll(x.shape[-1] // 2, dims=-1), x)
        if self.hparams["noise"]:
            x = x + self.hparams["noise"] * torch.randn_like(x)
        return x

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(
            self.parameters(), lr=self.hparams["lr"], weight_decay=self.hparams["weight_decay"]
        )
        if not self.hparams["anneal"] or not self._trainer or self.trainer.max_epochs in (None, -1):
            return optimizer
        # By epochs and not by steps: a run that --trainer.max_steps ends early takes the same steps.
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)
        return [optimizer], [cosine]


if __name__ == "__main__":
    application.run(
        IRMASGRU,
        pl.LightningDataModule,
        __file__,
        subclass_mode_data=True,
        links={"num_features": "input_size"},
    )

"""The paper's GRU on IRMAS (arXiv:1907.10134, section 4.2): which instrument plays?

A GRU of 20 states reads the MFCCs of three seconds of music frame by frame, and names one of
eleven instruments. A LightningCLI application; its defaults stand in irmas_gru.yaml beside it: a
corpus like IRMAS, rendered from a soundfont at first use, as IRMAS is not at hand without a
network.

Features, GRU and batch are the paper's. Its program reads out the last state, and trains for 400
epochs of all 6,705 excerpts, by Adam at 3e-4. As each coefficient is scaled over its excerpt, the
colour of a sound is not in a frame but in how coefficients move together, all through the excerpt;
the last state knows the last notes. Ours therefore reads out the mean of all states, and learns in
30 epochs: by AdamW, at a rate of 1e-2 that falls to 0, with three things against learning the
excerpts by heart: weight decay, noise on the features, and channels that change places. The rate
rises over the first 990 steps: at 1e-2 from the start training is chaotic, and two float32 runs
part (losses differ by 1e-3 after 200 steps, by 0.2 after 400). The paper's are `--model.readout
last --model.lr 3e-4 --model.weight_decay 0 --model.noise 0 --model.swap_channels false
--model.anneal false`.

    python -m experiments.train.irmas_gru fit
    python -m experiments.train.irmas_gru fit --data.features L --data.batch_size 64
    python -m experiments.train.irmas_gru fit --data bppsa_lightning.datasets.IRMASDataModule \\
      --data.data_dir data/irmas --data.download true                       # IRMAS, 3 GB
    python -m experiments.train.irmas_gru fit --trainer.strategy auto       # stock PyTorch
    python -m experiments.compare irmas_gru                                 # both
    python -m experiments.paper.irmas_curves                                # both, of S, M and L
"""

import math
from collections.abc import Callable
from typing import Any, Literal

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from experiments.train import cli
from experiments.train.classifier import Classifier


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
        anneal: whether the rate rises for `warm_up_steps` and falls to 0, along a cosine, over the
            Trainer's `max_epochs`.
        warm_up_steps: over which the rate rises; at most half of all.
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
        warm_up_steps: int = 990,
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

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """The batch, varied in training."""
        if self._trainer is None or not self.trainer.training:
            return batch
        x, y = batch
        return self.vary(x), y

    def vary(self, x: Tensor) -> Tensor:
        """Features x (B, T, input_size) as training sees them: other noise, other channels."""
        if self.hparams["swap_channels"]:
            swapped = torch.rand(len(x), 1, 1, device=x.device) < 0.5
            x = torch.where(swapped, x.roll(x.shape[-1] // 2, dims=-1), x)
        if self.hparams["noise"]:
            x = torch.add(x, torch.randn_like(x), alpha=self.hparams["noise"])
        return x

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(
            self.parameters(), lr=self.hparams["lr"], weight_decay=self.hparams["weight_decay"]
        )
        if not self.hparams["anneal"] or self._trainer is None:
            return optimizer
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._rate())
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def _rate(self) -> Callable[[int], float]:
        """The share of `lr` at each step.

        It depends on `max_epochs` and not on `max_steps`: a run that the latter ends early takes
        the same steps.
        """
        epochs = self.trainer.max_epochs
        if epochs is None or epochs < 1:
            raise ValueError(f"max_epochs: found {epochs}, wanted 1 or more; or anneal=False")
        self.trainer.fit_loop.setup_data()  # for the number of batches
        steps = epochs * self.trainer.num_training_batches
        warm = min(self.hparams["warm_up_steps"], steps / 2)

        def rate(step: int) -> float:
            rising = min(1.0, (step + 1) / warm) if warm else 1.0
            return rising * (1 + math.cos(math.pi * min(1.0, step / steps))) / 2

        return rate


def main(arguments: list[str] | None = None) -> None:
    cli.run(
        IRMASGRU,
        pl.LightningDataModule,
        "irmas_gru",
        arguments,
        links={"num_features": "input_size"},
        subclass_mode_data=True,
    )


if __name__ == "__main__":
    main()

"""What the experiments' models share: training, validation and test of a classifier."""

import lightning.pytorch as pl
from torch import Tensor
from torch.nn import functional as F


class Classifier(pl.LightningModule):
    """Cross entropy on the logits of `forward`; logs "<stage>/loss" and "<stage>/accuracy".

    A subclass gives `forward` (from x to logits (B, classes)) and `configure_optimizers`. Batches
    are (x, y), y (B,) int64 the classes. Stages are train, val and test.
    """

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self._loss(batch, "train")

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._loss(batch, "val")

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._loss(batch, "test")

    def _loss(self, batch: tuple[Tensor, Tensor], stage: str) -> Tensor:
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        accuracy = (logits.argmax(-1) == y).float().mean()
        self.log(f"{stage}/loss", loss, prog_bar=stage == "train", batch_size=len(y))
        self.log(f"{stage}/accuracy", accuracy, prog_bar=stage == "val", batch_size=len(y))
        return loss

"""The paper's GRU on IRMAS (arXiv:1907.10134, section 4.2): which instrument plays?

A GRU of 20 states reads the MFCCs of three seconds of music frame by frame, and names one of eleven
instruments from its last state. A LightningCLI application; its defaults stand in irmas_gru.yaml
beside it: a corpus like IRMAS, rendered from a soundfont at first use, as IRMAS is not at hand
without a network.

    python experiments/irmas_gru.py fit
    python experiments/irmas_gru.py fit --data.features L --data.batch_size 64
    python experiments/irmas_gru.py fit --data bppsa_lightning.datasets.IRMASDataModule \\
      --data.download true                                                  # IRMAS, 3 GB
    python experiments/irmas_gru.py fit --trainer.strategy auto             # stock PyTorch
    python experiments/compare.py irmas_gru                                 # both
"""

import application
import lightning.pytorch as pl
import torch
from classifier import Classifier
from torch import Tensor, nn


class IRMASGRU(Classifier):
    """A one-layer GRU and a linear read-out of its last state.

    Nothing in it knows of the scan: the strategy is the Trainer's business.

    Args:
        input_size: features of a frame; on the command line, those of the data.
        hidden_size: state size H.
        num_classes: instruments.
        lr: learning rate of Adam.
    """

    def __init__(
        self,
        input_size: int = 38,
        hidden_size: int = 20,
        num_classes: int = 11,
        lr: float = 3e-4,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.gru = nn.GRU(input_size, hidden_size, batch_first=True)
        self.classify = nn.Linear(hidden_size, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, num_classes) of features x (B, T, input_size)."""
        _, last = self.gru(x)
        return self.classify(last[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


if __name__ == "__main__":
    application.run(
        IRMASGRU,
        pl.LightningDataModule,
        __file__,
        subclass_mode_data=True,
        links={"num_features": "input_size"},
    )

"""The paper's bitstream task (arXiv:1907.10134, section 4.1): which coin made this bit stream?

A vanilla RNN reads T bits, x_t ~ Bernoulli(0.05 + 0.1 p), and tells the class p from its last
state. A LightningCLI application; its defaults stand in bitstream_rnn.yaml beside it:

    python -m experiments.train.bitstream_rnn fit
    python -m experiments.train.bitstream_rnn fit --trainer.strategy auto      # stock PyTorch
    python -m experiments.train.bitstream_rnn fit --ckpt_path last             # resume
    python -m experiments.train.bitstream_rnn validate --ckpt_path last
    python -m experiments.train.bitstream_rnn fit --help
"""

import torch
from torch import Tensor, nn

from bppsa_lightning.datasets import BitstreamDataModule
from experiments.train import cli
from experiments.train.classifier import Classifier


class BitstreamRNN(Classifier):
    """A one-layer RNN and a linear read-out of its last state.

    Nothing in it knows of the scan: the strategy is the Trainer's business.

    Args:
        hidden_size: state size H.
        num_classes: classes p.
        nonlinearity: "tanh" or "relu".
        lr: learning rate of Adam.
    """

    def __init__(
        self,
        hidden_size: int = 20,
        num_classes: int = 10,
        nonlinearity: str = "tanh",
        lr: float = 1e-5,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.lr = lr
        self.rnn = nn.RNN(1, hidden_size, nonlinearity=nonlinearity, batch_first=True)
        self.classify = nn.Linear(hidden_size, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, num_classes) of bit streams x (B, T, 1)."""
        _, last = self.rnn(x)
        return self.classify(last[0])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def main(arguments: list[str] | None = None) -> None:
    cli.run(BitstreamRNN, BitstreamDataModule, "bitstream_rnn", arguments)


if __name__ == "__main__":
    main()

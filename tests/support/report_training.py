"""Two processes train with a report and without, for test_run_report.py.

    python report_training.py FOLDER

Writes FOLDER/<with or without>_<rank>.pt, and FOLDER/report with the report.
"""

import sys
from pathlib import Path

import lightning.pytorch as pl
import torch

import bppsa_lightning as bl
from support.helpers import Classifier, data, trainer, weights


class Leaves(pl.Callback):
    def __init__(self, path: str) -> None:
        self.path = path

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        torch.save(weights(pl_module), f"{self.path}_{trainer.global_rank}.pt")


def main(folder: Path) -> None:
    for name in ("with", "without"):
        callbacks: list[pl.Callback] = [Leaves(str(folder / name))]
        if name == "with":
            callbacks.append(bl.RunReport(folder / "report", stock_steps=3, stock_share=1e6))
        torch.manual_seed(0)
        model = Classifier()
        trainer("bppsa_ddp_fork", devices=2, callbacks=callbacks, max_epochs=2).fit(
            model, data(samples=96)
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))

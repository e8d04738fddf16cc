"""Tags three seconds of music with the instrument that plays, as on IRMAS.

    python -m experiments.examples.audio_tagging    # 1 min; at first 2: music is rendered

A GRU reads MFCCs frame by frame (T 259), and names one of eleven instruments by the mean of its
states. The clips are rendered from a soundfont, since IRMAS itself is a download of 3 GB: for that,
put IRMASDataModule("data/irmas", download=True) in the place of the data module below.

The picture: the losses over time, which instruments are taken for which, and what a step takes.
"""

import argparse
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from bppsa_lightning.datasets import RenderedIRMASDataModule
from bppsa_lightning.datasets.irmas_layout import INSTRUMENTS
from experiments.examples import side_by_side
from experiments.examples.side_by_side import Run, Watch

BATCH, HIDDEN = 16, 32


class Tagger(pl.LightningModule):
    """From MFCCs (B, T, F) to a score for each instrument."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.gru = nn.GRU(features, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, len(INSTRUMENTS))

    def forward(self, x: Tensor) -> Tensor:
        """Scores (B, 11)."""
        states, _ = self.gru(x)
        return self.head(states.mean(1))

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        x, instrument = batch
        # Few clips are learned by heart; with noise they are others each time.
        return cross_entropy(self(x + 0.3 * torch.randn_like(x)), instrument)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3, weight_decay=0.1)


def train(data: RenderedIRMASDataModule, strategy: str, epochs: int) -> Run:
    """This is what one copies: the model and the data are as ever."""
    torch.manual_seed(0)
    model, watch = Tagger(data.num_features), Watch()
    trainer = pl.Trainer(
        strategy=strategy, max_epochs=epochs, gradient_clip_val=1.0, callbacks=watch.callbacks,
        **side_by_side.QUIET,
    )  # fmt: skip
    trainer.fit(model, train_dataloaders=data.train_dataloader())
    return watch.run(model)


def confusion(model: Tagger, data: RenderedIRMASDataModule) -> Tensor:
    """Counts (11, 11) of the clips that no training has seen: which plays, which is named."""
    counts = torch.zeros(len(INSTRUMENTS), len(INSTRUMENTS), dtype=torch.int64)
    with torch.no_grad():
        for x, instrument in data.val_dataloader():
            for truth, named in zip(instrument, model(x).argmax(-1), strict=True):
                counts[truth, named] += 1
    return counts


def draw(record: dict[str, Any], path: Path) -> None:
    title = "Which instrument plays? A GRU over three seconds"
    with side_by_side.picture(3, title, record, path) as axes:
        side_by_side.draw_losses(axes[0], record, smooth=max(1, record["steps"] // 40))
        draw_confusion(axes[1], torch.tensor(record["confusion"]))
        side_by_side.draw_step(axes[2], record)


def draw_confusion(axes: Any, counts: Tensor) -> None:
    """Which instruments are taken for which."""
    axes.imshow(counts.numpy(), cmap="Blues")
    for truth, named in counts.nonzero().tolist():
        dark = counts[truth, named] > counts.max() / 2
        colour = "white" if dark else "black"
        axes.text(named, truth, int(counts[truth, named]), ha="center", va="center", color=colour)
    axes.set_xticks(range(len(INSTRUMENTS)), INSTRUMENTS, rotation=90)
    axes.set_yticks(range(len(INSTRUMENTS)), INSTRUMENTS)
    right, clips = int(counts.diagonal().sum()), int(counts.sum())
    axes.set(xlabel="named", ylabel="plays", title=f"{right} of {clips} new clips right")


def parser() -> argparse.ArgumentParser:
    parser = side_by_side.parser(__doc__)
    parser.add_argument("--data", type=Path, help="folder of the clips; rendered if not there")
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    each, epochs, rounds = (6, 3, 1) if asked.quick else (15, 30, 2)
    data = RenderedIRMASDataModule(
        asked.data or f"data/irmas_example_{each}", per_class=each, batch_size=BATCH,
        val_split=0.34, test_split=0.0,
    )  # fmt: skip
    data.prepare_data()
    data.setup("fit")
    with side_by_side.quiet():
        runs = side_by_side.in_turns(lambda strategy: train(data, strategy, epochs), rounds)
    counts = confusion(runs["bppsa"][-1].model, data)
    found = side_by_side.summary(runs)
    right = float(counts.diagonal().sum() / counts.sum())
    steps = len(found["stock"]["losses"])
    print(f"{steps} steps of {BATCH} clips\n\n{side_by_side.table(found)}")
    print(f"{right:.0%} of {int(counts.sum())} new clips right; by chance {1 / len(counts):.0%}")
    told = {"steps": steps, "clips": int(counts.sum()), "right": right}
    side_by_side.keep("audio_tagging", {**told, "confusion": counts.tolist(), **found}, draw, asked)


if __name__ == "__main__":
    main()

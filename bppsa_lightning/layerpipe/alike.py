"""Whether the stages read the same mini-batches.

The first takes the inputs, the last one the targets.
"""

from __future__ import annotations

from typing import Any

import torch

from bppsa_lightning._same_batches import is_same_sample, sample_of
from bppsa_lightning.layerpipe.links import Links


def check_alike(links: Links, stage: int, stages: int, device: torch.device, batch: Any) -> None:
    """Compares a sample of a mini-batch in the first stage with that in the last one.

    Nobody waits for it: the last stage waits for what is made of that mini-batch anyhow.

    Args:
        links: of this process.
        stage: of this process.
        stages: how many there are.
        device: of this process.
        batch: which it has read, before any step has changed it.

    Raises:
        RuntimeError: in the last stage, if they differ.
    """
    first, last = 0, stages - 1
    if stage == first:
        links.channel("F", last).send(sample_of(batch).to(device))
    elif stage == last:
        theirs = links.channel("F", first).receive().cpu()
        if not is_same_sample(sample_of(batch), theirs):
            raise RuntimeError(
                "the processes read different batches, so that the inputs of some samples would "
                "meet the targets of others: seed before data is made or split "
                "(seed_everything). Loaders, on_before_batch_transfer and on_after_batch_transfer "
                "draw the same everywhere; on_train_batch_start does not"
            )

"""Splits by recording: excerpts of one recording sound alike, so they belong to one split."""

from collections.abc import Mapping, Sequence

import numpy as np


def split_by_recording(
    recordings: Sequence[str], labels: Sequence[int], shares: Mapping[str, float], seed: int
) -> dict[str, list[int]]:
    """Deals recordings to splits such that each label has its share of excerpts in each split.

    Recordings come in an order drawn from the seed, label after label; each goes to the split that
    is furthest behind its shares of the recording's labels and of all excerpts (a greedy form of
    iterative stratification: Sechidis, Tsoumakas, Vlahavas, ECML PKDD 2011). The same recordings,
    labels and seed give the same splits on every machine.

    Args:
        recordings: the recording of each excerpt.
        labels: the label of each excerpt.
        shares: the share of each split; together 1.
        seed: of the order.

    Returns:
        The indices of each split's excerpts, ascending.
    """
    members: dict[str, list[int]] = {}
    for index, recording in enumerate(recordings):
        members.setdefault(recording, []).append(index)
    share = np.array(list(shares.values()))
    counts = np.zeros((len(share), max(labels, default=0) + 2))  # of labels; last, of all
    splits: dict[str, list[int]] = {name: [] for name in shares}
    for recording in _order(members, labels, seed):
        indices = members[recording]
        extra = np.bincount([labels[i] for i in indices], minlength=counts.shape[1])
        extra[-1] = len(indices)
        behind = share[:, None] * (counts.sum(axis=0) + extra) - counts
        chosen = int(np.argmax(behind @ extra))
        counts[chosen] += extra
        splits[list(shares)[chosen]] += indices
    return {name: sorted(indices) for name, indices in splits.items()}


def _order(members: Mapping[str, list[int]], labels: Sequence[int], seed: int) -> list[str]:
    names = sorted(members)
    # NumPy keeps the raw output of this generator the same in every version, and of no shuffle.
    draws = np.random.PCG64(seed).random_raw(len(names))
    return [
        name
        for _, _, name in sorted(
            (labels[members[name][0]], draw, name) for name, draw in zip(names, draws, strict=True)
        )
    ]

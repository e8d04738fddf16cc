"""The splits of IRMAS: by recording, stratified, from the seed alone."""

from collections import Counter

import numpy as np
import pytest
from support.irmas_data import write_fake

from bppsa_lightning.datasets import IRMASDataModule
from bppsa_lightning.datasets.irmas_split import split_by_recording

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


# The splits
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("recordings", [4, 10, 57])
def test_no_recording_is_in_two_splits_and_each_label_has_its_share(seed, recordings):
    generator = np.random.default_rng(seed)
    names, labels = [], []
    for label in range(11):
        for recording in range(recordings):
            # Some recordings have two labels, as some of IRMAS have.
            number = label * recordings + recording - int(generator.random() < 0.02)
            names += [str(number)] * int(generator.integers(1, 4))
            labels += [label] * (len(names) - len(labels))
    shares = {"train": 0.8, "val": 0.1, "test": 0.1}
    splits = split_by_recording(names, labels, shares, seed)
    assert sorted(sum(splits.values(), [])) == list(range(len(names)))
    found = {name: {names[i] for i in indices} for name, indices in splits.items()}
    assert not found["train"] & found["val"] | found["train"] & found["test"]
    assert not found["val"] & found["test"]
    total = Counter(labels)
    for name, indices in splits.items():
        counts = Counter(labels[i] for i in indices)
        for label in range(11):
            assert abs(counts[label] - shares[name] * total[label]) <= 4  # a recording, and a bit
        assert abs(len(indices) - shares[name] * len(names)) <= 6


def test_splits_follow_the_seed_alone():
    names = [f"{i // 3:04d}" for i in range(300)]
    labels = [i // 30 for i in range(300)]
    shares = {"train": 0.8, "val": 0.1, "test": 0.1}
    first = split_by_recording(names, labels, shares, 0)
    assert first == split_by_recording(names, labels, shares, 0)
    assert first != split_by_recording(names, labels, shares, 1)
    assert {name: len(part) for name, part in first.items()} == {
        "train": 240,
        "val": 30,
        "test": 30,
    }
    order = np.random.default_rng(0).permutation(300)
    shuffled = split_by_recording([names[i] for i in order], [labels[i] for i in order], shares, 0)
    for name in shares:
        assert {names[order[i]] for i in shuffled[name]} == {names[i] for i in first[name]}


@pytest.mark.parametrize(
    "name, recording",
    [
        ("[cel][cla]0001__1.wav", "0001"),
        ("008__[cel][nod][cla]0058__3.wav", "0058"),
        ("109__[sax][dru][pop_roc]0850__12.WAV", "0850"),
        ("song.wav", "cel/song.wav"),
        ("0058__.wav", "cel/0058__.wav"),
    ],
)
def test_the_recording_is_in_the_name(tmp_path, fake, name, recording):
    write_fake(tmp_path / "cel" / name, 0)
    data = IRMASDataModule(tmp_path, val_split=0, test_split=0)
    data.setup()
    (excerpt,) = data._datasets["train"].excerpts
    assert excerpt.recording == recording

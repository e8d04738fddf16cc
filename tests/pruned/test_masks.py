"""Masks that leave nothing, and masks that change: what is said, once, and what is computed."""

import warnings

import pytest
import torch
from support.pruned_networks import image, results, twins
from torch import nn
from torch.nn.utils import prune

import bppsa_lightning as bl
from bppsa_lightning.pruned import masks
from bppsa_lightning.pruned.compact import CompactWeight

pytestmark = pytest.mark.usefixtures("every_layer_is_sparse")


@pytest.fixture
def all_warnings():
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield lambda: [str(w.message) for w in said if "docs/troubleshooting" in str(w.message)]


def globally_pruned():
    """The smallest weights of the whole network are all of one layer's."""
    model = nn.Sequential(nn.Linear(4, 50), nn.ReLU(), nn.Linear(50, 2))
    with torch.no_grad():
        model[0].weight.mul_(1e-3)
    pairs = [(model[0], "weight"), (model[2], "weight")]
    prune.global_unstructured(pairs, prune.L1Unstructured, amount=0.9)
    return model


def test_a_layer_that_was_emptied_is_named_once(all_warnings):
    model = globally_pruned()
    assert not model[0].weight_mask.any() and model[2].weight_mask.any()
    for _ in range(2):
        bl.attach(model)
        model(torch.randn(8, 4)).sum().backward()
        bl.detach(model)
    (said,) = all_warnings()
    assert said.startswith("Pruning has left no weight of 0 (Linear)")
    assert "use_global_unstructured=False" in said and said.endswith("#emptied")
    other = globally_pruned()
    bl.attach(other)
    assert len(all_warnings()) == 2


def test_layers_with_weights_left_are_not_named(all_warnings):
    twins()
    assert all_warnings() == []


def test_a_mask_that_is_emptied_later_is_named(all_warnings):
    _, ours = twins()
    ours[0].weight_mask.zero_()
    results(ours, image())
    assert [text.partition(":")[0] for text in all_warnings()] == [
        "Pruning has left no weight of 0 (Conv2d)"
    ]


def test_a_change_that_nobody_counts_is_seen_in_time(all_warnings, monkeypatch):
    monkeypatch.setattr(masks, "LOOKS", 2)
    stock, ours = twins()
    results(ours, image())
    for model in (stock, ours):
        model[0].weight_mask.data[:2] = 0
    before = results(ours, image())["output"]
    assert not torch.equal(before, results(stock, image())["output"])
    assert torch.allclose(results(ours, image())["output"], results(stock, image())["output"])
    (said,) = all_warnings()
    assert said.startswith("The mask of 0 was changed where nobody could see it")
    assert "weight_mask.copy_(...)" in said


def test_a_mask_that_changes_in_every_step_is_named(all_warnings):
    _, ours = twins()
    for i in range(12):
        ours[0].weight_mask.fill_(1).view(-1)[i] = 0
        results(ours, image())
    (said,) = all_warnings()
    assert said.startswith("The mask of 0 changed 10 times in 10 calls") and "at_epochs" in said


def test_another_mask_for_a_compact_weight_is_an_error():
    _, ours = twins()
    CompactWeight(ours[0].forward)
    ours[0].weight_mask.fill_(1)
    with pytest.raises(
        RuntimeError, match="0.weight_mask: found a mask of 162 weights, wanted .*49"
    ):
        ours(image())

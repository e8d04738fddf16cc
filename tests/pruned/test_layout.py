"""Layers between pruned ones keep samples innermost in memory."""

import copy

import pytest
import torch
from support.cases import relative_error
from support.helpers import assert_close, weights
from support.pruned_networks import B, image, twins
from torch import nn

from bppsa_lightning import pruned
from bppsa_lightning._replacement import replacement_of
from bppsa_lightning.pruned.layout import samples_innermost

pytestmark = pytest.mark.usefixtures("every_layer_is_sparse")


def test_the_layout_is_kept_from_layer_to_layer():
    _, ours = twins(norm=True)
    seen = {}
    for name, child in ours.named_children():
        child.register_forward_hook(
            lambda module, _, output, name=name: seen.__setitem__(name, samples_innermost(output))
        )
    ours(image())
    names = [name for name, child in ours.named_children() if not isinstance(child, nn.Linear)]
    assert all(seen[name] for name in names if not isinstance(ours[int(name)], nn.Flatten))
    kept = [s for c in ours if (s := replacement_of(c, pruned.LayoutLayer))]
    assert len(kept) == 4 and {(s.calls, s.fallback_calls) for s in kept} == {(1, 0)}


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(3, 2, 1, return_indices=True),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.AvgPool2d(2, count_include_pad=False, padding=1),
        nn.AdaptiveMaxPool2d(3, return_indices=True),
        nn.AdaptiveAvgPool2d(2),
        nn.BatchNorm2d(4, affine=False, track_running_stats=False),
        nn.BatchNorm2d(4, momentum=None),
    ],
    ids=repr,
)
def test_layers_between_are_the_same_on_the_view(pool):
    ours = copy.deepcopy(pool)
    pruned.LayoutLayer("", ours).attach()
    x = torch.randn(4, 7, 7, B, dtype=torch.float64).permute(3, 0, 1, 2)
    assert samples_innermost(x)
    for module in (pool, ours):
        module.double()
    a, b = (x.detach().clone(memory_format=torch.preserve_format).requires_grad_() for _ in "ab")
    wanted, found = pool(a), ours(b)
    if isinstance(wanted, tuple):
        assert torch.equal(wanted[1], found[1])
        wanted, found = wanted[0], found[0]
    assert relative_error(found, wanted) < 1e-14 and samples_innermost(found)
    wanted.pow(3).sum().backward()  # a norm's squares have a sum that nothing changes
    found.pow(3).sum().backward()
    assert relative_error(b.grad, a.grad) < 1e-12
    assert_close(weights(ours), weights(pool), 1e-14)
    plain = torch.randn(B, 4, 7, 7, dtype=torch.float64)
    ours(plain)
    assert (ours.forward.calls, ours.forward.fallback_calls) == (1, 1)


def test_a_pooling_that_does_not_fit_has_pytorchs_message():
    pool = nn.MaxPool2d(3)
    x = torch.randn(2, 2, 5, B).permute(3, 0, 1, 2)
    with pytest.raises(RuntimeError) as stock:
        pool(x)
    pruned.LayoutLayer("", pool).attach()
    with pytest.raises(RuntimeError) as ours:
        pool(x)
    assert str(ours.value) == str(stock.value)

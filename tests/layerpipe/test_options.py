"""The options of an optimizer's groups, for updates that are done later."""

import pytest
import torch
from torch import nn

from bppsa_lightning.layerpipe.options import DelayedOptions


def test_options_come_back():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0, momentum=0.5)
    options = DelayedOptions()
    options.enter(0, optimizer)
    optimizer.param_groups[0]["lr"] = 0.1
    with options.used(0, optimizer):
        assert optimizer.param_groups[0]["lr"] == 1.0
    assert optimizer.param_groups[0]["lr"] == 0.1 and optimizer.param_groups[0]["momentum"] == 0.5


@pytest.mark.parametrize("from_the_start", [True, False])
def test_what_an_optimizer_counts_in_its_group_goes_on(from_the_start):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    group, options, delay = optimizer.param_groups[0], DelayedOptions(), 3
    if from_the_start:
        group["step"] = 0
    for k in range(9):
        group["lr"] = float(k)  # as a scheduler does
        options.enter(k, optimizer)
        if k >= delay:
            with options.used(k - delay, optimizer):
                assert group["lr"] == k - delay and group.get("step", 0) == k - delay
                group["step"] = group.get("step", 0) + 1
        assert group["lr"] == k
    assert group["step"] == 9 - delay


def test_a_mini_batch_without_a_step_is_refused():
    optimizer, options = torch.optim.SGD([nn.Parameter(torch.ones(1))]), DelayedOptions()
    options.enter(0, optimizer)
    with pytest.raises(RuntimeError, match="optimizer_step: found a mini-batch without a step"):
        options.enter(2, optimizer)
    never = options.used(1, optimizer)
    with pytest.raises(RuntimeError, match="optimizer_step: found a mini-batch without a step"):
        never.__enter__()

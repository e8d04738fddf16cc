"""torch.utils.checkpoint around an attached layer: what a look at it saves is not counted."""

import pytest
import torch
from support.cases import relative_error
from torch import nn
from torch.utils.checkpoint import checkpoint

import bppsa_lightning as bl


@pytest.mark.parametrize("cell", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("algorithm", ["auto", "speculative", "linear"])
def test_a_checkpoint_around_a_layer(cell, algorithm):
    torch.manual_seed(0)
    module, x = cell(3, 8), torch.randn(3000, 1, 3)
    bl.attach(module, algorithm)
    module(x)[0].square().sum().backward()
    wanted = {name: p.grad.clone() for name, p in module.named_parameters()}
    for _ in range(3):
        bl.detach(module)
        bl.attach(module, algorithm)  # which has learned nothing yet
        for _ in range(2):
            module.zero_grad()
            checkpoint(lambda x: module(x)[0], x, use_reentrant=False).square().sum().backward()
            for name, p in module.named_parameters():
                assert relative_error(p.grad, wanted[name]) < 1e-5

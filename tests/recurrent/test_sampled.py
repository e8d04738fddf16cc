"""Attached layers whose gradients somebody wants sample by sample."""

import pytest
import torch
from support.helpers import assert_close
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import bppsa_lightning as bl
from bppsa_lightning.recurrent.sampled import wanted_by

B, T, I, H = 4, 6, 3, 5


class Wants:
    def __init__(self):
        self.begun, self.found, self.on = [], {}, True

    def now(self, module):
        return self.on

    def begin(self, weights):
        self.begun.append(len(weights))

    def end(self, weight, gradients):
        self.found[weight] = gradients


def wanted_of(kind=nn.LSTM, **options):
    torch.manual_seed(0)
    module = kind(I, H, **options).double()
    bl.attach(module)
    wants = wanted_by[module] = Wants()
    return module, wants


def tensors(*sizes):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*sizes, dtype=torch.float64, generator=generator)


def one_by_one(module, inputs):
    """The gradients of each sample, from batches of one."""
    wanted_by.pop(module)
    each = []
    for x in inputs:
        module.zero_grad(set_to_none=True)
        output, last = module(x)
        loss(output, last).backward()
        each.append([p.grad for p in module.parameters()])
    return [torch.stack(same) for same in zip(*each, strict=True)]


def loss(output, last):
    last = last if isinstance(last, tuple) else (last,)
    data = output if isinstance(output, torch.Tensor) else output.data
    return data.pow(3).sum() + sum(t.square().sum() for t in last)


def named(module, gradients):
    return {n: g for (n, _), g in zip(module.named_parameters(), gradients, strict=True)}


def check(module, wants, inputs):
    found = [wants.found[p] for p in module.parameters()]
    assert_close(named(module, found), named(module, one_by_one(module, inputs)), 1e-11)


@pytest.mark.parametrize("options", [{"proj_size": 2}, {"bias": False}, {"batch_first": True}])
def test_all_layers_and_directions(options):
    module, wants = wanted_of(num_layers=2, bidirectional=True, **options)
    first = options.get("batch_first", False)
    x = tensors(B, T, I) if first else tensors(T, B, I)
    loss(*module(x)).backward()
    assert wants.begun == [len(list(module.parameters()))]
    check(module, wants, x.split(1, 0 if first else 1))


@pytest.mark.parametrize("lengths", [[6, 5, 5, 2], [6, 1, 1, 1], [2, 6, 1, 5]])
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_packed_sequences_in_the_order_of_the_samples(kind, lengths):
    module, wants = wanted_of(kind, bidirectional=True)
    x = tensors(T, B, I)
    packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    loss(*module(packed)).backward()
    check(module, wants, [x[:n, b : b + 1] for b, n in enumerate(lengths)])


def test_a_scan_that_is_done_again_counts_once():
    """relu states overflow behind the ends of short samples."""
    module, wants = wanted_of(nn.RNN, nonlinearity="relu", bias=False)
    with torch.no_grad():
        module.weight_hh_l0.copy_(1e120 * torch.eye(H).double())
        module.weight_ih_l0.fill_(1.0)
    x = torch.tensor([-1.0, 1.0], dtype=torch.float64)[:, None].expand(T, 2, I)
    output, _ = module(pack_padded_sequence(x, torch.tensor([T, 2])))
    output.data.sum().backward()
    assert wants.begun == [2]
    for gradients in wants.found.values():
        assert gradients.isfinite().all() and not gradients[0].any() and gradients[1].all()


def test_frozen_weights_are_not_asked_for():
    module, wants = wanted_of()
    module.weight_ih_l0.requires_grad_(False)
    loss(*module(tensors(T, B, I))).backward()
    assert set(wants.found) == {p for p in module.parameters() if p.requires_grad}


def test_a_call_that_cannot_be_computed_so_is_an_error():
    module, _ = wanted_of()
    with pytest.raises(NotImplementedError, match=r"module: found dtypes .* differ; wanted"):
        module(tensors(T, B, I).float())


def test_calls_that_nobody_wants_are_as_ever():
    module, wants = wanted_of()
    wants.on = False
    loss(*module(tensors(T, B, I))).backward()
    assert not wants.begun and not wants.found

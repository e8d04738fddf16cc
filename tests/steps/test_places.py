"""Modules that hold other tensors in the backward, which calls steps again, than in the forward."""

import threading
from functools import partial

import pytest
import torch
from support.cases import relative_error
from support.windows import loop
from torch import nn
from torch.func import functional_call

import bppsa_lightning as bl
from bppsa_lightning.steps.places import Places

F64 = torch.float64
T, B, H = 150, 2, 4
WAYS = [
    {}, {"algorithm": "chunked"}, {"algorithm": "blelloch"}, {"algorithm": "speculative"},
    {"checkpoint": True}, {"algorithm": "speculative", "checkpoint": True},
]  # fmt: skip
every_way = pytest.mark.parametrize("how", WAYS, ids=str)


class Recurrence(nn.Module):
    """h = tanh(h W + b + x)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(H, H, dtype=F64)

    def step(self, h, x):
        h = torch.tanh(self.linear(h) + x)
        return h, h

    def forward(self, walk, x):
        return walk(self.step, x.new_zeros(B, H), x)[1]


def x_of(seed):
    return torch.randn(T, B, H, dtype=F64, generator=torch.Generator().manual_seed(seed))


def fast_weights(walk):
    model = Recurrence()
    fast = {n: (0.9 * p.detach()).requires_grad_() for n, p in model.named_parameters()}
    functional_call(model, fast, (walk, x_of(1))).square().sum().backward()
    assert all(p.grad is None for p in model.parameters())
    return [p.grad for p in fast.values()]


def adapted_weights(walk):
    model = Recurrence()
    fast = {n: 0.9 * p for n, p in model.named_parameters()}
    functional_call(model, fast, (walk, x_of(1))).square().sum().backward()
    return [p.grad for p in model.parameters()]


def penalty(walk):
    model, x = Recurrence(), x_of(1).requires_grad_()
    fast = {n: (0.5 * p.detach()).requires_grad_() for n, p in model.named_parameters()}
    loss = functional_call(model, fast, (walk, x)).square().sum()
    (slope,) = torch.autograd.grad(loss, x, create_graph=True)
    slope.square().sum().backward()
    return [x.grad, *(p.grad for p in fast.values())]


class Computed(Recurrence):
    """A weight that is orthogonal, computed in each forward."""

    def step(self, h, x):
        h = torch.tanh(0.9 * h @ self.weight() + x)
        return h, h

    def keep(self, weight):
        self.kept = weight

    def weight(self):
        return self.kept

    def forward(self, walk, x):
        self.keep(torch.linalg.qr(self.linear.weight)[0])
        return super().forward(walk, x)


class InATuple(Computed):
    def keep(self, weight):
        self.kept = ([weight], 1)

    def weight(self):
        return self.kept[0][0]


class InAList(Computed):
    def __init__(self):
        super().__init__()
        self.kept = [0, 0]

    def keep(self, weight):
        self.kept[1] = weight

    def weight(self):
        return self.kept[1]


class InAFunction(Computed):
    def keep(self, weight):
        self.weight = lambda: weight


class InAnObject(Computed):
    class Box:
        __slots__ = ("kept",)

    def keep(self, weight):
        self.box = self.Box()
        self.box.kept = weight

    def weight(self):
        return self.box.kept


class InTheClass(Computed):
    def keep(self, weight):
        InTheClass.kept = weight


def called_twice(kind, walk):
    model = kind()
    loss = sum(model(walk, x_of(seed)).square().sum() for seed in (1, 2))
    now = dict(model.__dict__)
    loss.backward()
    assert all(model.__dict__[name] is value for name, value in now.items())
    return [model.linear.weight.grad]


KINDS = [Computed, InATuple, InAList, InAFunction, InAnObject, InTheClass]
USES = {f.__name__: f for f in (fast_weights, adapted_weights, penalty)}
USES |= {kind.__name__: partial(called_twice, kind) for kind in KINDS}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@every_way
def test_gradients_are_those_of_the_tensors_that_were_read(use, how):
    found, wanted = use(partial(bl.scan, **how)), use(loop)
    assert all(relative_error(a, b) < 1e-9 for a, b in zip(found, wanted, strict=True))


@every_way
def test_tensors_that_cannot_be_put_back_are_an_error(how):
    weight, hidden = nn.Parameter(torch.eye(H, dtype=F64)), threading.local()

    def step(h, x):
        h = torch.tanh(h @ hidden.weight + x)
        return h, h

    def forward(x):
        hidden.weight = 1.0 * weight
        return bl.scan(step, x.new_zeros(B, H), x, **how)[1].square().sum()

    if how == {"algorithm": "speculative"}:  # all that its gradients need is kept
        how = {"algorithm": "chunked"}
    loss = forward(x_of(1)) + forward(x_of(2))
    with pytest.raises(RuntimeError, match="reads other tensors in the backward"):
        loss.backward()


@every_way
def test_what_reaches_no_loss_has_no_gradient_and_is_no_error(how):
    """A tensor that only one of the ys reads, and one that is read without a graph."""
    found = []
    for walk in (partial(bl.scan, **how), loop):
        model, other = Recurrence(), nn.Parameter(torch.ones(H, dtype=F64))

        def step(h, x, model=model, other=other):
            h, _ = model.step(h, x)
            return h + 0 * other.detach(), (h, h * other)

        walk(step, torch.zeros(B, H, dtype=F64), x_of(1))[1][0].square().sum().backward()
        assert other.grad is None
        found.append(model.linear.weight.grad)
    assert relative_error(*found) < 1e-9


def test_places_hold_what_they_did_for_a_while():
    names, numbers, box = {"a": 1, "gone": 2}, [1, 2, 3], InAnObject.Box()
    box.kept = 1

    def cell_of(value):
        return (lambda: value).__closure__[0]

    cell = cell_of(1)
    places = Places(
        [(names, "a", 1), (names, "gone", 2), (numbers, 0, 1), (numbers, 2, 3)]
        + [(box, "kept", 1), (cell, None, 1)]
    )
    with places.as_they_were():
        pass
    names["a"], numbers[0], box.kept, cell.cell_contents = 5, 5, 5, 5
    del names["gone"], numbers[2]
    with pytest.raises(LookupError), places.as_they_were():
        assert names == {"a": 1, "gone": 2} and numbers == [1, 2]
        assert (box.kept, cell.cell_contents) == (1, 1)
        raise LookupError
    assert names == {"a": 5} and numbers == [5, 2] and (box.kept, cell.cell_contents) == (5, 5)
    del box.kept, cell.cell_contents
    with places.as_they_were():
        assert (box.kept, cell.cell_contents) == (1, 1)
    assert not hasattr(box, "kept") and cell == type(cell)()

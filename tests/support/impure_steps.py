"""Steps of `bl.scan` that are no pure functions, each in another way, for tests/steps.

Most multiply by 0 in each seventh call, so that other numbers of calls are other results.
"""

import collections
import itertools
import random
import types
from array import array

import numpy as np
import torch
from torch import nn
from torch.func import grad, vmap

T, B, H = 400, 2, 6
seen_here: list[torch.Tensor] = []
calls_here = 0


class Step(nn.Module):
    """h = tanh(W h + x), and what a subclass does beside."""

    def __init__(self):
        torch.manual_seed(0)
        super().__init__()
        self.linear = nn.Linear(H, H)

    def next(self, h, x):
        return torch.tanh(self.linear(h) + x)

    def forward(self, h, x):
        h = self.next(h, x)
        return h, h


class Dropout(Step):
    def forward(self, h, x):
        return super().forward(nn.functional.dropout(h, 0.5), x)


class Noise(Step):
    def forward(self, h, x):
        return super().forward(h * (1 + 0.3 * torch.randn_like(h)), x)


class PythonsRandom(Step):
    def forward(self, h, x):
        return super().forward(h * (random.random() > 0.05), x)


class NumpysRandom(Step):
    def forward(self, h, x):
        return super().forward(h * (np.random.rand() > 0.05), x)


class OwnGenerator(Step):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(4)

    def forward(self, h, x):
        return super().forward(h * torch.rand(H, generator=self.generator), x)


class NormOfAll(Step):
    def forward(self, h, x):
        return super().forward(h / h.norm().clamp(min=1), x)


class AnySample(Step):
    def forward(self, h, x):
        h, _ = super().forward(0.5 * h, x)
        h = torch.where((h > 0.99).any(), h * 0, h)
        return h, h


class FirstSample(Step):
    def forward(self, h, x):
        return super().forward(torch.cat([h[:1] * 0, h[1:]]), x)


class TableOfRows(Step):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.rand(4096, H))

    def forward(self, h, x):
        return super().forward(h, x + self.table[: h.shape[0]])


class ListOfTheModule(Step):
    def next(self, h, x):
        seen_here.append(h)
        return super().next(h, x) * (len(seen_here) % 7 > 0)


class CounterOfTheModule(Step):
    def next(self, h, x):
        return super().next(h, x) * (counted() % 7 > 0)


def counted():
    global calls_here
    calls_here += 1
    return calls_here


class AttributeOfAnAttribute(Step):
    def __init__(self):
        super().__init__()
        self.settings = types.SimpleNamespace(of=types.SimpleNamespace(calls=0))

    def next(self, h, x):
        self.settings.of.calls += 1
        return super().next(h, x) * (self.settings.of.calls % 7 > 0)


class PlacesOfLargeOnes(Step):
    def forward(self, h, x):
        h, _ = super().forward(h, x)
        h = h * 0 if len((h.mean(-1) > 0.6).nonzero()) else h
        return h, h


class LargeOnes(Step):
    def forward(self, h, x):
        h, _ = super().forward(h, x)
        h = h * 0 if h[h > 0.995].numel() else h
        return h, h


class PlacesByWhere(Step):
    def forward(self, h, x):
        h, _ = super().forward(h, x)
        h = h * 0 if len(torch.where(h > 0.995)[0]) else h
        return h, h


class GradientsOfAnEnergy(Step):
    def forward(self, h, x):
        slope = vmap(grad(lambda q: self.linear(q).square().sum()))(h)
        h = torch.tanh(0.5 * h - 0.5 * slope + x)
        return h, h


class LookedUpByTheFirst(Step):
    """A table of time steps, as the first sample has it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randn(T))

    def forward(self, h, x):
        return super().forward(h, x + self.table[(x[0].abs().sum() * 10).long() % T])


class LedByTheLast(Step):
    def forward(self, h, x):
        return super().forward(0.5 * h + 0.4 * h[-1:], x)


class BufferAfterItself(Step):
    def __init__(self):
        super().__init__()
        self.register_buffer("n", torch.zeros(()))

    def next(self, h, x):
        self.n = self.n + 1
        return super().next(h, x) * (self.n % 7 > 0)


class BufferByData(BufferAfterItself):
    def next(self, h, x):
        self.n.data.add_(1)
        return Step.next(self, h, x) * (self.n % 7 > 0)


class ParameterByData(Step):
    def next(self, h, x):
        self.linear.bias.data += 0.01
        return super().next(h, x)


class ParameterPutByData(Step):
    def next(self, h, x):
        self.linear.bias.data = self.linear.bias.data + 0.01
        return super().next(h, x)


class ListByDefault(Step):
    def next(self, h, x, *, seen=None):
        return super().next(h, x) * (counted_by_default() % 7 > 0)


def counted_by_default(seen=[0]):  # noqa: B006
    seen.append(1)
    return len(seen)


class AttributeOfTheClass(Step):
    calls = 0

    def __init__(self):
        super().__init__()
        AttributeOfTheClass.calls = 0

    def next(self, h, x):
        AttributeOfTheClass.calls += 1
        return super().next(h, x) * (self.calls % 7 > 0)


class ListInATuple(Step):
    def __init__(self):
        super().__init__()
        self.kept = ([], "calls")

    def next(self, h, x):
        self.kept[0].append(1)
        return super().next(h, x) * (len(self.kept[0]) % 7 > 0)


class Slots:
    __slots__ = ("calls",)


class SlotOfAnObject(Step):
    def __init__(self):
        super().__init__()
        self.slots = Slots()
        self.slots.calls = 0

    def next(self, h, x):
        self.slots.calls += 1
        return super().next(h, x) * (self.slots.calls % 7 > 0)


class NumberOfAnArray(Step):
    def __init__(self):
        super().__init__()
        self.count = np.zeros(1)

    def next(self, h, x):
        self.count += 1
        return super().next(h, x) * float(self.count[0] % 7 > 0)


class Contained(Step):
    """Counts in a place that a subclass makes."""

    def __init__(self):
        super().__init__()
        self.counts = self.made()

    def place(self):
        return self.counts

    def next(self, h, x):
        self.place()[0] += 1
        return super().next(h, x) * (self.place()[0] % 7 > 0)


class NumberOfAUserList(Contained):
    def made(self):
        return collections.UserList([0])


class NumberOfACounter(Contained):
    def made(self):
        return collections.Counter({0: 3})


class NumberOfPythonsArray(Contained):
    def made(self):
        return array("i", [0])


class ByteOfAnArray(Contained):
    def made(self):
        return bytearray(100)

    def place(self):
        self.counts[0] %= 200
        return self.counts


class ObjectOfAnArray(Contained):
    def made(self):
        return np.array([0, None], dtype=object)


class ListInDicts(Contained):
    def made(self):
        return {"of": {"all": {"calls": [0]}}}

    def place(self):
        return self.counts["of"]["all"]["calls"]


class Iterated(Step):
    def __init__(self):
        super().__init__()
        self.numbers = itertools.count(1)

    def next(self, h, x):
        return super().next(h, x) * (next(self.numbers) % 7 > 0)


class OwnRandom(Step):
    def __init__(self):
        super().__init__()
        self.python, self.numpy = random.Random(0), np.random.default_rng(0)

    def next(self, h, x):
        return super().next(h, x) * (self.python.random() + self.numpy.random() > 0.3)


class Recorded(Step):
    def __init__(self):
        super().__init__()
        self.linear.register_forward_hook(lambda *_: seen_here.append(1))

    def next(self, h, x):
        return super().next(h, x) * (len(seen_here) % 7 > 0)


class Scripted(Step):
    def __init__(self):
        super().__init__()
        self.script = torch.jit.script(halved_if_large)

    def forward(self, h, x):
        h = self.script(self.next(h, x))
        return h, h


def halved_if_large(h: torch.Tensor):
    if bool(h[0, 0] > 0.9):
        h = 0.5 * h
    return h


class ClippedGradients(Step):
    def forward(self, h, x):
        h, _ = super().forward(h, x)
        if h.requires_grad:
            h.register_hook(lambda g: g.clamp(-0.01, 0.01))
        return h, h


class ChangesAndShowsItsState(Step):
    def forward(self, h, x):
        with torch.no_grad():
            h.copy_(self.next(h, x))
        return h, h


class CallsItself(Step):
    def __init__(self):
        super().__init__()

        def power(h, n):
            return h if n == 0 else torch.tanh(0.9 * power(h, n - 1))

        self.power = power

    def next(self, h, x):
        seen_here.append(1)
        return super().next(self.power(h, 3), x)


DRAWS, MIXES = "draws random numbers", "mixes samples"
CHANGES, READS = "changes variables of its own", "reads numbers of its arguments"
STEPS = {
    Dropout: DRAWS, Noise: DRAWS, PythonsRandom: DRAWS, NumpysRandom: DRAWS, OwnGenerator: DRAWS,
    NormOfAll: MIXES, AnySample: MIXES, FirstSample: MIXES, TableOfRows: MIXES,
    ListOfTheModule: CHANGES, CounterOfTheModule: CHANGES, AttributeOfAnAttribute: CHANGES,
    PlacesOfLargeOnes: READS, LargeOnes: READS, PlacesByWhere: READS,
    GradientsOfAnEnergy: "torch.func", LookedUpByTheFirst: MIXES, LedByTheLast: MIXES,
    BufferAfterItself: CHANGES, BufferByData: "changes tensors of its own", ListByDefault: CHANGES,
    AttributeOfTheClass: CHANGES, ListInATuple: CHANGES, SlotOfAnObject: CHANGES,
    ParameterByData: "changes tensors of its own", ParameterPutByData: "changes tensors of its own",
    NumberOfAUserList: CHANGES, NumberOfACounter: CHANGES, NumberOfPythonsArray: CHANGES,
    ByteOfAnArray: CHANGES, ObjectOfAnArray: CHANGES, ListInDicts: CHANGES,
    NumberOfAnArray: CHANGES, Iterated: "holds an iterator", OwnRandom: CHANGES, Recorded: CHANGES,
    Scripted: "TorchScript", ClippedGradients: "gives gradients hooks", CallsItself: CHANGES,
    ChangesAndShowsItsState: "its y is the state",
}  # fmt: skip


def forget():
    """All counts begin anew."""
    global calls_here
    calls_here = 0
    seen_here.clear()
    counted_by_default.__defaults__[0].clear()

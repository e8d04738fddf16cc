"""Steps whose variables are bound to something else before the backward calls them again."""

# ruff: noqa: B023

from functools import partial

import pytest
import torch
from support.cases import relative_error
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.steps.frozen import frozen

F64 = torch.float64
B, I, H = 2, 3, 4  # noqa: E741
WAYS = [
    {}, {"algorithm": "chunked"}, {"algorithm": "blelloch"}, {"algorithm": "speculative"},
    {"checkpoint": True},
]  # fmt: skip


def loop(step, h, xs):
    ys = []
    for x in xs:
        h, y = step(h, x)
        ys.append(y)
    return h, torch.stack(ys)


def of_layers(scan, cells, x):
    """As one writes it: all steps read the same variable."""
    for cell in cells:

        def step(h, x):
            h = cell(x, h)
            return h, h

        _, x = scan(step, x.new_zeros(B, H), x)
    return x


def of_helpers(scan, cells, x):
    for cell in cells:

        def after(x, h):
            return cell(x, h)

        _, x = scan(lambda h, x: (after(x, h),) * 2, x.new_zeros(B, H), x)
    return x


def of_a_module(scan, cells, x):
    global the_cell
    for the_cell in cells:
        _, x = scan(lambda h, x: (the_cell(x, h),) * 2, x.new_zeros(B, H), x)
    return x


def of_numbers(scan, cells, x):
    for scale in (0.5, 1.0, 2.0):

        def step(cell, h, x):
            h = cell(x, h * scale)
            return h, h

        _, x = scan(partial(step, cells[0]), x.new_zeros(B, H), x.repeat(1, 1, 2)[..., :I])
    return x


@pytest.mark.parametrize("write", [of_layers, of_helpers, of_a_module, of_numbers])
@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.parametrize("T", [9, 150])
def test_it_is_the_step_of_the_forward(write, how, T):
    torch.manual_seed(0)
    cells = nn.ModuleList([nn.GRUCell(I, H), nn.GRUCell(H, H), nn.GRUCell(H, H)]).to(F64)
    x = torch.randn(T, B, I, dtype=F64)

    def gradients(scan):
        cells.zero_grad()
        write(scan, cells, x).square().sum().backward()
        return [p.grad for p in cells.parameters() if p.grad is not None]

    found, wanted = gradients(partial(bl.scan, **how)), gradients(loop)
    assert len(found) == len(wanted)
    assert all(relative_error(a, b) < 1e-10 for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("how", WAYS, ids=str)
def test_weights_that_are_trained_within(how):
    """MAML: gradients of gradients, through steps that read what a list holds then."""

    def gradients(scan):
        torch.manual_seed(0)
        first = [torch.randn(n, H, dtype=F64).mul(0.4).requires_grad_() for n in (H, I)]
        xs, now = torch.randn(140, B, I, dtype=F64), first

        def step(h, x):
            h = torch.tanh(h @ now[0] + x @ now[1])
            return h, h

        for _ in range(2):
            loss = scan(step, xs.new_zeros(B, H), xs)[1].square().mean()
            now = [
                w - 0.5 * g
                for w, g in zip(now, torch.autograd.grad(loss, now, create_graph=True), strict=True)
            ]
        return torch.autograd.grad(scan(step, xs.new_zeros(B, H), xs)[1].sum(), first)

    found, wanted = gradients(partial(bl.scan, **how)), gradients(loop)
    assert all(relative_error(a, b) < 1e-10 for a, b in zip(found, wanted, strict=True))


def test_what_is_frozen_and_what_is_not():
    n, calls = 1, []

    def factorial(k: int, *, more: int = 0) -> int:
        return n if k == 0 else k * factorial(k - 1) + more

    def counts():
        global the_count
        the_count = globals().get("the_count", 0) + 1
        calls.append(the_count)

    factorial.note = "kept"
    kept, compiled = frozen(factorial), torch.compile(factorial, backend="eager")
    assert kept.__name__ == "factorial" and kept.note == "kept" and kept.__kwdefaults__
    n = 2
    assert (kept(3), kept(3, more=1), factorial(3)) == (6, 7, 12)
    frozen(counts)()
    assert the_count == 1 and calls == [1]
    cell = nn.GRUCell(2, 2)
    assert frozen(cell) is cell and frozen(compiled) is compiled and frozen(cell.forward)

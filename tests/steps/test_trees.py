"""Trees of a step's arguments and results: None is an empty one, keys may be in any order."""

from collections import OrderedDict, namedtuple

import pytest
import torch
from support.windows import leaves
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.steps.trees import flatten, shown

ALGORITHMS = ["auto", "linear", "speculative", "chunked", "blelloch"]
Pair = namedtuple("Pair", "h c")
each_way = pytest.mark.parametrize("algorithm", ALGORITHMS)
each_length = pytest.mark.parametrize("T", [1, 5, 200])


def walked(step, carry, xs):
    """The last carry and all ys of the loop."""
    ys = []
    for x in xs.unbind(0):
        carry, y = step(carry, x)
        ys.append(y)
    return carry, ys


@each_length
@each_way
def test_a_dict_s_keys_in_another_order(T, algorithm):
    torch.manual_seed(0)
    cell = nn.Linear(4, 4)

    def step(s, x):
        return {"c": 0.5 * s["h"], "h": (0.1 * s["c"] + cell(x)).tanh()}, s["h"]

    init, xs = leaves({"h": torch.randn(2, 4), "c": torch.randn(2, 4)}), torch.randn(T, 2, 4)
    carry, ys = bl.scan(step, init, xs, algorithm=algorithm)
    assert [*carry] == ["h", "c"]
    last, true = walked(step, init, xs)
    torch.testing.assert_close(carry, {name: last[name] for name in carry})
    torch.testing.assert_close(ys, torch.stack(true))
    wanted = [init["h"], init["c"], *cell.parameters()]
    found, true = (
        torch.autograd.grad((2 * s["h"] + s["c"]).sum(), wanted, allow_unused=True)
        for s in (carry, last)
    )
    for a, b in zip(found, true, strict=True):
        torch.testing.assert_close(a if b is not None else None, b)


@each_length
@each_way
@pytest.mark.parametrize("checkpoint", [False, True])
def test_none_is_an_empty_tree(T, algorithm, checkpoint):
    torch.manual_seed(0)
    cell = nn.Linear(4, 4)

    def step(s, x):
        h = (0.5 * s.h + cell(x["x"])).tanh()
        assert s.c is None and x["nothing"] is None
        return Pair(h, None), (h, None, OrderedDict(twice=2 * h, nothing=None))

    init, xs = Pair(torch.randn(2, 4), None), {"x": torch.randn(T, 2, 4), "nothing": None}
    reset = torch.rand(T, 2) < 0.05
    for more in ({}, {"reverse": True}, {"reset": reset}):
        carry, (h, none, ys) = bl.scan(
            step, init, xs, algorithm=algorithm, checkpoint=checkpoint, **more
        )
        assert type(carry) is Pair and carry.c is None and none is None and ys["nothing"] is None
        assert type(ys) is OrderedDict and [*ys] == ["twice", "nothing"]
        torch.testing.assert_close(ys["twice"], 2 * h)
        torch.testing.assert_close(carry.h, h[0 if "reverse" in more else -1])
        if not more:
            last, _ = walked(lambda s, x: step(s, {"x": x, "nothing": None}), init, xs["x"])
            torch.testing.assert_close(carry.h, last.h)
        (h.sum() + ys["twice"].sum()).backward()
        assert cell.weight.grad.isfinite().all()


@pytest.mark.parametrize("T", [5, 200])
@pytest.mark.parametrize(
    "step, words",
    [
        (lambda s, x: (s, 1.0), r"step: found the y float in its result, wanted "),
        (lambda s, x: ({"h": s["h"]}, x), r"the state {'h': tensor} .* {'h': tensor, 'c': tensor}"),
        (lambda s, x: ({"h": x, "c": None}, x), r"found the state {'h': tensor, 'c': None} in its"),
        (lambda s, x: ([x, x], x), r"found the state \[tensor, tensor\] in its result"),
        (lambda s, x: ({**s, "c": 0}, x), r"found the state {'h': tensor, 'c': int} in its"),
    ],
)
def test_errors_show_what_was_found(T, step, words):
    init = {"h": torch.zeros(2, 3), "c": torch.zeros(2, 3)}
    with pytest.raises(TypeError, match=words):
        bl.scan(step, init, torch.zeros(T, 2, 3))


def test_ys_have_one_form():
    forms = iter([(torch.zeros(2), None), (torch.zeros(2), torch.zeros(2))])
    with pytest.raises(TypeError, match=r"the y \(tensor, tensor\) .* \(tensor, None\) \(B, ...\)"):
        bl.scan(lambda h, x: (h, next(forms)), torch.zeros(2), torch.zeros(2, 2))


def test_a_tree_gives_its_leaves_back():
    tree = {"a": (1, None, [2]), "b": None, "c": Pair(3, {})}
    found, form = flatten(tree)
    assert found == [1, 2, 3] and not form.is_leaf
    assert form.unflatten(found) == tree
    assert form.leaves({"c": Pair(6, {}), "b": None, "a": (4, None, [5])}) == [4, 5, 6]
    for other in ({"a": (1, None, [2])}, {**tree, "b": 0}, {**tree, "c": (3, {})}, None):
        with pytest.raises(ValueError, match="."):
            form.leaves(other)
    assert flatten(1)[1].is_leaf and not flatten(None)[1].is_leaf
    assert shown(tree) == "{'a': (int, None, [int]), 'b': None, 'c': Pair(h=int, c={})}"

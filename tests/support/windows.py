"""What tests of windows share: a float64 truth, and how far walks are from it."""

import torch
from torch.utils import _pytree as pytree

ULP = torch.finfo(torch.float32).eps


def loop(step, init, xs):
    """The loop that `bl.scan` stands for."""
    ys, carry = [], init
    for t in range(len(pytree.tree_leaves(xs)[0])):
        carry, y = step(carry, pytree.tree_map(lambda x, t=t: x[t], xs))
        ys.append(y)
    return carry, pytree.tree_map(lambda *same: torch.stack(same), *ys)


def leaves(tree, dtype=None):
    """Of a tree, as leaves of autograd, in another dtype if one is given."""

    def leaf(t):
        t = t.detach().clone()
        t = t.to(dtype) if dtype is not None and t.is_floating_point() else t
        return t.requires_grad_(t.is_floating_point())

    return pytree.tree_map(leaf, tree)


def run(walk, step, init, xs, weigh=None):
    """All results, then all gradients: of ys weighed, and of the last carry's squares.

    Weights are positive: sums over time that nearly cancel would compare luck.
    """
    parameters = list(step.parameters()) if hasattr(step, "parameters") else []
    for p in parameters:
        p.grad = None
    carry, ys = walk(step, init, xs)
    results = [*pytree.tree_leaves(ys), *pytree.tree_leaves(carry)]
    generator = torch.Generator().manual_seed(5)
    loss = 0
    for t in pytree.tree_leaves(ys):
        w = torch.rand(t.shape, generator=generator).to(t)
        loss = loss + ((w if weigh is None else weigh(w)) * t).sum()
    for t in pytree.tree_leaves(carry):
        loss = loss + t.square().sum()
    loss.backward()
    inputs = [t for t in pytree.tree_leaves((init, xs)) if t.requires_grad]
    gradients = [t.grad for t in (*inputs, *parameters) if t.grad is not None]
    return [t.detach() for t in results] + gradients


def far(found, true):
    """Of each tensor the distance from the truth, relative to its size: largest, and in all.

    What is smaller than float32's normal numbers may be zero.
    """
    pairs = []
    for a, b in zip(found, true, strict=True):
        size = b.abs().max().clamp(min=1e-30)
        apart = (a.double() - b) / size
        whole = apart.norm() / (b / size).norm().clamp(min=1)  # (squares of b may overflow)
        pairs.append((float(apart.abs().max()), float(whole)))
    return pairs


def assert_as_exact(found, walks, true, slack=8 * ULP):
    """The error of what was found is at most twice that of a walk; of some, the worst one's."""
    each = [far(walk, true) for walk in walks]
    worst = [[max(pair[i] for pair in same) for i in (0, 1)] for same in zip(*each, strict=True)]
    for i, (ours, theirs) in enumerate(zip(far(found, true), worst, strict=True)):
        for a, b in zip(ours, theirs, strict=True):
            assert a <= 2 * b + slack or b != b, (i, ours, theirs)

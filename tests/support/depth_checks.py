"""Checks of stacks whose layers lie on several ranks: `python depth_checks.py RANKS CHECK …`."""

import copy
import os
import pickle
import random
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import bppsa_lightning as bl
from bppsa_lightning._replacement import replacement_of
from bppsa_lightning.ranks import Spans
from support.cases import relative_error
from support.of_ranks import begin
from support.stacks import MODELS, assert_same, gradients

ALGORITHMS = ("linear", "blelloch")


def group():
    return dist.group.WORLD


def made(make, dtype=torch.float64):
    torch.manual_seed(0)
    model = make().to(dtype)
    for m in model.modules():
        if isinstance(m, nn.modules.batchnorm._BatchNorm):
            m.eval()
            m.running_mean.normal_()
            m.running_var.uniform_(0.5, 2)
    return model


def divided(model, algorithm, sharded=False):
    bl.attach(model, algorithm, group=group(), sharded=sharded)
    return model


def mlp(n=9, width=6, activation=nn.Tanh):
    return nn.Sequential(
        *[layer for _ in range(n) for layer in (nn.Linear(width, width), activation())]
    )


def whole(rank, P):
    """All ranks hold all layers: outputs, gradients and random numbers of one process."""
    for name, (make, shape) in {**MODELS, "mlp": (mlp, (4, 6))}.items():
        for algorithm in ALGORITHMS:
            stock, ours = made(make), divided(made(make), algorithm)
            x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
            wanted = gradients(stock, x)
            after = torch.get_rng_state()
            found = gradients(ours, x)
            assert torch.equal(torch.get_rng_state(), after), name
            assert_same(found, wanted, 1e-10)
            assert f"divided over {P} ranks" in bl.explain(ours)


def parts(rank, P):
    """Each rank holds its part: the input on the first rank, the output on the last."""
    for n in (P, 2 * P + 1, max(1, P - 1)):
        for algorithm in ALGORITHMS:
            stock = made(lambda n=n: mlp(n))
            own = Spans.equal(2 * n, P).of(rank)
            if n < P:  # somebody holds nothing
                own = Spans([2 * n] + [0] * (P - 1)).of(rank)
            mine = divided(copy.deepcopy(stock[own]), algorithm, sharded=True)
            x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
            ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
            for _ in range(2):
                y, wanted = mine(ours), stock(theirs)
                (y if rank == P - 1 else y).pow(2).sum().backward()
                wanted.pow(2).sum().backward()
            if rank == P - 1:
                assert relative_error(y, wanted) < 1e-12
            else:
                assert y.shape == () and y == 0
            if rank == 0:
                assert relative_error(ours.grad, theirs.grad) < 1e-12
            else:
                assert ours.grad is None
            for p, q in zip(mine.parameters(), stock[own].parameters()):
                assert relative_error(p.grad, q.grad) < 1e-12
            with torch.no_grad():
                y = mine(x)
            assert rank < P - 1 or relative_error(y, wanted) < 1e-12


def rounds(rank, P):
    """The backward takes no more than twice the logarithm of rounds."""
    model = divided(made(mlp), "blelloch")
    counts = replacement_of(model, bl.Chain).divided.exchange.counts
    for _ in range(2):
        loss = model(torch.randn(3, 6, dtype=torch.float64)).sum()
        before = counts.rounds
        loss.backward()
        assert 0 < counts.rounds - before <= 2 * (P - 1).bit_length(), counts


def unsound(rank, P):
    """Products that leave the range of numbers are not used: vectors are passed on instead."""
    stock = made(lambda: mlp(4 * P, activation=nn.Identity), torch.float32)
    ours = divided(copy.deepcopy(stock), "blelloch")
    chain = replacement_of(ours, bl.Chain)
    gradients(ours, torch.ones(2, 6))
    fallbacks = torch.zeros(1)
    for offset in range(4):  # of ranks' layers, in the tree
        for model in (stock, ours):
            model.load_state_dict(made(lambda: mlp(4 * P, activation=nn.Identity)).state_dict())
            with torch.no_grad():
                for k, layer in enumerate(model[::2]):
                    # Each state and gradient is a usual number; of these products, none is.
                    layer.bias.zero_()
                    layer.weight.mul_((1e-30, 1e-30, 1e30, 1e30)[(k + offset) % 4])
        size, found = (1e30, 1.0, 1e-30, 1.0)[offset], []
        for model in (stock, ours):
            x = torch.full((2, 6), size, requires_grad=True)
            model.zero_grad()
            (y := model(x)).backward(torch.full_like(y, 1 / size))
            found.append([y, x.grad, *(p.grad for p in model.parameters())])
        fallbacks += sum(scan.fallbacks for scan in chain.scans.values())
        for want, have in zip(*found):
            assert want.isfinite().all() and want.any() and relative_error(have, want) < 1e-5
    dist.all_reduce(fallbacks)
    assert bool(fallbacks) == (P > 2), fallbacks


def too_large(rank, P):
    """What the budget does not allow is passed on, and `explain` says so."""
    stock, ours = made(mlp), divided(made(mlp), "blelloch")
    replacement_of(ours, bl.Chain).budget = 100
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    assert_same(gradients(ours, x), gradients(stock, x), 1e-10)
    said = bl.explain(ours)
    assert ("passed on" in said and "budget" in said) == (P > 2), said


def masks(rank, P):
    """Patterns that change are told to the others."""
    ours, stock = made(mlp), made(mlp)
    for model in (ours, stock):
        for layer in model[::2]:
            prune.l1_unstructured(layer, "weight", 0.5)
    divided(ours, "blelloch")
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for k in range(3):
        assert_same(gradients(ours, x), gradients(stock, x), 1e-10)
        for model in (ours, stock):
            torch.manual_seed(k)
            for layer in model[::2]:
                layer.weight_mask.copy_(torch.rand(layer.weight_mask.shape) > 0.4)


def at_random(rank, P):
    """Stacks of random layers, dtypes, frozen parameters and batches."""
    for seed in range(40):
        r = random.Random(seed)
        width = r.randint(1, 7)

        def stack(r=r, width=width, seed=seed):
            r.seed(seed)
            size, found = width, []
            for _ in range(r.randint(2, 12)):
                kind = r.choice(("linear", "linear", "act", "act", "drop"))
                if kind == "linear":
                    found.append(nn.Linear(size, size := r.randint(1, 8), bias=r.random() < 0.7))
                elif kind == "act":
                    found.append(r.choice((nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid, nn.Identity))())
                else:
                    found.append(nn.Dropout(0.4))
            return nn.Sequential(*found, nn.Linear(size, 2))

        r.seed(seed + 1000)
        single = r.random() < 0.3
        dtype = torch.float32 if single else torch.float64
        algorithm, B = r.choice(ALGORITHMS), r.choice((1, 2, 5))
        frozen = [r.random() < 0.2 for _ in range(40)]
        stock, ours = made(stack, dtype), made(stack, dtype)
        for model in (stock, ours):
            for p, off in zip(model.parameters(), frozen):
                p.requires_grad_(not off)
        divided(ours, algorithm)
        x = torch.randn(B, width, dtype=dtype, generator=torch.Generator().manual_seed(seed))
        for _ in range(2):
            assert_same(gradients(ours, x), gradients(stock, x), 1e-4 if single else 1e-10)


def refused(rank, P):
    """What cannot be done is said, by every rank, before anything hangs."""
    model = divided(made(mlp), "linear" if rank else "blelloch")
    try:
        model(torch.randn(2, 6, dtype=torch.float64))
    except ValueError as error:
        assert "its algorithm" in str(error), error
    else:
        raise AssertionError("no error")
    try:
        pickle.dumps(divided(made(mlp), "linear"))
    except TypeError as error:
        assert "cannot be pickled" in str(error)
    else:
        raise AssertionError("no error")
    part = divided(nn.Sequential(nn.Linear(3, 3), nn.Softmax(1), nn.Linear(3, 3), nn.ReLU()),
                   "linear", sharded=True)  # fmt: skip
    try:
        part(torch.randn(2, 3))
    except ValueError as error:
        assert "Softmax: no Jacobian for it; that is not divided" in str(error), error
    else:
        raise AssertionError("no error")


def second_backward(rank, P):
    model = divided(made(mlp), "blelloch")
    x = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    loss = model(x).sum()
    loss.backward(retain_graph=True)
    once = model[0].weight.grad.clone()
    loss.backward()
    assert relative_error(model[0].weight.grad, 2 * once) < 1e-12


def checkpointed(rank, P):
    """Walked again in the backward, by all ranks."""
    for algorithm in ALGORITHMS:
        stock, ours = made(mlp), divided(made(mlp), algorithm)
        x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        wanted = gradients(stock, x)
        again = nn.Module()
        again.forward = lambda x, ours=ours: checkpoint(ours, x, use_reentrant=False)
        again.named_parameters = ours.named_parameters
        assert_same(gradients(again, x), wanted, 1e-10)


def images(rank, P):
    """A part of a convolutional network on each rank, and a batch of none."""
    make, shape = MODELS["lenet"]
    stock = made(make)
    own = Spans.equal(len(stock), P).of(rank)
    mine = divided(copy.deepcopy(stock[own]), "blelloch", sharded=True)
    for B in (3, 0, 2):
        x = torch.randn(
            B, *shape[1:], dtype=torch.float64, generator=torch.Generator().manual_seed(3)
        )
        for model in (mine, stock):
            model.zero_grad()
            y = model(x)
            (y.pow(2).sum() if y.dim() else y).backward()
        if rank == P - 1:
            assert (
                relative_error(
                    y.detach() if B else torch.zeros(1), stock(x) if B else torch.zeros(1)
                )
                < 1e-10
            )
        for p, q in zip(mine.parameters(), stock[own].parameters()):
            assert p.grad.shape == q.grad.shape
            assert relative_error(p.grad, q.grad) < 1e-10 if B else not p.grad.any()


def dies(rank, P):
    model = divided(made(mlp), "blelloch")
    for _ in range(200):
        model(torch.randn(2, 6, dtype=torch.float64)).sum().backward()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def main():
    P, *names = sys.argv[1:]
    rank = begin(int(P), seconds=20)
    for name in names:
        globals()[name](rank, int(P))
        print(f"{name}: fine", flush=True)
        dist.barrier()


if __name__ == "__main__":
    main()

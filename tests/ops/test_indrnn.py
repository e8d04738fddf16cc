"""bl.ops.indrnn: against the loop in float64; derivatives, plans, layouts, compile, errors.

Letters: T steps, B batch, H state.
"""

import math
import random

import pytest
import torch
from support.cases import DEVICES, relative_error

import bppsa_lightning as bl
from bppsa_lightning import planner
from bppsa_lightning.ops import indrnn
from bppsa_lightning.reference import indrnn as oracle

BOTH = pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
TOLERANCE = {torch.float32: 3e-5, torch.float64: 1e-12}


def draw(T, B, H, dtype=torch.float64, seed=0, h0=True, gain=1.0, device="cpu"):
    """The operands, the same numbers in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    x, state = (torch.randn(*s, generator=generator) for s in ((T, B, H), (B, H)))
    u = (torch.rand(H, generator=generator) * 2 - 1) * gain
    return [None if t is None else t.to(device, dtype) for t in (x, state if h0 else None, u)]


def true(x, h0, u, nonlinearity, reverse):
    h0 = x.new_zeros(x.shape[1:]) if h0 is None else h0
    output = oracle(x, h0, u, nonlinearity, reverse)
    return output, output[0 if reverse else -1]


def gradients(layer, operands, seed, named=(True, True), **settings):
    """Results and gradients, by name, of random gradients of those results that are named."""
    leaves = [None if t is None else t.detach().requires_grad_() for t in operands]
    found = layer(*leaves, **settings)
    generator = torch.Generator().manual_seed(seed)
    incoming = [torch.randn(t.shape, generator=generator).to(t) for t in found]
    chosen = [i for i in range(2) if named[i]]
    given = [t for t in leaves if t is not None]
    back = torch.autograd.grad(
        [found[i] for i in chosen], given, [incoming[i] for i in chosen], materialize_grads=True,
        allow_unused=True,
    )  # fmt: skip
    return [*found, *back]


def wide(operands):
    return [None if t is None else t.double() for t in operands]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(60))
def test_random_layers_equal_the_loop(seed, device):
    r = random.Random(seed)
    T, B, H = r.choice([1, 2, 7, 40, 90]), r.choice([0, 1, 2, 5, 17]), r.choice([1, 3, 8, 37, 300])
    dtype = r.choice([torch.float32, torch.float64])
    operands = draw(T, B, H, dtype, seed, r.random() < 0.7, device=device)
    if r.random() < 0.5:
        operands[0] = operands[0].transpose(0, 1).contiguous().transpose(0, 1)
    settings = {"nonlinearity": r.choice(["tanh", "relu"]), "reverse": r.random() < 0.5}
    named = r.choice([(True, True), (True, False), (False, True)])
    algorithm = r.choice(planner.ALGORITHMS)
    found = gradients(indrnn, operands, seed, named, algorithm=algorithm, **settings)
    wanted = gradients(true, wide(operands), seed, named, **settings)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == dtype and ours.shape == theirs.shape
        if ours.numel():
            assert relative_error(ours, theirs) < TOLERANCE[dtype]


@BOTH
@pytest.mark.parametrize("reverse", [False, True])
def test_it_is_differentiable_twice(nonlinearity, reverse):
    operands = [t.requires_grad_() for t in draw(6, 2, 3)]

    def layer(x, h0, u):
        return indrnn(x, h0, u, nonlinearity, reverse=reverse)

    assert torch.autograd.gradcheck(layer, operands)
    assert torch.autograd.gradgradcheck(layer, operands)
    x, _, u = operands
    assert torch.autograd.gradcheck(lambda x, u: layer(x, None, u), (x, u))


@BOTH
def test_operator_passes_opcheck(nonlinearity):
    for h0 in (True, False):
        x, state, u = draw(5, 2, 3, h0=h0)
        x.requires_grad_(), u.requires_grad_()
        torch.library.opcheck(
            torch.ops.bppsa.indrnn.default, (x, state, u, nonlinearity, False, "auto")
        )
    output, h0, u = draw(5, 2, 3)
    for wanted in range(4):
        arguments = output, output[0].clone(), output, h0, u, nonlinearity, True, wanted
        torch.library.opcheck(torch.ops.bppsa.indrnn_backward.default, arguments)


@BOTH
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_whole(nonlinearity, dynamic):
    def layer(x, h0, u):
        return indrnn(x, h0, u, nonlinearity)

    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for T in (7, 9):
        operands = draw(T, 2, 3)
        found, wanted = (gradients(f, operands, 1) for f in (compiled, layer))
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, wanted, strict=True))


@BOTH
def test_any_number_of_threads_gives_the_same_bits(nonlinearity):
    operands = draw(40, 9, 70, torch.float32)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(gradients(indrnn, operands, 2, nonlinearity=nonlinearity))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@BOTH
def test_what_is_not_finite_is_as_in_the_loop(nonlinearity):
    x, h0, u = draw(9, 3, 5)
    x[2, 0, 1], x[4, 1, 2], h0[2, 3], u[4] = math.nan, math.inf, -math.inf, math.inf
    for algorithm in ("linear", "chunked"):
        ours = indrnn(x, h0, u, nonlinearity, algorithm)
        theirs = true(x, h0, u, nonlinearity, False)
        for a, b in zip(ours, theirs, strict=True):
            assert torch.allclose(a, b, rtol=1e-12, equal_nan=True)


def test_an_expanded_gradient_is_taken_as_it_is():
    x, h0, u = draw(9, 3, 5)
    x.requires_grad_()
    indrnn(x, h0, u)[0].sum().backward()
    (wanted,) = torch.autograd.grad(true(x, h0, u, "relu", False)[0].sum(), x)
    assert relative_error(x.grad, wanted) < 1e-12


def test_backward_is_logged_with_its_plan():
    x, h0, u = draw(9, 3, 5)
    x.requires_grad_()
    with bl.ops.scan_log() as log:
        indrnn(x, h0, u, algorithm="chunked")[1].sum().backward()
    [(cell, shape, plan)] = log.scans
    assert (cell, shape, plan.algorithm) == ("IndRNN", (9, 3, 5), "chunked")


def test_errors_name_the_argument():
    x, h0, u = draw(4, 2, 3)
    cases = [
        ((x[0], h0, u), ValueError, r"x: found shape \(2, 3\), wanted \(T, B, H\)"),
        ((x[:0], h0, u), ValueError, r"x: found shape \(0, 2, 3\)"),
        ((x.half(), h0, u), TypeError, "x: found dtype torch.float16"),
        ((x, h0[:1], u), ValueError, r"h0: found shape \(1, 3\), wanted \(2, 3\)"),
        ((x, h0, u[:2]), ValueError, r"u: found shape \(2,\), wanted \(3,\)"),
        ((x, h0, u.float()), TypeError, "u: found dtype torch.float32, wanted x's torch.float64"),
        ((x, h0, None), TypeError, "u: found NoneType, wanted a torch.Tensor"),
        ((x, h0, u, "selu"), ValueError, "nonlinearity: found 'selu', wanted 'tanh' or 'relu'"),
        ((x, h0, u, "relu", "fast"), ValueError, "algorithm: found 'fast'"),
    ]
    for arguments, error, message in cases:
        with pytest.raises(error, match=message):
            indrnn(*arguments)

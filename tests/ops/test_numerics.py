"""Random cases of every operator against float64, and in float32 against PyTorch's own error.

`BPPSA_NUMERICS_CASES=10000 pytest -s tests/test_numerics.py` tries that many; always the same ones.

T steps, B batch, I input, H hidden.

A case is wrong where a result, or any gradient of it, is not finite where PyTorch's is, or

- in float64: is farther than 1e-9 of its size from the truth;
- in float32: has more than twice PyTorch's error, in the maximum or in the 2-norm.

The truth is the reference in float64 on the same numbers. `UNITS` in the last place of the size are
allowed beside, since where PyTorch's error is small that is luck (it sums the gradient of b_ih in
pairs, to half a unit). What is above that may be luck too: one draw of either error is a few
roundings that happen to be multiplied. So a case that looks wrong is looked at again, with its
numbers moved by 1e-4 of theirs: the same layer, other roundings. It is wrong if the median of
`DRAWS` ratios is above 2.

A chaotic layer tells nothing of the kind. It is one whose truth moves by more than `CHAOTIC` of its
size when the numbers move by half a unit in their last place: any two orders of a sum end apart.
Only what looks wrong is asked whether it is chaotic, and the answers are counted.
"""

import copy
import math
import os
import statistics
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.cases import chain
from support.recurrent_layers import (
    ALGORITHMS,
    CELLS,
    cotangents,
    draw,
    ours,
    results,
    true,
    widened,
)
from support.recurrent_layers import stock as pytorch

import bppsa_lightning as bl
from bppsa_lightning import reference

CASES = int(os.environ.get("BPPSA_NUMERICS_CASES", "400"))
EXACT = 1e-9
UNITS = 4
DRAWS = 31
CHAOTIC = {torch.float32: 0.1, torch.float64: EXACT}
NORMS = {"maximum": torch.inf, "2-norm": 2}
SCANS = ["reverse_scan", "diagonal_scan"]


class Case(NamedTuple):
    op: str
    T: int
    B: int
    I: int
    H: int
    dtype: torch.dtype
    gain: float
    algorithm: str
    reverse: bool
    bias: bool
    state: bool
    incoming: tuple
    seed: int


# Half of the lengths are at most 14.
lengths = st.integers(0, 1000).map(lambda u: round(200 ** (u / 1000)))
subsets = [("output",), ("h_n",), ("output", "h_n", "c_n")]
cases = st.builds(
    Case,
    op=st.sampled_from([*SCANS, *CELLS]),
    T=lengths,
    B=st.integers(1, 20),
    I=st.integers(1, 8),
    H=st.integers(1, 40),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    gain=st.integers(1, 30).map(lambda tenths: tenths / 10),
    algorithm=st.sampled_from(ALGORITHMS),
    reverse=st.booleans(),
    bias=st.booleans(),
    state=st.booleans(),
    incoming=st.sampled_from(subsets),
    seed=st.integers(0, 2**31),
)


class Problem(NamedTuple):
    """A case's numbers, and three functions from such numbers to results by name."""

    tensors: dict
    ours: Callable
    stock: Callable
    true: Callable


def recurrent(case):
    cell = CELLS[case.op]
    # PyTorch takes a projection to be one if it is smaller than the state.
    size = (case.T, case.B, case.I, max(case.H, 2) if cell.projected else case.H)
    tensors = draw(cell, size, case.dtype, case.gain, case.bias, case.state, case.seed)
    incoming = cotangents(cell, tensors, case.incoming, case.seed + 1)
    own = {"reverse": case.reverse}
    return Problem(
        tensors,
        lambda t: results(ours, cell, t, incoming, algorithm=case.algorithm, **own),
        lambda t: results(pytorch, cell, t, incoming, **own),
        lambda t: results(true, cell, widened(t), widened(incoming), **own),
    )


def scan(case):
    """g, and what flows back through it to the Jacobians and the gradients it is made of."""
    jac_t, grad = chain(
        case.T, case.B, min(case.H, 12), torch.float32, gain=case.gain, seed=case.seed
    )
    jac_t = jac_t[..., 0] if case.op == "diagonal_scan" else jac_t
    tensors = {"jac_t": jac_t.to(case.dtype), "grad": grad.to(case.dtype)}
    incoming = {"g": torch.randn(grad.shape, generator=torch.Generator().manual_seed(case.seed))}
    operator, loop = getattr(bl.ops, case.op), getattr(reference, case.op)

    def run(function, t):
        def layer(_, t):
            return {"g": function(*t.values())}

        return results(layer, None, t, {"g": incoming["g"].to(t["grad"].dtype)})

    return Problem(
        tensors,
        lambda t: run(lambda *t: operator(*t, case.algorithm), t),
        lambda t: run(loop, t),
        lambda t: run(loop, widened(t)),
    )


def moved(tensors, by, seed=0):
    """The same tensors with each number moved by up to `by` of its size, and their dtype kept."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: t * (1 + by * (2 * torch.rand(t.shape, generator=generator, dtype=t.dtype) - 1))
        for name, t in tensors.items()
    }


def size(t, order):
    """A norm in float64 of any size: the squares of large numbers overflow."""
    t = t.double()
    largest = t.abs().max().clamp_min(1e-300)
    return float(torch.linalg.vector_norm(t / largest, order) * largest)


def ratios(case, problem, tensors):
    """(name, norm): our error over what is allowed of one; nan where that cannot be said.

    1e-9 of the size in float64, PyTorch's error and some units in float32; infinite where we are
    not finite and PyTorch is.
    """
    found, stock, truth = (f(tensors) for f in (problem.ours, problem.stock, problem.true))
    assert found.keys() == truth.keys()
    info, over = torch.finfo(case.dtype), {}
    # Smaller numbers count as zero in each term of a sum.
    floor = info.tiny * case.T * case.B * case.H
    # At the edge of the range, finite or not depends on the order of a sum.
    limit = info.max / 1e3
    # A state there makes inf - inf of the next one, which may be any number in another order.
    at_edge = not truth["output"].abs().max() < limit if "output" in truth else False
    for name, wanted in truth.items():
        have, theirs = found[name], stock[name]
        assert have.dtype == case.dtype and have.shape == wanted.shape, name
        holes = not at_edge and not have[theirs.abs() < limit].isfinite().all()
        in_range = not at_edge and all(t.isfinite().all() for t in (have, theirs, wanted))
        for norm, order in NORMS.items():
            if holes or not in_range:
                over[name, norm] = math.inf if holes else math.nan
                continue
            whole = size(wanted, order)
            allowed = EXACT * whole
            if case.dtype == torch.float32:
                allowed = size(theirs - wanted, order) + UNITS / 2 * info.eps * whole
            over[name, norm] = size(have - wanted, order) / (allowed + floor)
    return over


def judge(case):
    """One of "right", "out of range" or "chaotic", or what is wrong: {(name, norm): ratio}."""
    limit = 2 if case.dtype == torch.float32 else 1
    problem = (scan if case.op in SCANS else recurrent)(case)
    first = ratios(case, problem, problem.tensors)
    suspects = {key: ratio for key, ratio in first.items() if ratio > limit}
    if not suspects:
        return "out of range" if any(map(math.isnan, first.values())) else "right", {}
    wide, unit = widened(problem.tensors), torch.finfo(case.dtype).eps / 2
    truth, near = problem.true(wide), problem.true(moved(wide, unit))
    chaotic = {
        (name, norm)
        for name, norm in suspects
        if size(near[name] - truth[name], NORMS[norm])
        > CHAOTIC[case.dtype] * size(truth[name], NORMS[norm])
    }
    left = {key: r for key, r in suspects.items() if key not in chaotic or math.isinf(r)}
    if not left:
        return "chaotic", {}
    draws = [ratios(case, problem, moved(problem.tensors, 1e-4, n)) for n in range(DRAWS)]
    medians = {key: statistics.median(draw[key] for draw in draws) for key in left}
    wrong = {key: (left[key], median) for key, median in medians.items() if median > limit}
    return ("wrong", wrong) if wrong else ("right at a second look", {})


@pytest.mark.slow
def test_random_cases():
    verdicts, wrong = Counter(), []

    @settings(
        max_examples=CASES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def try_one(case):
        verdict, what = judge(case)
        verdicts[verdict] += 1
        if what:
            wrong.append((case, what))

    try_one()
    print(f"\n{verdicts.total()} random cases:", dict(verdicts))
    for case, what in wrong:
        print(case, *(f"{key}: {ratio}" for key, ratio in what.items()), sep="\n    ")
    assert verdicts.total() == CASES and not wrong, f"{len(wrong)} of {CASES} are wrong"


def test_a_wrong_result_is_found():
    """The judge can fail: one gradient a little off, or not finite."""
    case = Case("GRU", 9, 2, 3, 4, torch.float32, 1.0, "linear", False, True, True, ("output",), 0)
    problem = recurrent(case)
    assert all(ratio <= 2 for ratio in ratios(case, problem, problem.tensors).values())
    for off, ratio in ((2e-6, 2), (torch.nan, math.inf)):

        def spoiled(tensors, off=off):
            found = problem.ours(tensors)
            found["grad of w_hh"][3, 3] += off * found["grad of w_hh"].abs().max()
            return found

        over = ratios(case, problem._replace(ours=spoiled), problem.tensors)
        assert over.pop(("grad of w_hh", "maximum")) >= ratio
        over.pop(("grad of w_hh", "2-norm"))
        assert all(ratio <= 2 for ratio in over.values())


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_gradients_of_inputs_are_as_exact_with_many_units(kind):
    """Each is a product over all gates, of which the last were once rounded as the whole is."""
    torch.manual_seed(0)
    stock = getattr(torch.nn, kind)(64, 256)
    layer, exact = copy.deepcopy(stock), copy.deepcopy(stock).double()
    bl.attach(layer, "linear")
    x, u = torch.randn(2, 500, 64), torch.randn(2, 500, 256)

    def grad(module):
        dtype = next(module.parameters()).dtype
        given = x.to(dtype, copy=True).requires_grad_()
        module(given)[0].backward(u.to(dtype))
        return given.grad.double()

    of_exact = grad(exact)
    error, of_stock = ((grad(m) - of_exact).square().mean().sqrt() for m in (layer, stock))
    assert error < 1.2 * of_stock

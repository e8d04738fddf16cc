"""Products of Jacobians kept in factors: the same gradients, from less work."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import relative_error
from support.sparse_cases import random_pattern, values_of

from bppsa_lightning import jacobians
from bppsa_lightning.depth import LayerScan, csr_step
from bppsa_lightning.depth.composition import Composition, Limits
from bppsa_lightning.jacobians import Pattern

LIMITS = Limits(None, torch.float64, 1)


def selecting(rows, columns, seed):
    """At most one entry in each row, in any column."""
    generator = torch.Generator().manual_seed(seed)
    there = torch.rand(rows, generator=generator) < 0.8
    crow = torch.zeros(rows + 1, dtype=torch.int32)
    crow[1:] = there.cumsum(0)
    col = torch.randint(columns, (int(there.sum()),), generator=generator, dtype=torch.int32)
    return Pattern(crow, col, (rows, columns))


def chain(kinds, sizes, seed):
    return [
        selecting(a, b, seed + i) if kind else random_pattern(a, b, 0.5, seed + i)
        for i, (kind, a, b) in enumerate(zip(kinds, sizes, sizes[1:], strict=False))
    ]


def scanned(patterns, B, seed, wanted=None, **settings):
    values = [values_of(p, *((B,) if i % 3 else ()), seed=seed + i) for i, p in enumerate(patterns)]
    generator = torch.Generator().manual_seed(seed)
    sizes = [patterns[0].shape[0], *(p.shape[1] for p in patterns)]
    grads = [torch.randn(n, B, dtype=torch.float64, generator=generator) for n in sizes]
    if seed % 2:  # as in a network: only the last state has a direct gradient
        grads = [None] * len(patterns) + grads[-1:]
    steps = [csr_step(p, v) for p, v in zip(patterns, values, strict=True)]
    scan = LayerScan.of(patterns, **settings)
    return scan, scan.run(steps, grads, wanted)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 9)), min_size=2, max_size=9),
    st.integers(1, 9), st.integers(1, 4), st.integers(0, 1000),
)  # fmt: skip
def test_gradients_do_not_depend_on_what_is_multiplied(layers, last, B, seed):
    kinds, sizes = zip(*layers, strict=True)
    patterns = chain(kinds, (*sizes, last), seed)
    _, wanted = scanned(patterns, B, seed, levels=0)
    for levels in range(1, (len(patterns) - 1).bit_length() + 1):
        for in_factors in (True, False):
            scan, found = scanned(patterns, B, seed, levels=levels, in_factors=in_factors)
            for have, want in zip(found, wanted, strict=True):
                assert relative_error(have, want) < 1e-11
            for *_, composition, _ in scan.nodes():
                assert len(composition.factors) <= (3 if in_factors else 1)


@pytest.mark.parametrize("wanted", [{0}, {0, 3}, {1, 2}, set()])
def test_only_what_is_asked_for_must_be_found(wanted):
    patterns = chain([0, 1, 0, 1, 1, 0, 0, 1], [7, 6, 5, 6, 7, 8, 6, 5, 4], 3)
    _, everything = scanned(patterns, 2, 5, levels=3)
    _, found = scanned(patterns, 2, 5, wanted, levels=3)
    for i in wanted | {8}:
        assert relative_error(found[i], everything[i]) < 1e-12
    for have, want in zip(found, everything, strict=True):
        assert have is None or relative_error(have, want) < 1e-12


def test_a_convolution_with_its_relu_and_pooling_is_not_multiplied():
    weight = jacobians.conv2d_pattern(torch.ones(4, 3, 3, 3) > 0, (3, 8, 8), padding=1).pattern
    relu = Pattern.diagonal(weight.shape[1])
    pool = jacobians.max_pool2d_pattern((4, 8, 8), 2).pattern
    conv, active, pooled = (Composition((p,)) for p in (weight, relu, pool))
    assert (weight.selects, relu.selects, pool.selects) == (False, True, True)
    block = Composition.of(Composition.of(conv, active, LIMITS), pooled, LIMITS)
    assert block.factors[0] is weight and len(block.factors) == 2
    assert block.flops == 2 * relu.nnz and block.shape == (weight.shape[0], pool.shape[1])
    assert "kept in factors" in block.describe() and "FLOPs" in block.describe()
    overlapping = jacobians.max_pool2d_pattern((4, 8, 8), 3, 2).pattern
    assert not overlapping.selects


def test_what_stands_between_two_matrices_goes_to_the_cheaper_side():
    """(wide · diagonal) · narrow would scale all of wide; wide · (diagonal · narrow) does not."""
    wide, narrow = random_pattern(50, 20, 0.5), random_pattern(20, 3, 0.5)
    middle = Composition.of(Composition((wide,)), Composition((Pattern.diagonal(20),)), LIMITS)
    made = Composition.of(middle, Composition((narrow,)), LIMITS)
    (i, first), (j, second) = made.products
    assert (i, first.a.nnz, first.b) == (1, 20, narrow) and (j, second.a) == (0, wide)
    assert made.flops == first.flops + second.flops and len(made.factors) == 1

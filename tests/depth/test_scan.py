"""The scan over depth: against the loop and the reference tree; refused products; range."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cases import DEVICES, relative_error
from support.sparse_cases import random_pattern, values_of

from bppsa_lightning import depth, jacobians
from bppsa_lightning.depth import LayerScan, csr_step
from bppsa_lightning.jacobians import apply_csr


def chain(sizes, B, density=0.4, shared=(), dtype=torch.float64, seed=0):
    """Patterns, values ((nnz,) where shared, (B, nnz) elsewhere) and u_0 … u_n of random layers."""
    patterns = [
        random_pattern(a, b, density, seed + i) for i, (a, b) in enumerate(zip(sizes, sizes[1:]))
    ]
    values = [
        values_of(p, *(() if i in shared else (B,)), seed=seed + i).to(dtype)
        for i, p in enumerate(patterns)
    ]
    generator = torch.Generator().manual_seed(seed)
    grads = [torch.randn(n, B, dtype=torch.float64, generator=generator).to(dtype) for n in sizes]
    return patterns, values, grads


def oracle(patterns, values, grads):
    """g_i = A_i g_{i+1} + u_i, sample by sample, in dense float64."""
    B = grads[-1].shape[1]
    g = [grads[-1].double().T]
    for p, v, u in zip(patterns[::-1], values[::-1], grads[-2::-1]):
        dense = p.csr(v.double().expand(B, -1).contiguous()).to_dense()
        step = (dense @ g[-1].unsqueeze(-1)).squeeze(-1)
        g.append(step if u is None else step + u.double().T)
    return [x.T for x in g[::-1]]


def check(scan, patterns, values, grads, tolerance=1e-12, device="cpu"):
    there = [u if u is None else u.to(device) for u in grads]
    found = scan.run([csr_step(p, v.to(device)) for p, v in zip(patterns, values)], there)
    assert all(g.device.type == device for g in found)
    for have, want in zip(found, oracle(patterns, values, grads), strict=True):
        assert have.shape == want.shape and relative_error(have, want) < tolerance
    return found


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 12), min_size=2, max_size=11), st.integers(1, 5),
    st.sets(st.integers(0, 10)), st.booleans(), st.integers(0, 1000),
)  # fmt: skip
def test_every_number_of_levels_gives_the_gradients_of_the_loop(
    device, sizes, B, shared, only_last, seed
):
    patterns, values, grads = chain(sizes, B, shared=shared, seed=seed)
    if only_last:
        grads = [None] * (len(grads) - 1) + grads[-1:]
    for levels in range((len(patterns) - 1).bit_length() + 1):
        check(LayerScan.of(patterns, levels, batch=B), patterns, values, grads, device=device)


def test_products_beyond_the_budget_are_walked_and_said():
    patterns, values, grads = chain([20, 30, 25, 30, 20, 10, 15, 12, 9], 3)
    whole = LayerScan.of(patterns, 3, batch=3, dtype=torch.float64)
    assert len(whole.nodes()) == 7 and all(found for *_, found, _ in whole.nodes())
    for budget in (0, 20_000, 60_000, 10**9):
        scan = LayerScan.of(patterns, 3, budget=budget, batch=3, dtype=torch.float64)
        formed = [composition for *_, composition, _ in scan.nodes() if composition]
        plans = [plan for composition in formed for _, plan in composition.products]
        assert sum(p.bytes + 3 * 8 * p.pattern.nnz for p in plans) <= budget
        assert (len(formed) == 7) == (budget == 10**9) and (len(formed) == 0) == (budget == 0)
        assert ("walked: budget" in scan.describe()) == (len(formed) < 7)
        assert scan.describe().count("FLOPs") == len(formed)
        check(scan, patterns, values, grads)


def counting(apply, applied, i):
    def counted(g):
        applied.append(i)
        return apply(g)

    return counted


def test_applies_each_layer_as_often_as_the_tree_needs():
    """Linear: each once. A tree: up-sweeps multiply, and each state is reached by one product."""
    patterns, values, grads = chain([8] * 9, 2)
    grads = [None] * 8 + grads[-1:]
    counts = {}
    for levels, wanted in ((0, 8), (1, 4), (2, 4), (3, 4)):
        applied = []
        steps = [csr_step(p, v) for p, v in zip(patterns, values)]
        for i, step in enumerate(steps):
            step.apply = counting(step.apply, applied, i)
        LayerScan.of(patterns, levels).run(steps, grads)
        counts[levels] = len(applied)
        assert counts[levels] == wanted


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize(
    "diagonal, g", [([1e20, 1, 1, 1], [0, 1, 2, 3]), ([1e-18] * 4, [1e38] * 4)]
)
def test_a_product_out_of_range_never_spoils_a_gradient_in_range(diagonal, g, levels, device):
    patterns, values, _ = chain([4, 4, 4, 4, 4], 2, density=1.0, dtype=torch.float32)
    for v in values:
        v.view(2, 4, 4).copy_(torch.diag(torch.tensor(diagonal)))
    grads = [None] * 4 + [torch.tensor(g, dtype=torch.float32).unsqueeze(1).repeat(1, 2)]
    scan = LayerScan.of(patterns, levels)
    check(scan, patterns, values, grads, 1e-6, device)
    assert scan.fallbacks == 2  # the level above has nothing to multiply


def test_is_what_the_reference_tree_computes():
    from bppsa_lightning.reference import blelloch_scan

    patterns, values, grads = chain([5] * 7, 2, density=1.0)
    jac_t = torch.stack([v.view(2, 5, 5) for v in values])
    g = torch.stack([u.T for u in grads])
    for levels in range(4):
        found = LayerScan.of(patterns, levels).run(
            [csr_step(p, v) for p, v in zip(patterns, values)], grads
        )
        wanted = blelloch_scan(jac_t, g, levels)
        assert relative_error(torch.stack([x.T for x in found]), wanted) < 1e-13


PATTERNS, VALUES, GRADS = chain([4, 5, 6], 2)
STEPS = [csr_step(p, v) for p, v in zip(PATTERNS, VALUES)]
SCAN = LayerScan.of(PATTERNS, 1)
REFUSED = [
    (lambda: LayerScan.of([], 0), "patterns: found none"),
    (lambda: LayerScan.of(PATTERNS[::-1], 0), "patterns: found 6 columns of step 0 and 4 rows"),
    (lambda: LayerScan.of(PATTERNS, 2), "levels: found 2, wanted 0 to 1"),
    (lambda: SCAN.run(STEPS[:1], GRADS), "steps: found 1, wanted 2"),
    (lambda: SCAN.run(STEPS, [*GRADS[:2], None]), "grads: found 3, wanted 3, the last"),
    (lambda: SCAN.run(STEPS, [None, GRADS[0], GRADS[2]]), "grads: found shape .* at 1"),
    (lambda: csr_step(PATTERNS[0], VALUES[1][:, :-1]), r"values: found shape .* wanted \(nnz,\)"),
    (lambda: apply_csr(PATTERNS[0], VALUES[0][:, 1:], GRADS[1]), "values: found shape .* nnz = "),
    (lambda: apply_csr(PATTERNS[0], VALUES[0], GRADS[0]), r"g: found shape \(4, 2\), wanted"),
    (
        lambda: apply_csr(PATTERNS[0], VALUES[0], GRADS[1].to("meta")),
        "g: found on meta, wanted on the values' cpu",
    ),
]


@pytest.mark.parametrize("call, message", REFUSED)
def test_what_does_not_fit_is_refused_with_its_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_numbers_of_two_dtypes_are_refused():
    with pytest.raises(TypeError, match="g: found dtype torch.float32, wanted the values' torch"):
        apply_csr(PATTERNS[0], VALUES[0], GRADS[1].float())


def test_is_public():
    assert {"LayerScan", "Step", "csr_step"} == set(depth.__all__)
    assert "apply_csr" in jacobians.__all__

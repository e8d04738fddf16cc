"""bl.ops.reverse_scan: against the reference, gradient, opcheck, torch.compile; errors; range."""

import pytest
import torch
from support.cases import (
    DEVICES,
    DTYPES,
    SHAPES,
    chain,
    layouts,
    plans,
    relative_error,
)

import bppsa_lightning as bl
from bppsa_lightning import planner
from bppsa_lightning.reference import blelloch_scan
from bppsa_lightning.reference import reverse_scan as oracle


def scan(jac_t, grad, algorithm, chunk, levels, adjoint=False):
    return torch.ops.bppsa.reverse_scan(jac_t, grad, algorithm, chunk, levels, adjoint)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_plan_and_layout_equals_the_oracle(shape, dtype, device):
    jac_t, grad = chain(*shape, dtype, device)
    wanted = oracle(jac_t.double(), grad.double())
    for plan in plans(shape[0]):
        for name, jac_view, grad_view in layouts(jac_t, grad):
            found = scan(jac_view, grad_view, *plan)
            assert found.shape == grad.shape and found.dtype == dtype and found.is_contiguous()
            assert relative_error(found, wanted) < DTYPES[dtype], (plan, name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_adjoint_runs_time_the_other_way_with_transposed_matrices(shape, device):
    jac_t, grad = chain(*shape, device=device)
    wanted = oracle(jac_t.flip(0).mT, grad.flip(0)).flip(0)
    for plan in plans(shape[0]):
        for name, jac_view, grad_view in layouts(jac_t, grad):
            found = scan(jac_view, grad_view, *plan, adjoint=True)
            assert relative_error(found, wanted) < 1e-13, (plan, name)


@pytest.mark.parametrize("levels", range(5))
def test_the_reference_of_the_tree_is_the_loop(levels):
    jac_t, grad = chain(13, 2, 3)
    assert relative_error(blelloch_scan(jac_t, grad, levels), oracle(jac_t, grad)) < 1e-14


def test_is_not_the_oracle_of_a_wrong_chain():
    """The comparison can fail: one Jacobian off by 1e-6 is seen."""
    jac_t, grad = chain(13, 2, 20)
    wanted = oracle(jac_t, grad)
    jac_t[6, 1, 3, 4] += 1e-6
    assert relative_error(bl.ops.reverse_scan(jac_t, grad), wanted) > 1e-13


ALGORITHMS = [("linear", None), ("chunked", None), ("blelloch", None), ("blelloch", 1), ("auto", 2)]


@pytest.mark.parametrize("algorithm, levels", ALGORITHMS)
def test_gradients_of_first_and_second_order(algorithm, levels):
    jac_t, grad = (t.requires_grad_() for t in chain(5, 2, 3))

    def function(jac_t, grad):
        return bl.ops.reverse_scan(jac_t, grad, algorithm, levels)

    assert torch.autograd.gradcheck(function, (jac_t, grad))
    assert torch.autograd.gradgradcheck(function, (jac_t, grad))


def test_gradients_of_strided_inputs_and_of_one_input_only():
    jac_t, grad = chain(5, 2, 3)
    for _, jac_view, grad_view in layouts(jac_t, grad):
        for wants in ((True, False), (False, True)):
            inputs = [t.detach().requires_grad_(w) for t, w in zip((jac_view, grad_view), wants)]
            assert torch.autograd.gradcheck(bl.ops.reverse_scan, inputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("plan", [("linear", 0, 0), ("chunked", 2, 0), ("blelloch", 0, 2)], ids=str)
@pytest.mark.parametrize("adjoint", [False, True])
def test_opcheck(plan, dtype, adjoint):
    jac_t, grad = (t.requires_grad_() for t in chain(5, 2, 3, dtype))
    # Second-order checks of 16-bit types compare against a tolerance that rounding exceeds.
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    if dtype.itemsize > 2:
        checks += ("test_aot_dispatch_dynamic",)
    operator = torch.ops.bppsa.reverse_scan.default
    torch.library.opcheck(operator, (jac_t, grad, *plan, adjoint), test_utils=checks)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_whole(dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda j, u: bl.ops.reverse_scan(j, u).sin(), fullgraph=True, dynamic=dynamic
    )
    for T in (5, 9):
        jac_t, grad = (t.requires_grad_() for t in chain(T, 2, 3))
        wanted = bl.ops.reverse_scan(jac_t, grad).sin()
        found = compiled(jac_t, grad)
        assert relative_error(found, wanted) < 1e-13
        pairs = zip(
            torch.autograd.grad(found.sum(), (jac_t, grad)),
            torch.autograd.grad(wanted.sum(), (jac_t, grad)),
        )
        assert all(relative_error(a, b) < 1e-12 for a, b in pairs)


@pytest.mark.parametrize("algorithm", ["linear", "chunked", "blelloch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("gain", [0.1, 3.0])
def test_products_out_of_range_never_spoil_a_gradient_in_range(gain, dtype, algorithm):
    """Rank-one growth that the incoming gradient does not see: inf * 0 in a naive product."""
    T, B, H = 1024, 2, 4
    jac_t = torch.zeros(T, B, H, H, dtype=dtype)
    jac_t[:, :, 0, 0] = gain**4  # overflows (underflows) float32 after 19 steps, float64 after 147
    jac_t[:, :, 1:, 1:] = torch.eye(H - 1, dtype=dtype)
    grad = torch.zeros(T + 1, B, H, dtype=dtype)
    grad[-1, :, 1:] = 1.0
    if gain < 1:
        grad *= 1e30  # what is left of it after the shrinking steps is still a number
    found = bl.ops.reverse_scan(jac_t, grad, algorithm)
    assert torch.equal(found, oracle(jac_t, grad))


@pytest.mark.parametrize("algorithm", ["linear", "chunked", "blelloch"])
def test_exploding_gradients_stay_as_finite_as_in_a_plain_loop(algorithm):
    jac_t, grad = chain(1024, 3, 8, torch.float32, gain=3.0)
    grad *= 1e-30
    plain = oracle(jac_t, grad)
    found = bl.ops.reverse_scan(jac_t, grad, algorithm)
    # Within a factor H of the largest float, finite or not depends on the order of a sum.
    in_range = (plain.abs() < 1e36).all(-1)
    assert in_range[-40:].all() and not in_range.all()
    assert found[in_range].isfinite().all()
    truth = oracle(jac_t.double(), grad.double())
    ours, stock = ((t.double() - truth)[in_range].abs().amax(-1) for t in (found, plain))
    assert ours.max() <= 2 * stock.max()
    size = truth[in_range].abs().amax(-1)
    assert (ours / size).norm() <= 2 * (stock / size).norm()


@pytest.mark.parametrize("algorithm", ["linear", "chunked", "blelloch"])
def test_nan_and_inf_travel_as_in_a_plain_loop(algorithm):
    jac_t, grad = chain(50, 2, 3)
    jac_t[20, 0, 1, 1] = float("nan")
    grad[30, 1, 2] = float("inf")
    wanted = oracle(jac_t, grad)
    found = bl.ops.reverse_scan(jac_t, grad, algorithm)
    assert torch.equal(found.isfinite(), wanted.isfinite())
    assert relative_error(found[21:, 0], wanted[21:, 0]) < 1e-13


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [5, 7, 9, 20, 33, 41])
def test_an_infinite_number_reaches_its_own_row_alone(size, dtype):
    """Rows that no whole number of vectors fills: of the last one, some numbers are read twice."""
    for place in range(size):
        jac_t, grad = chain(1, 1, size, dtype)
        jac_t[0, 0, size // 2, place] = float("inf")
        grad[1] = 1.0  # inf, and not inf times a zero of padding
        for _, jac_view, grad_view in layouts(jac_t, grad):
            found = scan(jac_view, grad_view, "linear", 0, 0)[0, 0]
            assert found[size // 2] == float("inf") and found.isfinite().sum() == size - 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(300, 5, 20), (70_000, 2, 3), (20, 1, 137)], ids=str)
def test_matrices_that_no_cache_holds(shape, dtype):
    """They are fetched ahead."""
    jac_t, grad = chain(*shape, dtype)
    wanted = oracle(jac_t.double(), grad.double())
    for name, jac_view, grad_view in layouts(jac_t, grad):
        for plan in (("linear", 0, 0), ("chunked", shape[0] // 7, 0)):
            found = scan(jac_view, grad_view, *plan)
            assert relative_error(found, wanted) < DTYPES[dtype], (plan, name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("algorithm", ["linear", "chunked", "blelloch"])
def test_long_chains_and_the_same_bits_every_time(algorithm, device):
    jac_t, grad = chain(70_000, 1, 3, torch.float32, device)
    first = bl.ops.reverse_scan(jac_t, grad, algorithm)
    assert relative_error(first[-2000:], oracle(jac_t[-1999:], grad[-2000:])) < 1e-5
    assert torch.equal(first, bl.ops.reverse_scan(jac_t, grad, algorithm))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sixteen_bits_are_widened_and_rounded_as_torch_does(dtype, device):
    every = torch.arange(-(2**15), 2**15, dtype=torch.int16, device=device).view(dtype)
    nothing = torch.empty(0, 2**16, 1, 1, dtype=dtype, device=device)
    kept = bl.ops.reverse_scan(nothing, every.view(1, -1, 1)).flatten()
    assert torch.equal(kept.isnan(), every.isnan())
    number = ~every.isnan()
    assert torch.equal(kept[number].view(torch.int16), every[number].view(torch.int16))

    # A product of two 16-bit numbers is exact in float32; only its rounding is ours.
    other = every[torch.randperm(2**16, generator=torch.Generator().manual_seed(0)).to(device)]
    grad = torch.stack([torch.zeros_like(every), other]).view(2, -1, 1)
    found = bl.ops.reverse_scan(every.view(1, -1, 1, 1), grad)[0].flatten()
    wanted = (every.float() * other.float() + 0.0).to(dtype)
    assert torch.equal(found.isnan(), wanted.isnan())
    number = ~wanted.isnan()
    assert torch.equal(found[number], wanted[number])


JAC_T, GRAD = chain(5, 2, 3)
BAD_CALLS = {
    "no tensor": (([1.0], GRAD), TypeError, "jac_t: found list, wanted a torch.Tensor"),
    "sparse": ((JAC_T, GRAD.to_sparse()), TypeError, "grad: found layout"),
    "integers": ((JAC_T.long(), GRAD), TypeError, "jac_t: found dtype torch.int64"),
    "three dimensions": ((JAC_T[0], GRAD), ValueError, r"jac_t: found shape \(2, 3, 3\), wanted"),
    "not square": ((JAC_T[..., :2], GRAD), ValueError, r"jac_t: found shape \(5, 2, 3, 2\)"),
    "no state": ((JAC_T[..., :0, :0], GRAD[..., :0]), ValueError, "with H >= 1"),
    "T, not T+1": (
        (JAC_T, GRAD[1:]),
        ValueError,
        r"grad: found shape \(5, 2, 3\), wanted",
    ),
    "other batch": ((JAC_T, GRAD[:, :1]), ValueError, "grad: found shape"),
    "other dtype": ((JAC_T, GRAD.float()), TypeError, "grad: found dtype torch.float32, wanted"),
    "other device": ((JAC_T, GRAD.to("meta")), ValueError, "grad: found on meta, wanted on"),
    "algorithm": ((JAC_T, GRAD, "fast"), ValueError, "algorithm: found 'fast', wanted one of auto"),
    "algorithm type": ((JAC_T, GRAD, 3), TypeError, "algorithm: found int, wanted str"),
    "levels high": ((JAC_T, GRAD, "blelloch", 4), ValueError, r"levels: found 4, wanted 0 to .* 3"),
    "levels low": ((JAC_T, GRAD, "blelloch", -1), ValueError, "levels: found -1"),
    "levels type": ((JAC_T, GRAD, "blelloch", 1.0), TypeError, "levels: found float, wanted int"),
    "levels misplaced": ((JAC_T, GRAD, "linear", 1), ValueError, "levels: found 1 with algorithm="),
}


@pytest.mark.parametrize("arguments, error, message", BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_bad_calls_name_argument_found_and_wanted(arguments, error, message):
    with pytest.raises(error, match=message):
        bl.ops.reverse_scan(*arguments)


def test_kernel_arguments_are_checked_below_python_too():
    with pytest.raises(RuntimeError, match="algorithm: found 'fast'"):
        scan(JAC_T, GRAD, "fast", 0, 0)
    with pytest.raises(RuntimeError, match="chunk: found 0"):
        scan(JAC_T, GRAD, "chunked", 0, 0)
    with pytest.raises(RuntimeError, match="do not agree"):
        scan(JAC_T, GRAD[1:], "linear", 0, 0)


def test_meta_tensors_and_the_planner_agree_on_levels():
    jac_t, grad = (t.to("meta") for t in (JAC_T, GRAD))
    assert bl.ops.reverse_scan(jac_t, grad).shape == GRAD.shape
    assert [planner.max_levels(T) for T in (0, 1, 2, 3, 4, 5, 1024, 1025)] == [
        0, 0, 1, 2, 2, 3, 10, 11,
    ]  # fmt: skip

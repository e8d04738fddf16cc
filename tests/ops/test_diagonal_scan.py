"""bl.ops.diagonal_scan and linear_recurrence: the reference, gradients, opcheck, compile, range.

The CUDA kernels are tested on a device, where there is one, and through csrc/testing/emulator.h,
which runs their own sources on the host. T steps, B batch, H state.
"""

import itertools
import math

import pytest
import torch
from support.cases import DEVICES, DTYPES, plans, relative_error
from support.diagonal import MANY, adjoint_oracle, chain, each_hard_plan, each_real, layouts, scan
from support.emulation import DiagonalScanRequest, compiled, plan_of, run, scan_request

import bppsa_lightning as bl
from bppsa_lightning import planner
from bppsa_lightning.ops import diagonal_scan, linear_recurrence
from bppsa_lightning.planner import choose
from bppsa_lightning.reference import diagonal_scan as oracle


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", MANY, ids=str)
def test_every_plan_and_layout_equals_the_oracle(shape, dtype, device):
    for name, decay, grad in layouts(*chain(*shape, dtype, device)):
        wanted = oracle(decay.double(), grad.double())
        wanted_adjoint = adjoint_oracle(decay.double(), grad.double())
        for plan in plans(shape[0]):
            found = scan(decay, grad, *plan)
            assert found.shape == grad.shape and found.dtype == dtype and found.is_contiguous()
            assert relative_error(found, wanted) < DTYPES[dtype], (plan, name)
            found = scan(decay, grad, *plan, adjoint=True)
            assert relative_error(found, wanted_adjoint) < DTYPES[dtype], (plan, name, "adjoint")


def test_is_not_the_oracle_of_a_wrong_chain():
    decay, grad = chain(13, 2, 20)
    wanted = oracle(decay, grad)
    decay[6, 1, 3] += 1e-6
    assert relative_error(diagonal_scan(decay, grad), wanted) > 1e-13


def test_is_the_reverse_scan_of_diagonal_matrices():
    decay, grad = chain(9, 2, 5)
    wanted = bl.ops.reverse_scan(torch.diag_embed(decay), grad)
    assert relative_error(diagonal_scan(decay, grad), wanted) < 1e-14


def test_an_element_knows_nothing_of_its_neighbours():
    """Bits do not depend on where in a vector, a block or a thread's share an element is."""
    decay, grad = chain(40, 3, 50, torch.float32)
    decay[11, 1, 7] = 1e30  # untrusted where it is in a product
    for plan in (("linear",), ("chunked", 8), ("blelloch", 0, 3)):
        whole = scan(decay, grad, *plan)
        for b, h in ((0, 0), (0, 49), (1, 7), (1, 8), (2, 33)):
            at = (slice(None), slice(b, b + 1), slice(h, h + 1))
            assert torch.equal(scan(decay[at], grad[at], *plan), whole[at])


ALGORITHMS = [("linear", None), ("chunked", None), ("blelloch", None), ("blelloch", 1), ("auto", 2)]


@pytest.mark.parametrize("algorithm, levels", ALGORITHMS)
def test_gradients_of_first_and_second_order(algorithm, levels):
    inputs = [t.requires_grad_() for t in chain(6, 2, 3)]

    def function(decay, grad):
        return diagonal_scan(decay, grad, algorithm, levels)

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_gradients_of_strided_inputs_and_of_one_input_only():
    for _, decay, grad in layouts(*chain(5, 2, 3)):
        for wants in ((True, False), (False, True)):
            inputs = [t.detach().clone().requires_grad_(w) for t, w in zip((decay, grad), wants)]
            assert torch.autograd.gradcheck(diagonal_scan, inputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("plan", [("linear", 0, 0), ("chunked", 2, 0), ("blelloch", 0, 2)], ids=str)
@pytest.mark.parametrize("adjoint", [False, True])
def test_opcheck(plan, dtype, adjoint):
    inputs = [t.requires_grad_() for t in chain(5, 2, 3, dtype)]
    # Second-order checks of 16-bit types compare against a tolerance that rounding exceeds.
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    if dtype.itemsize > 2:
        checks += ("test_aot_dispatch_dynamic",)
    operator = torch.ops.bppsa.diagonal_scan.default
    torch.library.opcheck(operator, (*inputs, *plan, adjoint), test_utils=checks)


@pytest.mark.parametrize(
    "function, dynamic, backend",
    [
        pytest.param(diagonal_scan, True, "inductor", marks=pytest.mark.slow),
        (diagonal_scan, False, "aot_eager"),
        (linear_recurrence, True, "aot_eager"),
        (linear_recurrence, False, "aot_eager"),
    ],
)
def test_compiles_whole(function, dynamic, backend):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda a, u: function(a, u).sin(), fullgraph=True, dynamic=dynamic, backend=backend
    )
    for T in (5, 9):
        decay, grad = chain(T, 2, 3)
        grad = grad if function is diagonal_scan else grad[1:]
        inputs = [decay.requires_grad_(), grad.requires_grad_()]
        wanted, found = function(*inputs).sin(), compiled(*inputs)
        assert relative_error(found, wanted) < 1e-13
        pairs = zip(*(torch.autograd.grad(y.sum(), inputs) for y in (found, wanted)))
        assert all(relative_error(a, b) < 1e-12 for a, b in pairs)


@each_hard_plan
@each_real
@pytest.mark.parametrize("device", DEVICES)
def test_products_that_overflow_where_gradients_do_not(dtype, plan, device):
    """Growth that no gradient sees: inf * 0 in a naive product."""
    decay = torch.ones(2000, 2, 5, dtype=dtype)
    decay[:, :, 0] = 3.0  # its gradient is 0 throughout
    decay[1000:, :, 1] = 3.0
    decay[:1000, :, 1] = 0.0
    decay[:, 1, 2] = 0.5
    grad = torch.zeros(2001, 2, 5, dtype=dtype)
    grad[::7, :, 1:] = 1.0
    grad[1000:, :, 1] = 0.0
    found = scan(decay.to(device), grad.to(device), *plan).cpu()
    wanted = oracle(decay, grad)
    assert found.isfinite().all()
    exact = [0, 1, 3, 4]
    assert torch.equal(found[..., exact], wanted[..., exact])
    assert relative_error(found, wanted) < DTYPES[dtype]


@each_hard_plan
@each_real
@pytest.mark.parametrize("device", DEVICES)
def test_products_that_underflow_where_gradients_do_not(dtype, plan, device):
    """Powers of two: to the last bit, also where a product falls below the smallest number."""
    tiny, large = (0.5, 2.0**120) if dtype == torch.float32 else (2.0**-6, 2.0**1000)
    decay = torch.full((2000, 1, 3), tiny, dtype=dtype)
    decay[1200:] = 1
    decay[:1000:2, :, 1], decay[1:1000:2, :, 1] = tiny**20, tiny**-20  # down and up again
    decay[900, :, 2] = 0
    grad = torch.zeros(2001, 1, 3, dtype=dtype)
    grad[400] = grad[512] = grad[1024] = grad[2000] = large
    grad[:1000, :, 1] = 0  # or the order of a sum would show
    found = scan(decay.to(device), grad.to(device), *plan).cpu()
    wanted = oracle(decay, grad)
    assert wanted[300].all()
    assert torch.equal(found, wanted)


@each_hard_plan
@pytest.mark.parametrize("device", DEVICES)
def test_error_is_at_most_twice_that_of_the_loop(plan, device):
    """Growing and shrinking stretches, in a sum that cancels."""
    decay, grad = chain(2000, 2, 20, torch.float32)
    decay = 1 + 0.05 * decay
    decay[:, 1] *= 0.98
    truth, plain = oracle(decay.double(), grad.double()), oracle(decay, grad)
    found = scan(decay.to(device), grad.to(device), *plan).cpu()
    ours, stock = ((t.double() - truth).abs() for t in (found, plain))
    assert ours.max() <= 2 * stock.max()
    assert ours.norm() <= 2 * stock.norm()


@each_hard_plan
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("device", DEVICES)
def test_nan_and_inf_travel_as_in_a_plain_loop(bad, plan, device):
    decay, grad = chain(1500, 2, 5)
    decay = 1 + 0.01 * decay
    decay[20, 0, 1] = bad
    grad[1300, 1, 2] = bad
    decay[700, 1, 2] = 0
    wanted = oracle(decay, grad)
    found = scan(decay.to(device), grad.to(device), *plan).cpu()
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(kind(found), kind(wanted))
    finite = wanted.isfinite()
    assert relative_error(found[finite], wanted[finite]) < 1e-12


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("algorithm", ["linear", "chunked", "blelloch", "auto"])
@pytest.mark.parametrize("H", [1, 5])
def test_long_chains_and_the_same_bits_every_time(H, algorithm, device):
    decay, grad = chain(200_000, 1, H, torch.float32, device)
    first, again = (diagonal_scan(decay, grad, algorithm) for _ in range(2))
    assert torch.equal(first, again)
    decay, grad = decay.cpu().double(), grad.cpu().double()
    end = oracle(decay[-1999:], grad[-2000:])
    assert relative_error(first[-2000:], end) < 1e-6
    # 1000 steps forget what an oracle that starts in the middle does not know.
    middle = oracle(decay[100_000:102_000], grad[100_000:102_001])[:1000]
    assert relative_error(first[100_000:101_000], middle) < 1e-6


def test_threads_do_not_change_the_bits():
    decay, grad = chain(3000, 3, 50, torch.float32)
    threads = torch.get_num_threads()
    plans = (("linear",), ("chunked", 37), ("blelloch", 0, 4))
    wanted = [scan(decay, grad, *plan) for plan in plans]
    try:
        for n in (1, 3, 5):
            torch.set_num_threads(n)
            assert all(torch.equal(scan(decay, grad, *p), w) for p, w in zip(plans, wanted))
    finally:
        torch.set_num_threads(threads)


# --- planner ---------------------------------------------------------------------------------


def planned(T, N, algorithm="auto", levels=None):
    cpu = torch.device("cpu")
    return planner.plan(planner.Request(planner.DIAGONAL, T, N, 1, cpu, algorithm, levels))


def test_the_planner_divides_time_only_where_workers_would_idle(monkeypatch):
    few, many = 2, 16

    def choice(T, N, workers):
        monkeypatch.setattr(choose, "workers", lambda device: workers)
        return planned(T, N).algorithm

    assert choice(200_000, 1, many) == choice(200_000, 20, many) == "chunked"
    assert choice(100, 20, many) == choice(1000, 10_000, many) == choice(0, 5, many) == "linear"
    assert choice(1000, 20, few) == choice(1000, 10_000, few) == "linear"


@pytest.mark.parametrize("T", [0, 1, 2, 9, 5000])
def test_the_planner_obeys(T):
    for algorithm in ("linear", "chunked", "blelloch"):
        plan = planned(T, 6, algorithm)
        assert plan.algorithm == algorithm and plan.reason == "as asked"
    assert planned(T, 6, "auto", 0).algorithm == "blelloch"


# --- errors ----------------------------------------------------------------------------------

DECAY, GRAD = chain(5, 2, 3)
X = GRAD[1:]
BAD_SCANS = {
    "no tensor": (([1.0], GRAD), TypeError, "decay: found list, wanted a torch.Tensor"),
    "sparse": ((DECAY, GRAD.to_sparse()), TypeError, "grad: found layout"),
    "integers": ((DECAY.long(), GRAD), TypeError, "decay: found dtype torch.int64"),
    "two dimensions": ((DECAY[0], GRAD), ValueError, r"decay: found shape \(2, 3\), wanted"),
    "no state": ((DECAY[..., :0], GRAD[..., :0]), ValueError, "with H >= 1"),
    "T, not T+1": ((DECAY, X), ValueError, r"grad: found shape \(5, 2, 3\), wanted \(T\+1, B, H\)"),
    "other batch": ((DECAY, GRAD[:, :1]), ValueError, "grad: found shape"),
    "other dtype": ((DECAY, GRAD.float()), TypeError, "grad: found dtype torch.float32, wanted"),
    "other device": ((DECAY, GRAD.to("meta")), ValueError, "grad: found on meta, wanted on"),
    "algorithm": ((DECAY, GRAD, "fast"), ValueError, "algorithm: found 'fast', wanted one of auto"),
    "algorithm type": ((DECAY, GRAD, 3), TypeError, "algorithm: found int, wanted str"),
    "levels high": ((DECAY, GRAD, "blelloch", 4), ValueError, r"levels: found 4, wanted 0 to .* 3"),
    "levels low": ((DECAY, GRAD, "blelloch", -1), ValueError, "levels: found -1"),
    "levels type": ((DECAY, GRAD, "blelloch", 1.0), TypeError, "levels: found float, wanted int"),
    "levels misplaced": ((DECAY, GRAD, "linear", 1), ValueError, "levels: found 1 with algorithm="),
}
BAD_RECURRENCES = {
    "no tensor": ((0.5, X), TypeError, "decay: found float, wanted a torch.Tensor"),
    "no x": ((DECAY, None), TypeError, "x: found NoneType, wanted a torch.Tensor"),
    "no step": ((DECAY[:0], X[:0]), ValueError, "with T >= 1"),
    "two dimensions": ((DECAY, X[0]), ValueError, r"x: found shape \(2, 3\), wanted \(T, B, H\)"),
    "no broadcast": ((DECAY[:2], X), ValueError, r"decay: found shape \(2, 2, 3\), wanted x's"),
    "too many": ((DECAY[None], X), ValueError, r"decay: found shape \(1, 5, 2, 3\)"),
    "decay's dtype": (
        (DECAY.float(), X),
        TypeError,
        "decay: found dtype torch.float32, wanted x's",
    ),
    "initial": ((DECAY, X, X), ValueError, r"initial: found shape \(5, 2, 3\), wanted \(B, H\)"),
    "initial's dtype": ((DECAY, X, X[0].half()), TypeError, "initial: found dtype torch.float16"),
    "algorithm": ((DECAY, X, None, "fast"), ValueError, "algorithm: found 'fast', wanted one of"),
}


@pytest.mark.parametrize("arguments, error, message", BAD_SCANS.values(), ids=BAD_SCANS.keys())
def test_bad_scans_name_argument_found_and_wanted(arguments, error, message):
    with pytest.raises(error, match=message):
        diagonal_scan(*arguments)


@pytest.mark.parametrize(
    "arguments, error, message", BAD_RECURRENCES.values(), ids=BAD_RECURRENCES.keys()
)
def test_bad_recurrences_name_argument_found_and_wanted(arguments, error, message):
    with pytest.raises(error, match=message):
        linear_recurrence(*arguments)


def test_kernel_arguments_are_checked_below_python_too():
    with pytest.raises(RuntimeError, match="algorithm: found 'fast'"):
        scan(DECAY, GRAD, "fast")
    with pytest.raises(RuntimeError, match="chunk: found 0"):
        scan(DECAY, GRAD, "chunked")
    with pytest.raises(RuntimeError, match="shapes or dtypes of decay and grad"):
        scan(DECAY, X, "linear")


# --- the CUDA kernels on the host --------------------------------------------------------------


@pytest.fixture(scope="session")
def emulator():
    driver = compiled("scans").emulate_diagonal

    def emulate(decay, grad, algorithm, chunk=0, levels=0, adjoint=False, **limits):
        """g and the device, which knows the launches and how many products were not trusted."""
        out = torch.full(grad.shape, math.nan, dtype=grad.dtype)
        request = scan_request(DiagonalScanRequest, decay, grad, out, adjoint)
        plan = plan_of(algorithm, chunk, levels)
        return out, run(driver, request, plan, **{"processors": 2} | limits)

    return emulate


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", MANY, ids=str)
def test_cuda_on_the_host_equals_the_oracle(shape, dtype, emulator):
    tolerance = {torch.float32: 3e-6}.get(dtype, DTYPES[dtype])
    for (name, decay, grad), adjoint in itertools.product(
        layouts(*chain(*shape, dtype)), (False, True)
    ):
        wanted = (adjoint_oracle if adjoint else oracle)(decay.double(), grad.double())
        for plan in plans(shape[0]):
            found, device = emulator(decay, grad, *plan, adjoint)
            assert relative_error(found, wanted) < tolerance, (plan, name, adjoint)
            assert device.untrusted == 0


@pytest.mark.slow
@each_hard_plan
@each_real
def test_cuda_on_the_host_keeps_the_range(dtype, plan, emulator):
    decay = torch.ones(2000, 1, 4, dtype=dtype)
    decay[:, :, 0] = 3.0
    decay[:, :, 1] = 0.5
    decay[1::2, :, 2], decay[::2, :, 2] = 2.0**-100, 2.0**100
    decay[700:710, :, 3] = 2.0**110  # more than a float64 holds
    grad = torch.zeros(2001, 1, 4, dtype=dtype)
    grad[-1, :, 1] = 2.0**100
    grad[::7, :, 2] = 1.0
    grad[:700, :, 3] = 1.0
    found, device = emulator(decay, grad, *plan)
    assert torch.equal(found, oracle(decay, grad))
    assert (device.untrusted > 0) == (plan != ("linear",))


@each_hard_plan
def test_cuda_limits_of_the_device_change_nothing(plan, emulator):
    decay, grad = chain(300, 3, 30, torch.float32)
    wanted, _ = emulator(decay, grad, *plan)
    for limits in ({"scratch_limit": 1}, {"grid_limit": 1}, {"processors": 1000}, {"seed": 4}):
        assert torch.equal(emulator(decay, grad, *plan, **limits)[0], wanted)


def test_cuda_launches(emulator):
    """A phase for each level up and each down; a tree stops where one node is left."""

    def launches(*plan):
        return emulator(*chain(12, 1, 3, torch.float32), *plan)[1].launches

    compose, merge, carry, replay = (
        [f"{phase} elements"] for phase in ("compose", "merge", "carry", "replay")
    )
    assert launches("linear") == launches("chunked", 12) == launches("blelloch", 0, 0) == replay
    assert launches("chunked", 5) == compose + carry + replay
    assert launches("blelloch", 0, 1) == compose + carry + replay
    assert launches("blelloch", 0, 3) == compose + 2 * merge + 3 * carry + replay
    assert launches("blelloch", 0, 9) == compose + 2 * merge + 4 * carry + replay

"""The CUDA scans of csrc/cuda, run thread by thread on the host.

There need be no GPU: the kernels' own sources are compiled with g++ against csrc/cuda/emulator.h,
which runs every CUDA thread as a fiber, in an order that depends on a seed, with scratch and shared
memory full of NaN. What is tested is what the device would do with the same indices, barriers,
shuffles and launches; what is not is named in the emulator.

Letters: T steps, B samples, H states.
"""

import ctypes
import math
from typing import NamedTuple

import pytest
import torch
from support.emulation import DEVICE, LIMITS, compiled, name_of, needs_gxx, numbers, pointers

pytestmark = needs_gxx


class Request(ctypes.Structure):
    """Mirrors Request in csrc/cuda/emulate.cpp."""

    _fields_ = [
        *pointers("jac_t", "grad", "out"),
        ("jac_strides", ctypes.c_int64 * 4),
        ("grad_strides", ctypes.c_int64 * 3),
        *numbers("T", "B", "H"),
        ("dtype", ctypes.c_char_p),
        ("algorithm", ctypes.c_char_p),
        *numbers("chunk", "levels", "adjoint"),
        *DEVICE,
    ]


class Result(NamedTuple):
    g: torch.Tensor
    launches: list  # names of the kernels, in order
    untrusted: int  # 0 where every product could stand for its steps


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return compiled("emulate.cpp", tmp_path_factory.mktemp("emulation"))


@pytest.fixture(scope="session")
def scan(library):
    def scan(
        jac_t, grad, algorithm="linear", chunk=1, levels=0, adjoint=False, hard=False, **device
    ):
        """Unless the chain is hard, every product must have been trusted: a wrong one would be
        walked around, and the result be right by luck."""
        T, B, H, _ = jac_t.shape
        out = torch.full((T + 1, B, H), math.nan, dtype=jac_t.dtype)
        request = Request(
            jac_t.data_ptr(),
            grad.data_ptr(),
            out.data_ptr(),
            jac_t.stride(),
            grad.stride(),
            *(T, B, H),
            *(name_of(jac_t.dtype), algorithm.encode(), chunk, levels, adjoint),
            **(LIMITS | device),
        )
        failed = library.emulate(ctypes.byref(request))
        assert not failed, request.launches.decode()
        assert hard or request.untrusted == 0
        return Result(out, request.launches.decode().splitlines(), request.untrusted)

    return scan


def oracle(jac_t, grad, adjoint=False):
    """The recurrence, one step after the other, in float64."""
    jac_t, g = jac_t.double(), grad.double().clone()
    steps = range(len(jac_t)) if adjoint else reversed(range(len(jac_t)))
    for i in steps:
        if adjoint:
            g[i + 1] += torch.einsum("brc,br->bc", jac_t[i], g[i])
        else:
            g[i] += torch.einsum("brc,bc->br", jac_t[i], g[i + 1])
    return g


def chain(T, B, H, dtype=torch.float32, gain=1.0, seed=0):
    """Random Jacobians that keep the length of a vector about as it is, times gain."""
    rng = torch.Generator().manual_seed(seed)
    jac_t = torch.randn(T, B, H, H, generator=rng, dtype=torch.float64) * gain / math.sqrt(H)
    grad = torch.randn(T + 1, B, H, generator=rng, dtype=torch.float64)
    return jac_t.to(dtype), grad.to(dtype)


def strided(jac_t, grad, layout):
    """The same numbers in another memory layout."""
    if layout == "transposed":  # columns contiguous; vectors with a stride between entries
        jac_t = jac_t.transpose(2, 3).contiguous().transpose(2, 3)
        grad = grad.transpose(1, 2).contiguous().transpose(1, 2)
    elif layout == "batch_first":
        jac_t = jac_t.transpose(0, 1).contiguous().transpose(0, 1)
        grad = grad.transpose(0, 1).contiguous().transpose(0, 1)
    elif layout == "sliced":  # inside a bigger tensor of NaN
        around = torch.full([2 * n + 1 for n in jac_t.shape], math.nan, dtype=jac_t.dtype)
        around[1::2, 1::2, 1::2, 1::2] = jac_t
        jac_t = around[1::2, 1::2, 1::2, 1::2]
        around = torch.full([2 * n + 1 for n in grad.shape], math.nan, dtype=grad.dtype)
        around[1::2, 1::2, 1::2] = grad
        grad = around[1::2, 1::2, 1::2]
    elif layout == "expanded":  # every sample and step shares one matrix and one vector
        jac_t = jac_t[:1, :1].expand(jac_t.shape) if len(jac_t) else jac_t
        grad = grad[:1, :1].expand(grad.shape)
    return jac_t, grad


def depth(T):
    return math.ceil(math.log2(T)) if T > 1 else 0


def algorithms(T):
    yield {"algorithm": "linear"}
    yield from ({"algorithm": "chunked", "chunk": chunk} for chunk in range(1, T + 2))
    yield from ({"algorithm": "blelloch", "levels": levels} for levels in range(depth(T) + 1))


TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 2e-5,
    torch.bfloat16: 1e-2,
    torch.float16: 1e-3,
}


def assert_close(g, expected, what=""):
    """Relative to the largest entry of each vector: so is the rounding of a product."""
    assert g.isfinite().all(), what
    error = (g.double() - expected).abs()
    scale = expected.abs().amax(-1, keepdim=True).clamp_min(1.0)
    assert (error <= TOLERANCE[g.dtype] * scale).all(), (what, (error / scale).max())


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("T", [0, 1, 2, 3, 5, 8, 13])
def test_every_chunk_and_every_level(scan, T, adjoint):
    jac_t, grad = chain(T, 2, 5)
    expected = oracle(jac_t, grad, adjoint)
    for how in algorithms(T):
        g = scan(jac_t, grad, adjoint=adjoint, **how).g
        assert_close(g, expected, how)


SCANS = [
    {"algorithm": "linear"},
    {"algorithm": "chunked", "chunk": 4},
    {"algorithm": "blelloch", "levels": 2},
    {"algorithm": "blelloch", "levels": 4},
]
each_scan = pytest.mark.parametrize("how", SCANS, ids=lambda how: "-".join(map(str, how.values())))
LAYOUTS = ["contiguous", "transposed", "batch_first", "sliced", "expanded"]


# 1 … 4: one lane a row; 10: more threads hold a tile than multiply it; 31 … 33: either side of the
# small shape; 37: two panels; 70, 131, 260: several pieces of columns, of rows, of both.
@each_scan
@pytest.mark.parametrize("H", [1, 2, 4, 7, 10, 20, 31, 32, 33, 37, 70, 131, 260])
def test_state_sizes(scan, H, how):
    jac_t, grad = chain(9 if H < 100 else 5, 2 if H < 100 else 1, H)
    for adjoint in (False, True):
        g = scan(jac_t, grad, adjoint=adjoint, **how).g
        assert_close(g, oracle(jac_t, grad, adjoint), adjoint)


@each_scan
@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides(scan, layout, adjoint, how):
    jac_t, grad = strided(*chain(11, 3, 6), layout)
    g = scan(jac_t, grad, adjoint=adjoint, **how).g
    assert_close(g, oracle(jac_t, grad, adjoint))


@each_scan
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_dtypes(scan, dtype, layout, how):
    for H in (5, 35):
        jac_t, grad = strided(*chain(9, 1, H, dtype), layout)
        g = scan(jac_t, grad, **how).g
        assert g.dtype == dtype
        assert_close(g, oracle(jac_t, grad))


@each_scan
def test_empty(scan, how):
    for T, B in ((0, 2), (3, 0), (0, 0)):
        jac_t, grad = chain(T, B, 70)
        g = scan(jac_t, grad, grid_limit=1, **how).g
        assert torch.equal(g, grad if T == 0 else g.new_empty(T + 1, B, 70))


@each_scan
def test_any_thread_order_gives_the_same_bits(scan, how):
    jac_t, grad = chain(11, 1, 13)
    for layout in ("contiguous", "transposed"):
        results = [scan(*strided(jac_t, grad, layout), seed=seed, **how).g for seed in range(5)]
        assert all(torch.equal(results[0], g) for g in results[1:])


@each_scan
def test_limits_of_the_device_change_nothing(scan, how):
    jac_t, grad = chain(11, 3, 6)
    g, launches, _ = scan(jac_t, grad, **how)
    again = scan(jac_t, grad, grid_limit=2, **how).g
    assert torch.equal(g, again)
    one_sample_a_time, more_launches, _ = scan(jac_t, grad, scratch_limit=1, **how)
    assert torch.equal(g, one_sample_a_time)
    assert len(more_launches) == len(launches) * (1 if how["algorithm"] == "linear" else 3)


@each_scan
@pytest.mark.parametrize("shared_limit", [24 * 1024, 16 * 1024, 512])
def test_little_shared_memory(scan, shared_limit, how):
    """7 panels, the last of one column; then no panel, but a walk; then a launch for each step."""
    jac_t, grad = chain(6, 1, 72)
    g, launches, _ = scan(jac_t, grad, shared_limit=shared_limit, **how)
    assert_close(g, oracle(jac_t, grad))
    assert ("wide step" in launches) == (shared_limit == 512)
    assert ("compose" in launches) == (shared_limit == 24 * 1024 and how["algorithm"] != "linear")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_few_samples_of_large_matrices_take_a_launch_a_step(scan, layout):
    jac_t, grad = strided(*chain(2, 1, 512), layout)
    for adjoint in (False, True):
        g, launches, _ = scan(jac_t, grad, adjoint=adjoint)
        assert launches == ["wide step"] * 3
        assert_close(g, oracle(jac_t, grad, adjoint))


def test_launches(scan):
    def launches(T, **how):
        return scan(*chain(T, 1, 3), **how).launches

    assert launches(12) == ["replay"]
    assert launches(12, algorithm="chunked", chunk=12) == ["replay"]
    assert launches(12, algorithm="chunked", chunk=6) == ["compose", "replay"]
    assert launches(12, algorithm="chunked", chunk=4) == ["compose", "carry", "replay"]
    assert launches(12, algorithm="blelloch", levels=0) == ["replay"]
    up_and_down = ["compose"] * 2 + ["carry"] * 2 + ["replay"]
    assert launches(12, algorithm="blelloch", levels=2) == up_and_down
    full_tree = ["compose"] * 3 + ["carry"] * 4 + ["replay"]  # nobody needs the root's product
    assert launches(12, algorithm="blelloch", levels=4) == full_tree


HARD = [
    {"algorithm": "linear"},
    {"algorithm": "chunked", "chunk": 32},
    {"algorithm": "chunked", "chunk": 200},
    {"algorithm": "blelloch", "levels": 4},
    {"algorithm": "blelloch", "levels": 10},
]
LONG = [HARD[2], HARD[4]]  # with products of 200 steps and more
each_hard_scan = pytest.mark.parametrize(
    "how", HARD, ids=lambda how: "-".join(map(str, how.values()))
)


@each_hard_scan
def test_products_that_overflow(scan, how):
    """Gain 3 in directions the gradient has no part in: products reach 3^1024, then inf * 0."""
    jac_t = torch.diag(torch.tensor([3.0, 0.9, 3.0])).expand(1024, 1, 3, 3).clone()
    jac_t[:, :, 1, 2] = 0.25  # fed by a direction whose gradient is zero
    grad = torch.zeros(1025, 1, 3)
    grad[::7, :, 1] = 1.0
    g, _, untrusted = scan(jac_t, grad, hard=True, **how)
    assert_close(g, oracle(jac_t, grad))
    assert (untrusted > 0) == (how in LONG)


@each_hard_scan
def test_gradients_near_the_largest_float(scan, how):
    """Random steps of gain 3, from a gradient so small that what they make of it stays finite."""
    jac_t, grad = chain(1024, 1, 4, gain=3.0)
    jac_t[60:] *= 0.1
    jac_t[500:560] *= 30
    grad = grad * 1e-20
    expected = oracle(jac_t, grad)
    assert expected.abs().max() < 3e38
    g = scan(jac_t, grad, hard=True, **how).g
    error = (g.double() - expected).abs().amax(-1) / expected.abs().amax(-1)
    assert error.max() < 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@each_hard_scan
def test_products_that_underflow(scan, how, dtype):
    """Products of 200 and of 256 steps are 0; what they act on is large enough to outlive them."""
    tiny, large = (0.5, 2.0**120) if dtype == torch.float32 else (2.0**-6, 2.0**1000)
    jac_t = (torch.eye(3, dtype=dtype) * tiny).repeat(1024, 1, 1, 1)
    jac_t[600:] = torch.eye(3, dtype=dtype)  # ordinary products come first
    grad = torch.zeros(1025, 1, 3, dtype=dtype)
    grad[400] = grad[512] = large
    expected = oracle(jac_t, grad)
    assert expected[[200, 256]].all()
    g, _, untrusted = scan(jac_t, grad, hard=True, **how)
    assert torch.equal(g, expected.to(dtype))
    assert (untrusted > 0) == (how in LONG)


@each_hard_scan
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_products_too_large_to_cancel(scan, how, dtype):
    """Of 2^80 + 1 the product keeps 2^80 alone; a walk never forms it."""
    big = 2.0**40 if dtype == torch.float32 else 2.0**300
    jac_t = torch.eye(2, dtype=dtype).repeat(1024, 1, 1, 1)
    jac_t[642, 0] = torch.tensor([[big, 1.0], [0.0, 1.0]], dtype=dtype)
    jac_t[643, 0] = torch.tensor([[big, big], [0.0, 1.0]], dtype=dtype)
    grad = torch.zeros(1025, 1, 2, dtype=dtype)
    grad[1024, 0] = torch.tensor([1.0, -1.0])
    g, _, untrusted = scan(jac_t, grad, hard=True, **how)
    assert torch.equal(g.double(), oracle(jac_t, grad))
    assert (untrusted > 0) == (how["algorithm"] != "linear")


@pytest.mark.parametrize("how", HARD[1:], ids=lambda how: "-".join(map(str, how.values())))
def test_nothing_is_hidden(scan, how):
    """A NaN or an infinity of plain backpropagation is there too, in the same places."""
    for bad in (math.nan, math.inf):
        jac_t, grad = chain(1024, 1, 3)
        grad[411, 0, 1] = bad
        expected = scan(jac_t, grad, hard=True).g
        g = scan(jac_t, grad, hard=True, **how).g
        assert not expected.isfinite().all()
        assert torch.equal(g.isnan(), expected.isnan())
        assert torch.equal(g.isinf(), expected.isinf())

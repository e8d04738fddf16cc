"""The CUDA kernels on sparse Jacobians, run on the host by csrc/testing/emulator.h.

The very sources that nvcc compiles, every CUDA thread a fiber: thread mappings, barriers, tiles of
samples, shared memory and the limits of grids, on the cases of the CPU kernels. The operators
around them are tested where a GPU is.
"""

import ctypes

import pytest
import torch
from support.cases import relative_error
from support.emulation import compiled, fields, mirror, numbers, pointers, run, storage, storage_of
from support.sparse_cases import (
    BATCHES,
    ELEMENTWISE,
    POOLS,
    PRODUCTS,
    beside,
    edges,
    product_case,
    random_pattern,
    values_of,
)

from bppsa_lightning import jacobians as J

TOLERANCES = {torch.float64: 1e-13, torch.float32: 2e-6}
each_dtype = pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)


# The structs of csrc/requests/jacobians.h.
CsrPattern = mirror("CsrPattern", pointers("crow", "col"))
Stride = mirror("Stride", numbers("sample", "entry"))
Axis = mirror("Axis", numbers("size", "out_size"), pointers("first", "out"))
PoolAxis = mirror("PoolAxis", numbers("kernel", "stride", "padding", "dilation"))
WeightRequest = mirror(
    "WeightRequest", storage, numbers("rows", "n"),
    pointers("weight", "source", "first", "crow", "values"),
)  # fmt: skip
ElementwiseRequest = mirror(
    "ElementwiseRequest", storage, fields(ctypes.c_int, "function"),
    fields(ctypes.c_double, "slope"), numbers("n"), pointers("x", "values"),
)  # fmt: skip
MaxPoolRequest = mirror(
    "MaxPoolRequest", storage, numbers("planes"), fields(Axis, "y", "x"),
    fields(PoolAxis, "pool_y", "pool_x"), pointers("input", "values"),
)  # fmt: skip
NumericRequest = mirror(
    "NumericRequest", storage, numbers("rows", "batch"), fields(CsrPattern, "a", "b"),
    numbers("b_rows", "b_entries"), pointers("crow"), numbers("entries", "longest"),
    pointers("program", "positions"), fields(ctypes.c_bool, "wide", "b_single", "side_by_side"),
    pointers("a_values", "b_values"), fields(Stride, "a_stride", "b_stride"), pointers("values"),
    fields(Stride, "stride"),
)  # fmt: skip
ApplyRequest = mirror(
    "ApplyRequest", storage, numbers("rows", "entries", "batch"), fields(CsrPattern, "a"),
    pointers("values"), fields(Stride, "stride"), pointers("x", "out"),
)  # fmt: skip


def stride_of(values):
    """As stride_of in csrc/operators/jacobians.h."""
    shared = values.dim() == 1 or values.shape[0] <= 1
    return Stride(0 if shared else values.stride(0), values.stride(-1))


@pytest.fixture(scope="session")
def emulator():
    library = compiled("jacobians")

    def emulate(name, args, **limits):
        """Runs a kernel; returns the names of what was launched."""
        driver = getattr(library, f"emulate_{name}")
        return run(driver, args, **{"processors": 2} | limits).launches

    return emulate


def multiply(emulate, plan, a, b, side_by_side, **limits):
    """C's values by the emulated kernel, NaN where it wrote nothing."""
    B = next((v.shape[0] for v in (a, b) if v.dim() == 2), 1)
    side_by_side = side_by_side and B > 1
    nnz = plan.pattern.nnz
    values = torch.full((nnz, B) if side_by_side else (B, nnz), float("nan"), dtype=a.dtype)
    values = values.t() if side_by_side else values
    emulate(
        "multiply",
        NumericRequest(
            storage_of(a), plan.a.shape[0], B,
            *(CsrPattern(p.crow.data_ptr(), p.col.data_ptr()) for p in (plan.a, plan.b)),
            plan.b.shape[0], plan.b.nnz, plan.pattern.crow.data_ptr(), nnz, plan.longest,
            plan.program.data_ptr(), plan.positions.data_ptr() if plan.positions.numel() else None,
            plan.positions.dtype == torch.int32, plan.b_single, side_by_side,
            a.data_ptr(), b.data_ptr(), stride_of(a), stride_of(b), values.data_ptr(),
            Stride(1, B) if side_by_side else Stride(nnz, 1),
        ),
        **limits,
    )  # fmt: skip
    return values


SETTINGS = [(batch, torch.float32) for batch in BATCHES]
SETTINGS += [((B, ""), torch.float64) for B in (None, 19)]


@pytest.mark.parametrize(
    "name, batch, dtype",
    [
        (name, *setting)
        for name in PRODUCTS
        for setting in SETTINGS
        if name != "32-bit places" or setting[0][0] in (None, 3)
    ],
    ids=str,
)
def test_products_are_those_of_the_cpu(name, batch, dtype, emulator):
    for laid_beside in (False, True):
        plan, a, b = product_case(name, *batch, dtype, laid_beside)
        wanted = plan.multiply(a, b)
        found = multiply(emulator, plan, a, b, laid_beside)
        assert relative_error(found.reshape(wanted.shape), wanted) < TOLERANCES[dtype]
        assert not found.isnan().any()


@pytest.mark.parametrize("laid_beside", [False, True])
@pytest.mark.parametrize("name", ["dense", "long rows", "convolutions", "pooled"])
def test_limits_of_the_device_change_no_bit(name, laid_beside, emulator):
    plan, a, b = product_case(name, 19, "", torch.float32, laid_beside)
    wanted = multiply(emulator, plan, a, b, laid_beside)
    for limits in (
        {"shared_limit": 4096}, {"shared_limit": 48 * 1024}, {"grid_limit": 1},
        {"grid_limit": 3, "seed": 7}, {"seed": 12345},
    ):  # fmt: skip
        assert torch.equal(multiply(emulator, plan, a, b, laid_beside, **limits), wanted), limits


def test_samples_of_a_batch_are_summed_as_one_alone(emulator):
    plan, a, b = product_case("convolutions", 19, "", torch.float32, True)
    found = multiply(emulator, plan, a, b, True)
    for s in (0, 7, 18):
        alone = multiply(emulator, plan, a[s].contiguous(), b[s].contiguous(), False)
        assert torch.equal(alone[0], found[s])


@each_dtype
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("B", [0, 1, 3, 8, 19, 32, 35])
def test_matrix_times_vectors(B, shared, dtype, emulator):
    for a in (random_pattern(30, 40, 0.3), random_pattern(50, 9, 0.05), random_pattern(3, 300, 0.9),
              random_pattern(0, 5, 0.5), random_pattern(5, 4, 0.0)):  # fmt: skip
        values = values_of(a, dtype=dtype) if shared else beside(values_of(a, B, dtype=dtype))
        x = values_of(random_pattern(a.shape[1], 1, 1.0), B, dtype=dtype, seed=2).t().contiguous()
        wanted = torch.ops.bppsa.apply_csr(a.crow, a.col, values, x)
        for limits in ({}, {"grid_limit": 1, "processors": 1000, "seed": 3}):
            out = torch.full((a.shape[0], B), float("nan"), dtype=dtype)
            emulator(
                "apply",
                ApplyRequest(
                    storage_of(x), a.shape[0], a.nnz, B,
                    CsrPattern(a.crow.data_ptr(), a.col.data_ptr()),
                    values.data_ptr(), stride_of(values), x.data_ptr(), out.data_ptr(),
                ),
                **limits,
            )  # fmt: skip
            assert relative_error(out, wanted) < TOLERANCES[dtype] and not out.isnan().any()


@each_dtype
def test_weights_are_gathered(dtype, emulator):
    weight = torch.randn(4, 3, 3, 3, dtype=dtype)
    jacobian = J.conv2d_pattern(weight.abs() > 0.5, (7, 6), padding=1)
    for limits in ({}, {"grid_limit": 2, "processors": 1000}):
        found = torch.full((jacobian.pattern.nnz,), float("nan"), dtype=dtype)
        args = WeightRequest(
            storage_of(weight), jacobian.first.numel(), jacobian.source.numel(), weight.data_ptr(),
            jacobian.source.data_ptr(), jacobian.first.data_ptr(),
            jacobian.pattern.crow.data_ptr(), found.data_ptr(),
        )  # fmt: skip
        emulator("weights", args, **limits)
        assert torch.equal(found, jacobian.values(weight))


@each_dtype
@pytest.mark.parametrize("function", ELEMENTWISE)
def test_elementwise_derivatives(function, dtype, emulator):
    x = edges(dtype)
    found = torch.empty_like(x)
    args = ElementwiseRequest(
        storage_of(x), ELEMENTWISE.index(function), 0.3, x.numel(), x.data_ptr(), found.data_ptr()
    )
    emulator("elementwise", args)
    wanted = J.elementwise_values(function, x, 0.3)
    tolerance = 5e-7 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


@each_dtype
@pytest.mark.parametrize("pool", POOLS, ids=str)
def test_max_pooling_takes_what_the_cpu_takes(pool, dtype, emulator):
    size, *window = pool
    jacobian = J.max_pool2d_pattern(size, *window)
    nan, inf = float("nan"), float("inf")
    draw = torch.randint(0, 6, (5, *size), generator=torch.Generator().manual_seed(0))
    ties = torch.tensor([nan, -inf, inf, 0.0, 1.0, 2.0], dtype=dtype)[draw]
    for x in (torch.randn(5, *size, dtype=dtype), ties, ties[:0]):
        wanted = jacobian.values(x)
        found = torch.full_like(wanted, nan)
        axes = [Axis(n, w.output, w.first.data_ptr(), w.out.data_ptr())
                for n, w in zip(size[1:], (jacobian._y, jacobian._x))]  # fmt: skip
        planes = x.shape[0] * size[0]
        args = MaxPoolRequest(
            storage_of(x), planes, *axes, *(PoolAxis(*g) for g in jacobian._geometry),
            x.data_ptr(), found.data_ptr(),
        )  # fmt: skip
        launched = emulator("max_pool", args, grid_limit=3)
        assert torch.equal(found, wanted)
        assert launched == (["argmax", "max pool"] if planes else [])

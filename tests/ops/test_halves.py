"""16-bit floats: read and written as PyTorch does, whatever the layout and the instruction set."""

import pytest
import torch

import bppsa_lightning as bl

HALVES = [torch.float16, torch.bfloat16]
LAYOUTS = ["contiguous", "strided"]


def laid_out(x, layout):
    """The same numbers, side by side or two apart."""
    if layout == "contiguous":
        return x.contiguous()
    return torch.stack((x, torch.zeros_like(x)), -1)[..., 0]


def all_halves(dtype):
    """Every number of 16 bits."""
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)


def assert_same_bits(found, wanted):
    number = ~wanted.isnan()
    assert torch.equal(found.isnan(), ~number)
    assert torch.equal(found[number].view(torch.int16), wanted[number].view(torch.int16))


def last_step(decay, grad, layout):
    """decay * grad, rounded, by a chain of one step."""
    end = torch.full_like(grad, -0.0)  # x + -0 is x, for zeros too
    grads = laid_out(torch.stack((end, grad))[:, None], layout)
    return bl.ops.diagonal_scan(laid_out(decay[None, None], layout), grads, "linear")[0, 0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_number_is_read_and_written_as_it_is(dtype, layout):
    numbers = all_halves(dtype)
    assert_same_bits(last_step(torch.ones_like(numbers), numbers, layout), numbers)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_products_are_rounded_as_pytorch_rounds(dtype, layout):
    numbers = all_halves(dtype)
    for factor in (0.3, 1.7e-3, 311.0, 2.0**-9):  # to subnormals and infinities as well
        factors = torch.full_like(numbers, factor)
        wanted = (factors.float() * numbers.float()).to(dtype)
        assert_same_bits(last_step(factors, numbers, layout), wanted)


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided"])
@pytest.mark.parametrize("width", [1, 3, 8, 20, 33])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_dense_chain_is_the_float32_one_rounded(dtype, width, layout):
    torch.manual_seed(0)
    jac_t = torch.randn(9, 2, width, width).to(dtype) / max(width, 2)
    grad = laid_out(torch.randn(10, 2, width).to(dtype), layout)
    jac_t = jac_t.mT.contiguous().mT if layout == "transposed" else laid_out(jac_t, layout)
    found = bl.ops.reverse_scan(jac_t, grad, "linear")
    wanted = bl.ops.reverse_scan(jac_t.float(), grad.float(), "linear").to(dtype)
    assert_same_bits(found, wanted)

"""Which dtype an attached recurrent layer computes in, under autocast and without: PyTorch's."""

import copy
import itertools

import pytest
import torch
from support.cases import relative_error
from support.recurrent_modules import (
    BF16,
    CELLS,
    EXACT,
    F16,
    F32,
    F64,
    assert_same,
    assert_scanned,
    pack,
    pair,
    results,
    run_or_error,
    tensor,
)
from torch import nn

import bppsa_lightning as bl

pytestmark = pytest.mark.usefixtures("accelerate_everything")


@pytest.mark.parametrize("autocast", [None, BF16, F16], ids=str)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("cell", ["RNN-tanh", "GRU", "LSTM", "LSTM projected"])
def test_every_mixture_of_dtypes(cell, packed, autocast):
    """To PyTorch's dtypes wherever it works; without autocast, refused where it refuses."""
    for weight in (F32, BF16, F64):
        for input, given in itertools.product((F32, BF16, F16, F64), (None, F32, BF16)):
            stock, module = pair(cell, weight)
            x = tensor(5, 2, 3).to(input)
            x = pack(x, [5, 3]) if packed else x
            hx = None
            if given:
                hx = (tensor(1, 2, stock.proj_size or 4).to(given), tensor(1, 2, 4).to(given))
                hx = hx if isinstance(stock, nn.LSTM) else hx[0]
            wanted, found = (run_or_error(m, x, hx, autocast) for m in (stock, module))
            if isinstance(wanted, type):
                # oneDNN has no float16 LSTM on some machines; a scan has.
                assert found is wanted or autocast and not isinstance(found, type)
                continue
            assert not isinstance(found, type), (weight, input, given, found)
            dtypes = [[t.dtype for t in tensors] for tensors in (found, wanted)]
            assert dtypes[0] == dtypes[1], (weight, input, given)
            assert all(relative_error(f, w) < 0.05 for f, w in zip(found, wanted))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_bfloat16_is_as_close_to_the_truth_as_pytorch(cell, packed, autocast):
    """Two layers with dropout between them: the same noise, and no rounding before the end."""
    settings = {"num_layers": 2, "bidirectional": True, "dropout": 0.4}
    stock, module = pair(cell, F32 if autocast else BF16, **settings)
    x = tensor(30, 5, 3).to(F32 if autocast else BF16)
    lengths = [30, 21, 20, 9, 3]

    def run(module, x):
        return results(module, pack(x, lengths) if packed else x, None, {})

    truth = run(copy.deepcopy(stock).double(), x.double())
    with torch.autocast("cpu", BF16, enabled=autocast):
        try:
            wanted = run(stock, x)
        except RuntimeError as error:  # oneDNN's LSTM in bfloat16, on a processor without AVX-512
            assert "primitive descriptor" in str(error)
            with torch.backends.mkldnn.flags(enabled=False):
                wanted = run(stock, x)
        found = run(module, x)
    assert_scanned(module)
    for name, value in truth.items():
        allowed = 1.1 * float((wanted[name].double() - value).norm()) + 1e-6
        assert float((found[name].double() - value).norm()) <= allowed, name


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU])
def test_gradients_over_long_sequences_in_bfloat16(kind):
    """What docs/numerics.md says: PyTorch adds them up over time in bfloat16, ours in float32."""
    torch.manual_seed(0)
    stock = kind(4, 20)
    layers = {"PyTorch": stock, "ours": copy.deepcopy(stock), "truth": copy.deepcopy(stock)}
    bl.attach(layers["ours"], "linear")
    layers["truth"].double()
    x, found = torch.randn(2500, 1, 4), {}
    for name, layer in layers.items():
        with torch.autocast("cpu", BF16, enabled=name != "truth"):
            output = layer(x.to(layer.weight_ih_l0.dtype))[0]
        output.double().square().sum().backward()
        found[name] = float(layer.bias_hh_l0.grad.double().norm())
    assert found["PyTorch"] < 0.6 * found["truth"]
    assert found["ours"] == pytest.approx(found["truth"], rel=1e-3)


@pytest.mark.parametrize("convert", ["double", "half", "bfloat16"])
@pytest.mark.parametrize("cell", CELLS)
def test_converted_after_attach(cell, convert):
    stock, module = (getattr(m, convert)() for m in pair(cell, F32, num_layers=2))
    dtype = stock.weight_ih_l0.dtype
    assert_same(stock, module, tensor(6, 2, 3).to(dtype), tolerance=EXACT if dtype == F64 else 0.05)

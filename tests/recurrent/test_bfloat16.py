"""Which calls PyTorch computes in bfloat16, on a CPU that multiplies it, and who computes them."""

import copy

import pytest
import torch
from support.recurrent_modules import lstm_has_bfloat16, pack
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.planner import ratios
from bppsa_lightning.planner.request import MODES
from bppsa_lightning.recurrent import precision

T, B, H = 6, 3, 8

needs_lstm = pytest.mark.skipif(
    not lstm_has_bfloat16(), reason="PyTorch's LSTM has no bfloat16 on this processor"
)


@pytest.fixture(autouse=True)
def pytorch_is_faster(monkeypatch):
    """In the modes of a set, at any size; on a CPU that multiplies bfloat16."""
    modes = set(MODES)
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(
        ratios,
        "pytorch_is_faster",
        lambda cell, bfloat16, mode, *size: bfloat16 and mode in modes,
    )
    bl.planner.machine.forget()
    yield modes
    bl.planner.machine.forget()


def layers(kind=nn.LSTM, dtype=torch.float32, **options):
    torch.manual_seed(0)
    stock = kind(5, H, **options).to(dtype)
    ours = copy.deepcopy(stock)
    (chain,) = bl.attach(ours)
    return stock, ours, chain


def cast(dtype=torch.bfloat16):
    return torch.autocast("cpu", dtype)


@needs_lstm
def test_an_lstm_under_autocast_is_pytorchs():
    stock, ours, chain = layers()
    x = torch.randn(T, B, 5)
    with cast():
        for a, b in zip(ours(x)[1], stock(x)[1], strict=True):
            assert torch.equal(a, b) and a.dtype == b.dtype == torch.bfloat16
    assert (chain.calls, chain.fallback_calls) == (0, 1)
    assert "in bfloat16: PyTorch's kernel measured faster" in str(bl.explain(ours))


@pytest.mark.parametrize("kind", [nn.GRU, pytest.param(nn.LSTM, marks=needs_lstm)])
def test_of_one_size_each_call_is_decided_by_its_own_precision(kind, pytorch_is_faster):
    pytorch_is_faster.discard("inference")
    _, ours, chain = layers(kind)
    x = torch.randn(T, B, 5)
    seen = []
    for _ in range(2):
        ours(x)
        seen.append(chain.fallback_calls)
        with cast():
            ours(x)
            seen.append(chain.fallback_calls)
            with torch.no_grad():
                ours(x)
            seen.append(chain.fallback_calls)
        with cast(torch.float16):  # which is not multiplied faster
            ours(x)
        seen.append(chain.fallback_calls)
    assert seen == [0, 1, 1, 1, 1, 2, 2, 2]


def test_weights_in_bfloat16():
    stock, ours, chain = layers(dtype=torch.bfloat16)
    x = torch.randn(T, B, 5, dtype=torch.bfloat16)
    wanted = copy.deepcopy(stock)(x)[0]
    found = ours(x)[0]
    assert chain.fallback_calls == 1 and torch.equal(found, wanted)
    found.sum().backward()


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU])
def test_an_rnn_and_a_gru_too(kind):
    stock, ours, chain = layers(kind)
    x = torch.randn(T, B, 5)
    with cast():
        assert torch.equal(ours(x)[0], stock(x)[0])
    assert (chain.calls, chain.fallback_calls) == (0, 1)


def test_a_projection_is_ours():
    """It was not measured."""
    _, ours, chain = layers(proj_size=3)
    with cast():
        ours(torch.randn(T, B, 5))
    assert (chain.calls, chain.fallback_calls) == (1, 0)


def test_a_packed_sequence_is_ours():
    _, ours, chain = layers()
    with cast():
        ours(pack(torch.randn(T, B, 5), [T, 4, 2]))
        ours(pack(torch.randn(T, B, 5), [T, T, T]))
    assert (chain.calls, chain.fallback_calls) == (2, 0)


def test_float64_is_ours():
    _, ours, chain = layers(dtype=torch.float64)
    with cast():
        assert ours(torch.randn(T, B, 5, dtype=torch.float64))[0].dtype == torch.float64
    assert (chain.calls, chain.fallback_calls) == (1, 0)


def test_an_algorithm_by_name_is_obeyed():
    stock, _, _ = layers()
    (chain,) = bl.attach(stock, "linear")
    with cast():
        stock(torch.randn(T, B, 5))
    assert (chain.calls, chain.fallback_calls) == (1, 0)


@needs_lstm
def test_no_windows_of_what_pytorch_does_in_bfloat16(monkeypatch):
    """They would be walked in float32."""
    monkeypatch.setattr("bppsa_lightning.recurrent.layer.LayerEngine.may_pay", lambda *_: True)
    _, ours, chain = layers()
    x = torch.randn(2000, 1, 5)
    with cast():
        ours(x)
    assert chain.fallback_calls == 1
    ours(x)
    assert (chain.calls, chain.fallback_calls) == (1, 1)


@pytest.mark.parametrize("native", [(True, False), (False, True), (False, False)])
def test_a_cpu_multiplies_bfloat16_by_instructions_of_either_kind(native, monkeypatch):
    avx512, amx = native
    monkeypatch.undo()
    precision._has_instructions.cache_clear()
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(precision, "_has_bfloat16", lambda: True)
    assert precision.multiplies_bfloat16() == (avx512 or amx)
    with torch.backends.mkldnn.flags(enabled=False):
        assert not precision.multiplies_bfloat16()
    precision._has_instructions.cache_clear()

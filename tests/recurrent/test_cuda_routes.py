"""Where an attached layer's call on CUDA goes, and why: on tensors that only claim to be there.

T steps, B batch, I input, H hidden.
"""

import re
from types import SimpleNamespace

import pytest
import torch
from support import gpus
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.nn.modules import rnn as rnn_module
from torch.nn.utils import rnn as rnn_utils

import bppsa_lightning as bl
from bppsa_lightning import _library
from bppsa_lightning.recurrent.rows import padded_steps

kernels_missing = _library._missing_recurrent_cuda_kernels
PYTORCH = ("rnn_tanh", "rnn_relu", "gru", "lstm")
pytestmark = pytest.mark.filterwarnings("ignore:Accessing the data pointer:UserWarning")


@pytest.fixture(autouse=True)
def a_gpu(monkeypatch):
    """An H200 with cuDNN, for tensors without data; what PyTorch computes there is nothing."""
    nothing = SimpleNamespace(**{f: lambda *_: (None, None, None) for f in PYTORCH})
    monkeypatch.setattr(rnn_module, "_VF", nothing)
    gpus.claim(monkeypatch)
    monkeypatch.setattr(_library, "_missing_recurrent_cuda_kernels", lambda device: None)
    with FakeTensorMode():
        yield


def called(layer, x, hx=None):
    """The chain after one call, and what the call returned."""
    (chain,) = bl.attach(layer)
    return chain, layer(x, hx)


def ones(*shape, **settings):
    return torch.ones(*shape, device="cuda", **settings)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_small_states_are_scanned_in_every_dtype(kind, dtype):
    chain, (output, _) = called(
        kind(3, 20, device="cuda", dtype=dtype), ones(50, 4, 3, dtype=dtype)
    )
    assert (chain.calls, chain.fallback_calls) == (1, 0), chain.reason
    assert (output.shape, output.dtype, output.device.type) == ((50, 4, 20), dtype, "cuda")
    row = next(line for line in bl.explain(chain.module).splitlines() if "multiprocessors" in line)
    assert "cuDNN" in row and gpus.H200.gpu in row and " ms" in row


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("asked", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("cudnn", [True, False])
def test_under_autocast_results_are_of_the_dtype_of_pytorch(kind, asked, cudnn, monkeypatch):
    """cuDNN's are float16, whatever autocast's."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_: True)
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: cudnn)
    h0 = ones(1, 4, 20)
    with torch.autocast("cuda", asked):
        hx = (h0, h0) if kind is nn.LSTM else h0
        chain, (output, states) = called(kind(3, 20, device="cuda"), ones(50, 4, 3), hx)
    assert chain.calls == 1, chain.reason
    states = states if isinstance(states, tuple) else (states,)
    wanted = torch.float16 if cudnn else asked
    assert {t.dtype for t in (output, *states)} == {wanted}


LEFT = {
    "cuDNN is faster": (lambda: nn.GRU(1, 128, device="cuda"), "cuDNN is estimated to take 2."),
    "large": (lambda: nn.RNN(1, 257, device="cuda"), "again in every step"),
    "float64": (lambda: nn.RNN(1, 33, device="cuda", dtype=torch.float64), "hidden 33 in float64"),
}


@pytest.mark.parametrize("what", LEFT)
def test_left_to_cudnn_with_the_reason(what, monkeypatch):
    gpus.claim(monkeypatch, gpus.with_every_kernel())
    make, reason = LEFT[what]
    layer = make()
    chain, _ = called(layer, ones(1000, 16, 1, dtype=layer.weight_hh_l0.dtype))
    assert (chain.calls, chain.fallback_calls) == (0, 1)
    assert reason in chain.reason and reason in bl.explain(layer)


def test_without_cudnn_nothing_is_left_to_it(monkeypatch):
    gpus.claim(monkeypatch, gpus.with_every_kernel())
    with torch.backends.cudnn.flags(enabled=False):
        chain, _ = called(nn.GRU(1, 128, device="cuda"), ones(1000, 16, 1))
    assert chain.calls == 1, chain.reason


def test_projections_are_scanned(monkeypatch):
    gpus.claim(monkeypatch, gpus.with_every_kernel())
    chain, (output, (h, c)) = called(nn.LSTM(1, 20, proj_size=5, device="cuda"), ones(1000, 16, 1))
    assert chain.calls == 1, chain.reason
    assert (output.shape, h.shape, c.shape) == ((1000, 16, 5), (1, 16, 5), (1, 16, 20))


@pytest.mark.parametrize(
    ("lengths", "steps"), [([4, 4], 4), ([5, 4, 3], 5), ([100] + [1] * 9, 101)]
)
def test_the_steps_of_the_padding_are_counted(lengths, steps):
    """Those of the longest; and where padding would be most of it, those of each group's."""
    with unset_fake_temporarily():
        x = rnn_utils.pack_sequence([torch.ones(length, 3) for length in lengths])
        assert padded_steps(x.batch_sizes) == steps


def test_walks_are_counted_on_cuda_only(monkeypatch):
    with pytest.raises(ValueError, match="device: found cpu, wanted a CUDA device"):
        bl.ops.untrusted_products("cpu")
    monkeypatch.setattr(bl.ops, "HAS_CUDA_KERNELS", False)
    for device in ("cuda", 0, torch.device("cuda", 1)):
        with pytest.raises(RuntimeError, match="built without its CUDA kernels"):
            bl.ops.untrusted_products(device)


MISSING = {
    "not built": (False, (9, 0), "built without its CUDA kernels"),
    "an old GPU": (True, (7, 0), "BPPSA_CUDA_RECURRENT_ARCHITECTURES=70"),
}


@pytest.mark.parametrize("what", MISSING)
def test_kernels_that_are_missing_are_missed_aloud(what, monkeypatch):
    """Also where cuDNN is faster: the statement is what can be done about it."""
    library, capability, reason = MISSING[what]
    monkeypatch.setattr(_library, "_missing_recurrent_cuda_kernels", kernels_missing.__wrapped__)
    monkeypatch.setattr(_library, "HAS_CUDA_KERNELS", library)
    monkeypatch.setattr(_library, "recurrent_architectures", lambda: [75, 90])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    layer = nn.GRU(1, 128, device="cuda")
    chain, _ = called(layer, ones(1000, 16, 1))
    assert chain.fallback_calls == 1 and reason in chain.reason and reason in bl.explain(layer)
    with pytest.raises(RuntimeError, match=re.escape(reason)):
        bl.ops.gru(ones(5, 4, 1), None, *layer.parameters())


def test_later_gpus_run_what_was_built_for_earlier_ones(monkeypatch):
    monkeypatch.setattr(_library, "HAS_CUDA_KERNELS", True)
    monkeypatch.setattr(_library, "recurrent_architectures", lambda: [75, 90])
    for capability in ((7, 5), (8, 6), (9, 0), (12, 0)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, c=capability: c)
        assert kernels_missing.__wrapped__(torch.device("cuda")) is None

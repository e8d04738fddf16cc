"""Recorded calls, and the twins that run them again: what they compute, and what they leave."""

import copy
import pickle

import pytest
import torch
from support.helpers import assert_close, assert_identical, weights
from support.pruned_networks import image, pruned_network
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence

import bppsa_lightning as bl
from bppsa_lightning._replacement import Replacement, replacement_of
from bppsa_lightning.gains import Comparison, Recording
from bppsa_lightning.gains.recording import recordable, tensors_of
from bppsa_lightning.gains.replay import Seconds, Twins, run

T, B, I, H = 128, 4, 3, 5  # noqa: E741


class Doubled(nn.GRU):
    def forward(self, x, hx=None):
        raise_in_copies(self)
        output, last = super().forward(2 * x, hx)
        return 3 * output, last


def raise_in_copies(module):
    assert hasattr(module, "original"), "the user's code runs in a copy"


def overridden():
    layer = Doubled(I, H)
    layer.original = True
    return layer


def weight_normed():
    return parametrizations.weight_norm(nn.RNN(I, H), "weight_hh_l0")


def packed():
    lengths = torch.tensor([T, 5, 70, 71])
    return pack_padded_sequence(torch.randn(T, B, I), lengths, enforce_sorted=False)


def dense():
    return torch.randn(T, B, I, requires_grad=True)


def flat():
    return torch.randn(B, I, requires_grad=True)


LAYERS = {
    "rnn": (lambda: nn.RNN(I, H, nonlinearity="relu"), dense),
    "lstm": (lambda: nn.LSTM(I, H, 2, bidirectional=True, proj_size=2, bias=False), dense),
    "packed": (lambda: nn.GRU(I, H), packed),
    "overridden": (overridden, dense),
    "weight_norm": (weight_normed, dense),
    "pruned": (lambda: pruned_network(norm=True), image),
    "stack": (lambda: nn.Sequential(nn.Linear(I, H), nn.Tanh(), nn.Linear(H, H)), flat),
}


def recorded(module, x):
    """The call of a module, and the tensors that it gave; after its backward."""
    recording = Recording(recordable(module))
    outputs = tensors_of(module(x))
    sum(t.square().sum() for t in outputs if t.requires_grad).backward()
    recording.stop()
    (call,) = recording.calls
    return call, outputs


@pytest.mark.parametrize("name", LAYERS)
def test_twins_compute_what_the_layer_does(name, request):
    torch.manual_seed(0)
    if name == "pruned":
        request.getfixturevalue("every_layer_is_sparse")
    make, given = LAYERS[name]
    module, x = make(), given()
    bl.attach(module, "blelloch" if name == "stack" else "auto")
    kinds = {m: type(r) for m in module.modules() if (r := replacement_of(m, Replacement))}
    call, outputs = recorded(module, x)
    assert {m: type(replacement_of(m, Replacement)) for m in kinds} == kinds
    before = weights(module)
    grads = {n: p.grad.clone() for n, p in module.named_parameters()}
    twins = Twins(call.replacement)
    for twin, stock in ((twins.ours, False), (twins.stock, True)):
        args, kwargs, wanted = call.inputs()
        assert len(wanted) == sum(t.requires_grad for t in tensors_of(args))
        found = tensors_of(twin(*args, **kwargs))
        scale = 3 if name == "overridden" else 1
        assert_close({"": scale * found[0]}, {"": outputs[0]}, 1e-5)
        attached = any(replacement_of(m, Replacement) for m in twin.modules())
        assert attached != stock
        forward, backward = run(call, twin, stock)
        assert forward > 0 and backward > 0
    assert_identical(weights(module), before)
    assert_identical({n: p.grad for n, p in module.named_parameters()}, grads)
    assert twins.fit(call.replacement)


def test_twins_see_the_weights_of_now_and_know_when_they_are_others():
    layer = nn.GRU(I, H)
    bl.attach(layer)
    chain = replacement_of(layer, bl.Chain)
    twins = Twins(chain)
    with torch.no_grad():
        layer.weight_hh_l0.mul_(2)
    assert torch.equal(twins.stock.weight_hh_l0, layer.weight_hh_l0) and twins.fit(chain)
    layer.weight_hh_l0 = nn.Parameter(layer.weight_hh_l0.detach().clone())
    assert not twins.fit(chain)


def test_a_call_whose_input_was_changed_since_is_known():
    layer, x = nn.GRU(I, H), torch.randn(T, B, I)
    bl.attach(layer)
    call, _ = recorded(layer, x)
    assert call.intact
    x.zero_()
    assert not call.intact


def test_a_piece_is_a_16th_of_the_steps():
    layer = nn.GRU(I, H, batch_first=True)
    bl.attach(layer)
    call, _ = recorded(layer, torch.randn(B, T, I, requires_grad=True))
    piece = call.piece()
    assert piece.inputs()[0][0].shape == (B, T // 16, I)
    assert piece.grads[0].shape == (B, T // 16, H)
    assert sum(run(piece, Twins(call.replacement).stock, stock=True)) > 0
    assert recorded(layer, torch.randn(B, 63, I))[0].piece() is None


def test_layers_of_the_users_are_not_run_again_what_is_inside_is():
    class Scaled(nn.Linear):
        def forward(self, x):
            return super().forward(x) / 2

    stack = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Flatten(), Scaled(64, 2)))
    nn.utils.prune.random_unstructured(stack[0], "weight", 0.5)
    bl.attach(stack)
    (whole,) = recordable(stack)
    with pytest.raises(ValueError, match="Scaled: found a layer of the user's own"):
        Twins(whole)
    (inner,) = recordable(stack, {stack})
    assert inner.module is stack[0] and Twins(inner)
    with pytest.raises(ValueError, match="no memory behind it"):
        layer = nn.GRU(I, H)
        bl.attach(layer)
        layer.weight_hh_l0.data.untyped_storage().resize_(0)
        Twins(replacement_of(layer, bl.Chain))


def test_calls_without_gradients_and_copies_are_not_recorded():
    layer, x = nn.GRU(I, H), torch.randn(T, B, I)
    bl.attach(layer)
    recording = Recording(recordable(layer))
    with torch.no_grad():
        layer(x)
    twin = copy.deepcopy(layer)
    twin(x)
    assert not recording.calls
    layer(x)
    recording.stop()
    layer(x)
    assert len(recording.calls) == 1


def test_figures_of_a_comparison():
    found = Comparison()
    assert found.ours() == found.stock() == found.speed_ups() == {} and not found.is_slower
    step = {"forward": 2.0, "backward": 1.0, "optimizer": 1.0, "rest": 0.0}
    found.add(
        step, {"a": (Seconds(1, 0.5), Seconds(2, 2.5)), "b": (Seconds(0.5, 0), Seconds(1, 0))}
    )
    assert found.ours() == {**step, "step": 4.0}
    assert found.stock() == {**step, "forward": 3.5, "backward": 3.0, "step": 7.5}
    assert found.speed_ups() == {"forward": 1.75, "backward": 3.0, "step": 1.875}
    assert found.text() == "backward 3.0x, step 1.9x of stock on this machine (1 step each)"
    assert [row["layer"] for row in found.of_layers()] == ["a", "b"] and not found.is_slower
    slow = Comparison()
    slow.add(step, {"": (Seconds(2, 1), Seconds(1, 1))})
    assert slow.is_slower and slow.text().startswith("backward 1.00x, step 0.75x of stock")
    # Ours took longer when it was run again than the whole step did: stock's time is its own.
    slow.add(step, {"": (Seconds(9, 9), Seconds(1, 2))})
    assert slow._as_stock(1) == {**step, "forward": 1, "backward": 2}


@pytest.mark.parametrize("hooked", [False, True])
def test_an_output_that_nobody_used_has_no_gradient(hooked):
    """Autograd calls the hooks of such a one as well, with None."""
    layer, x = nn.GRU(I, H), dense()
    if hooked:
        layer.register_full_backward_hook(lambda *_: None)
    bl.attach(layer)
    recording = Recording(recordable(layer))
    layer(x)[1].sum().backward()
    recording.stop()
    (call,) = recording.calls
    assert list(call.grads) == [1]
    twins = Twins(call.replacement)
    for twin, stock in ((twins.ours, False), (twins.stock, True)):
        assert min(run(call, twin, stock)) > 0


def test_copies_and_pickles_of_what_is_recorded_are_not():
    layer = nn.GRU(I, H)
    (chain,) = bl.attach(layer)
    kind, recording = type(chain), Recording(recordable(layer))
    assert type(chain) is not kind
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        found = replacement_of(other, bl.Chain)
        assert type(found) is kind and found.module is other
        other(dense())
    recording.stop()
    assert not recording.calls and type(chain) is kind


def test_parametrizations_that_keep_something_are_not_evaluated_again():
    layer = parametrizations.spectral_norm(nn.GRU(I, H), "weight_hh_l0")
    (chain,) = bl.attach(layer)
    layer(dense())
    before = weights(layer)
    with pytest.raises(ValueError, match="weight_hh_l0: found the parametrization _SpectralNorm"):
        Twins(chain)
    assert_identical(weights(layer), before)

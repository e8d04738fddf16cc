"""The cells of `bl.nn` that torch.nn lacks, and what all take: noise, and how they are walked."""

import copy
import functools
import math
import pickle

import pytest
import torch
from support.cases import relative_error
from support.nn_loops import CELLS, OF_TORCH, STEPS
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import bppsa_lightning as bl
from bppsa_lightning import reference_cells
from bppsa_lightning.nn import by_scan

F64 = {"dtype": torch.float64}
OTHERS = [cell for cell in CELLS if cell not in OF_TORCH]
others = pytest.mark.parametrize("cell", OTHERS)
every = pytest.mark.parametrize("cell", CELLS)


def make(cell, *args, **options):
    torch.manual_seed(0)
    return getattr(bl.nn, cell)(*args, **options)


def test_the_table_of_cells_is_whole():
    assert {*CELLS, "Recurrent"} == set(bl.nn.__all__) and set(STEPS) == set(CELLS)


@others
def test_copies_pickles_and_checkpoints(cell):
    module, x = make(cell, 3, 4, 2, bidirectional=True, zoneout=0.1).eval(), torch.randn(5, 2, 3)
    fresh = getattr(bl.nn, cell)(3, 4, 2, bidirectional=True, zoneout=0.1).eval()
    fresh.load_state_dict(module.state_dict())
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), fresh):
        assert torch.equal(other(x)[0], module(x)[0])
    assert repr(fresh) == repr(module) and "bidirectional=True, zoneout=0.1" in repr(module)


@others
def test_float32_is_float64_to_rounding(cell):
    module, x = make(cell, 3, 4), torch.randn(20, 2, 3)
    found = module(x)[0]
    assert found.dtype == torch.float32
    assert relative_error(found, copy.deepcopy(module).double()(x.double())[0]) < 1e-5


@others
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_are_the_float32_recurrence_rounded_once(cell, dtype):
    module, x = make(cell, 3, 4, dtype=dtype), torch.randn(6, 2, 3, dtype=dtype)
    found = module(x)[0]
    assert found.dtype == dtype
    wanted = copy.deepcopy(module).float()(x.float())[0]
    assert torch.equal(found, wanted.to(dtype))


@others
def test_autocast_returns_what_pytorchs_layer_of_that_kind_does(cell):
    module, x = make(cell, 3, 4), torch.randn(6, 2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        found = module(x)[0]
    dtype = torch.float32 if module.cell.kind == "GRU" else torch.bfloat16
    assert found.dtype == dtype and torch.equal(found, module(x)[0].to(dtype))


@others
def test_explain_names_the_cell(cell):
    for noise in ({}, {"zoneout": 0.1}):
        module = make(cell, 3, 4, **noise)
        module(torch.randn(130, 2, 3))
        said = bl.explain(module)
        assert f"layers of bl.nn, accelerated by themselves: 1 {cell}" in said
        assert "unchanged" not in said and "scan of" not in said


def test_explain_names_the_scan_of_a_projected_and_noisy_layer():
    module = make("LSTM", 3, 4, proj_size=2, zoneout=0.1)
    module(torch.randn(130, 2, 3))
    assert "scan of LSTM, 130 steps" in bl.explain(module)


@pytest.mark.parametrize(
    "cell",
    ["LayerNormLSTM", "LayerNormGRU", "LiGRU", "GRU", "LSTM", "RNN", "PeepholeLSTM", "IndRNN"],
)
def test_one_operator_walks_normalised_and_noisy_cells_in_a_graph(cell):
    module = make(cell, 3, 4, **F64, **{} if "Norm" in cell else {"zoneout": 0.3}).eval()
    x = torch.randn(9, 2, 3, requires_grad=True, **F64)
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    weights = module._named(module.all_weights[0])
    noise = by_scan.Noise(0.0, module.zoneout, False)
    for run in (module, compiled):
        x.grad = None
        output, _ = run(x)
        output.square().sum().backward()
        sums, step = module.project(x, weights, 0), functools.partial(module.step, weights)
        wanted, *_ = by_scan.walk(step, cell, module._sizes, noise, sums, (), False, False)
        [grad] = torch.autograd.grad(wanted.square().sum(), x)
        torch.testing.assert_close(output, wanted, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(x.grad, grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("cell", ["LayerNormLSTM", "LayerNormGRU", "LiGRU"])
def test_gains_begin_as_one_and_shifts_as_zero(cell):
    parameters = dict(make(cell, 3, 4, 2).named_parameters())
    gains = [p for name, p in parameters.items() if name.startswith("norm")]
    shifts = [p for name, p in parameters.items() if name.startswith("bias")]
    assert gains and shifts
    assert all((p == 1).all() for p in gains) and all((p == 0).all() for p in shifts)


@others
def test_without_biases_there_are_none(cell):
    module = make(cell, 3, 4, bias=False)
    assert not [name for name, _ in module.named_parameters() if name.startswith("bias")]
    assert module(torch.randn(3, 2, 3))[0].shape == (3, 2, 4)


@others
def test_projections_are_of_lstm_alone(cell):
    with pytest.raises(ValueError, match=f"only supported for LSTM, not {cell}"):
        make(cell, 3, 4, proj_size=2)


def test_relu_states_that_would_overflow_behind_an_end_spoil_no_gradient():
    module = make("IndRNN", 1, 1)
    with torch.no_grad():
        for p in module.parameters():
            p.fill_(1e3)
    packed = pack_sequence([-torch.ones(60, 1), torch.ones(1, 1)])  # 0 for 60 steps, and 2000
    output = module(packed)[0].data
    output.sum().backward()
    assert output[1] == 2000 and all(p.grad.isfinite().all() for p in module.parameters())


def test_batch_normalisation_is_that_of_torch_without_padding():
    module = make("LiGRU", 3, 4, **F64)
    norm = nn.BatchNorm1d(8, **F64)
    samples = [torch.randn(n, 3, **F64) for n in (9, 5, 1)]
    rows = torch.cat(samples) @ module.weight_ih_l0.T
    for _ in range(2):
        module(pack_sequence(samples))
        norm(rows)
    torch.testing.assert_close(module.running_mean_l0, norm.running_mean)
    torch.testing.assert_close(module.running_var_l0, norm.running_var)
    module.eval(), norm.eval()
    x = torch.randn(6, 2, 3, **F64)
    normed = norm((x @ module.weight_ih_l0.T).flatten(0, 1)).view(6, 2, 8)
    [wanted] = reference_cells.walk(
        lambda x, h: reference_cells.ligru(x, h, module.weight_hh_l0, module.bias_hh_l0),
        normed, torch.zeros(2, 4, **F64),
    )  # fmt: skip
    torch.testing.assert_close(module(x)[0], wanted)


def test_running_statistics_of_16_bits_are_kept():
    module = make("LiGRU", 3, 4, dtype=torch.bfloat16)
    module(torch.randn(50, 2, 3, dtype=torch.bfloat16) + 2)
    assert module.running_mean_l0.any() and module.running_mean_l0.dtype == torch.bfloat16


def test_references_walk_backwards():
    u, w = torch.rand(3, **F64), torch.randn(3, 2, **F64)
    x, h = torch.randn(5, 2, 2, **F64), torch.zeros(2, 3, **F64)

    def step(x, h):
        return reference_cells.indrnn(x, h, w, u, None)

    [found] = reference_cells.walk(step, x, h, reverse=True)
    [flipped] = reference_cells.walk(step, x.flip(0), h)
    assert torch.equal(found, flipped.flip(0))


# Noise


@every
def test_in_evaluation_recurrent_dropout_is_off(cell):
    if cell == "MinGRU":
        with pytest.raises(ValueError, match="recurrent_dropout: found 0.5, wanted 0, as a minGRU"):
            make(cell, 3, 4, recurrent_dropout=0.5)
        return
    noisy, x = make(cell, 3, 4, recurrent_dropout=0.5, **F64), torch.randn(6, 2, 3, **F64)
    plain = make(cell, 3, 4, **F64)
    assert torch.equal(noisy.eval()(x)[0], plain.eval()(x)[0])
    noisy.train()
    assert not torch.equal(noisy(x)[0], noisy(x)[0])


def test_recurrent_dropout_has_one_mask_for_each_sequence(monkeypatch):
    shapes, draw = [], by_scan.drawn
    monkeypatch.setattr(by_scan, "drawn", lambda p, s, like: shapes.append(s) or draw(p, s, like))
    module, x = make("GRU", 3, 4, recurrent_dropout=0.5), torch.randn(6, 2, 3)
    module(x)
    reset = torch.zeros(6, 2, dtype=torch.bool)
    reset[3] = True
    module(x, None, reset)
    assert shapes == [(2, 4), (4, 4)]


def test_the_mask_that_enters_has_a_mean_of_one():
    torch.manual_seed(0)
    mask = by_scan.entering_mask(0.2, torch.zeros(400, 100))
    assert set(mask.unique().tolist()) == {0, 1.25}
    assert math.isclose(mask.mean(), 1, abs_tol=0.01)


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16], ids=str)
def test_masks_are_drawn_alike_whatever_the_default_dtype(default):
    """16 bits would have 256 numbers to draw from."""
    masks = []
    for dtype in (torch.float32, default):
        torch.manual_seed(0)
        torch.set_default_dtype(dtype)
        try:
            masks.append(by_scan.drawn(0.001, (1000,), torch.zeros(())))
        finally:
            torch.set_default_dtype(torch.float32)
    assert torch.equal(*masks) and masks[0].any()


@every
def test_zoneout_keeps_so_many_units(cell):
    module, x = make(cell, 3, 50, zoneout=0.25), torch.randn(40, 8, 3)
    output = module(x, None)[0]
    kept = (output[1:] == output[:-1]) & (output[1:] != 0)
    moving = (output[1:] != 0).float().mean()
    assert math.isclose(kept.float().mean() / moving, 0.25, abs_tol=0.02)


@every
def test_zoneout_in_evaluation_is_the_expectation(cell):
    module, x = make(cell, 3, 4, zoneout=0.25, **F64), torch.randn(1, 2, 3, **F64)
    plain = make(cell, 3, 4, **F64)
    h = torch.randn(1, 2, 4, **F64)
    hx = (h, h) if module.cell.has_c else h
    found, wanted = (m.eval()(x, hx)[0] for m in (module, plain))
    torch.testing.assert_close(found, 0.25 * h + 0.75 * wanted)


def test_dropout_is_between_layers():
    module, x = make("MinGRU", 3, 4, 2, dropout=1.0, **F64), torch.randn(6, 2, 3, **F64)
    zeros = torch.zeros(6, 2, 4, **F64)
    last = make("MinGRU", 4, 4, **F64)
    with torch.no_grad():
        last.weight_ih_l0.copy_(module.weight_ih_l1), last.bias_ih_l0.copy_(module.bias_ih_l1)
    assert torch.equal(module(x)[0], last(zeros)[0])


@every
def test_vmap_of_a_call(cell):
    """A mapped tensor has no `data`."""
    module, x = make(cell, 3, 4, **F64).eval(), torch.randn(6, 5, 2, 3, **F64)
    found = torch.func.vmap(lambda x: module(x)[0])(x)
    torch.testing.assert_close(found, torch.stack([module(x)[0] for x in x]))

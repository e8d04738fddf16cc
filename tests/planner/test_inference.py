"""Calls without gradients have a table of their own: PyTorch's kernels do less there.

T steps, B batch, H hidden.
"""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import bppsa_lightning as bl
from bppsa_lightning import planner
from bppsa_lightning.planner import machine, ratios, tables
from experiments import recording

CPU = torch.device("cpu")


@pytest.fixture
def own(monkeypatch, tmp_path):
    """In training GRUs pay from 2 steps on; in inference 5 steps do, and 4 do not."""
    this = machine.this_cpu()
    monkeypatch.setenv(tables.FOLDER, str(tmp_path))
    monkeypatch.delenv(machine.TABLE, raising=False)
    parts = {
        "hand_over": {"H": [8], "B": [4], "least_T": {"GRU": [[2]]}},
        "inference": {
            "cell": "GRU", "T": [4, 5], "B": [4], "H": [8], "inference": [[[1.04]], [[1.06]]]
        },
    }  # fmt: skip
    table = {"format": tables.FORMAT, "machine": dict(this), "measured": {}}
    table |= {section: [{"threads": 1, **part}] for section, part in parts.items()}
    tables.write(tables.user_path(this), table)
    machine.forget()
    yield
    monkeypatch.undo()
    machine.forget()


def test_each_mode_by_its_own(own):
    request = planner.Request("gru", 4, 4, 8, CPU)
    assert planner.fallback_reason(request) is None
    without = request._replace(mode="inference")
    assert planner.fallback_reason(without) == (
        "seq_len 4, batch 4, hidden 8 without gradients: PyTorch's kernel measured faster"
    )
    assert planner.fallback_reason(without._replace(T=5)) is None
    assert planner.fallback_reason(without._replace(algorithm="linear")) is None
    # Samples of different lengths were measured in training alone.
    for T in (3, 30):
        spread = {"total_steps": 4 * T - 3, "T": T}
        reasons = [planner.fallback_reason(r._replace(**spread)) for r in (request, without)]
        assert reasons[0] == reasons[1] and bool(reasons[0]) == (T == 3)


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_a_layer_asks_again_where_gradients_are_turned_off(own, off):
    stock = nn.GRU(3, 8)
    gru = copy.deepcopy(stock)
    (chain,) = bl.attach(gru)
    x = torch.rand(4, 4, 3)
    for trained, without in ((1, 1), (2, 2), (3, 3)):
        output = gru(x)[0]
        assert output.requires_grad and chain.calls == trained
        with off():
            assert torch.equal(gru(x)[0], stock(x)[0])  # to the bit: it is PyTorch's
        assert chain.fallback_calls == without
        assert "without gradients" in chain.reason
    with off():
        gru(torch.rand(5, 4, 3))
    assert chain.calls == 4
    assert "4 of 7 calls accelerated; last fallback: seq_len 4" in bl.explain(gru)


def test_a_checkpoint_whose_forward_is_pytorchs_and_whose_backward_is_ours(own):
    """A reentrant one walks without gradients first; dropout between the layers is the same."""
    stock = nn.GRU(8, 8, num_layers=2, dropout=0.5)
    ours = copy.deepcopy(stock)
    (chain,) = bl.attach(ours)
    found = []
    for gru in (stock, ours):
        x = torch.rand(4, 4, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
        torch.manual_seed(1)
        checkpoint(lambda x, gru=gru: gru(x)[0], x, use_reentrant=True).square().sum().backward()
        found.append([x.grad, *(p.grad for p in gru.parameters())])
    assert (chain.calls, chain.fallback_calls) == (1, 1)
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize(
    "options, dtype",
    [({}, torch.float64), ({"proj_size": 3}, torch.float32)],
    ids=["float64", "projected"],
)
def test_what_was_not_measured_is_taken_to_be_as_in_training(own, monkeypatch, options, dtype):
    """PyTorch's LSTM is not oneDNN's there."""
    monkeypatch.setattr(ratios, "pytorch_is_faster", lambda *size: True)
    lstm = nn.LSTM(3, 8, **options)
    (chain,) = bl.attach(lstm)
    x = torch.rand(4, 4, 3)
    with torch.no_grad():
        if not options:  # the same layer and sizes, converted between two calls
            lstm(x)
            assert (chain.calls, chain.fallback_calls) == (0, 1)
        lstm.to(dtype)(x.to(dtype))
    assert chain.calls == 1


def test_a_users_table_from_before_there_was_one(monkeypatch, tmp_path):
    this = machine.this_cpu()
    monkeypatch.setenv(tables.FOLDER, str(tmp_path))
    monkeypatch.delenv(machine.TABLE, raising=False)
    shipped = tables.shipped()["amd_epyc_2"]
    old = {name: shipped[name] for name in ("format", "measured", "hand_over", "packed", "scan")}
    tables.write(tables.user_path(this), {**old, "machine": dict(this)})
    machine.forget()
    assert machine.cpu()["hand_over"] == old["hand_over"]
    assert ratios.pytorch_is_faster("rnn_tanh", False, "inference", 1, 1, 512)
    monkeypatch.undo()
    machine.forget()


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
def test_the_record_of_what_is_chosen(cell):
    """Sizes between those of the table: seldom far from the better of the two."""
    rows = [row for row in recording.read("inference_cpu")["rows"] if row["cell"] == cell]
    assert {row["threads"] for row in rows} == {1, 2} and len(rows) > 150
    assert {row["ours"] for row in rows} == {True, False}
    ours = [row["linear"]["step"] / row["stock"]["step"] for row in rows if row["ours"]]
    assert sum(ratio > 1.1 for ratio in ours) <= 0.02 * len(ours) and max(ours) < 1.5
    worst = max(rows, key=lambda row: row["linear"]["step"] / row["stock"]["step"])
    assert worst["linear"]["step"] > 1.3 * worst["stock"]["step"] and not worst["ours"]

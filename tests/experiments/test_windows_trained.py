"""The benchmark of windows over a training, in small; and the tasks that it trains."""

import json
from dataclasses import replace

import pytest
import torch
from torch import Generator, nn

import bppsa_lightning as bl
from experiments import recording
from experiments.benchmarks import trained_tasks, windows_trained
from experiments.benchmarks.trained_tasks import TASKS, Reader

NAMES = [task.name for task in TASKS]


@pytest.mark.parametrize("task", TASKS, ids=NAMES)
def test_a_task(task, monkeypatch, tmp_path):
    """Draws what its network reads, of any length; the same from the same seed; it is scanned."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    network = task.network()
    assert len(bl.attach(network, task.algorithm)) == 1
    for T, B, held_out in ((task.T, 3, False), (300, 1, True)):
        x, y = task.draw(T, B, Generator().manual_seed(2), held_out)
        again = task.draw(T, B, Generator().manual_seed(2), held_out)
        assert x.shape[:2] == (B, T)
        assert torch.equal(x, again[0]) and torch.equal(y, again[1])
        loss = task.loss(network(x), y)
        loss.backward()
        assert loss.isfinite()
        assert all(float(p.grad.abs().max()) > 0 for p in network.parameters())


def test_what_is_held_out_is_not_trained_on():
    text, held_out = trained_tasks.text()
    assert int(text.max()) < 128 and len(held_out) > max(windows_trained.LENGTHS)
    assert "import" in bytes(text[:5000].tolist()).decode()
    assert not torch.equal(text[-1000:], held_out[-1000:])
    seen, _ = trained_tasks.forecast(1000, 1, Generator().manual_seed(0), False)
    later, wanted = trained_tasks.forecast(1000, 1, Generator().manual_seed(0), True)
    assert not torch.equal(seen, later)
    # Of step t, the hours after it.
    assert torch.equal(wanted[0, :-1, 0], later[0, 1:, 0])
    assert torch.equal(wanted[0, 0], later[0, 1 : 1 + trained_tasks.HORIZON, 0])


def test_the_sum_and_the_copy_are_those_of_the_sequence():
    x, y = trained_tasks.adding(50, 4, Generator().manual_seed(0), False)
    assert x[..., 1].sum(1).tolist() == [2] * 4
    torch.testing.assert_close(y[:, 0], x[..., 0][x[..., 1] == 1].view(4, 2).sum(1))
    x, y = trained_tasks.copying(20, 4, Generator().manual_seed(0), False)
    assert torch.equal(x[:, :3], y[:, -3:]) and (y[:, :-3] == -100).all()


@torch.no_grad()
@pytest.mark.parametrize("cell", ["GRU", "LSTM"])
def test_a_reader_that_remembers(cell):
    """Of its first state more is left after 50 steps of silence than of PyTorch's beginning."""
    left = []
    for memory in (0, 200):
        torch.manual_seed(0)
        layer = Reader(cell, 2, 16, 1, memory=memory).rnn
        nn.init.zeros_(layer.weight_hh_l0)
        x = torch.zeros(1, 50, 2)
        ends = [layer(x, of(cell, first))[1] for first in (0.0, 1.0)]
        apart = [torch.stack([*end]) if cell == "LSTM" else end for end in ends]
        left.append(float((apart[0] - apart[1]).abs().mean()))
    assert left[1] > 1000 * left[0]


def of(cell, value):
    state = torch.full((1, 1, 16), value)
    return (state, state) if cell == "LSTM" else state


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "NOTES_EVERY": 2, "MEASURED_AFTER": (0, 4), "LONG": 900, "LENGTHS": (900,),
    }.items():  # fmt: skip
        monkeypatch.setattr(windows_trained, name, value)
    tasks = [replace(t, T=600) if t.name == "forecast_lstm" else t for t in TASKS]
    monkeypatch.setattr(windows_trained, "TASKS", tasks)
    return tmp_path / recording.UNRECORDED


@pytest.mark.slow
def test_the_benchmark(small, capsys):
    only = ["--only", "characters_rnn", "copy_lstm", "forecast_lstm"]
    windows_trained.main([*only, "--steps", "4", "--seconds", "0"])
    record = json.loads((small / "windows_trained.json").read_text())
    assert (small / "windows_trained.png").stat().st_size > 10_000
    tasks = record["tasks"]
    assert list(tasks) == only[1:]
    for task in tasks.values():
        assert [note["step"] for note in task["training"]] == [0, 2, 4]
        assert [note["step"] for note in task["long"]] == [0, 2, 4]
        assert [case["step"] for case in task["measured"]] == [0, 4]
        for case in task["measured"]:
            assert case["gain"] > 0
            assert 0 < case["error"]["walk"] < 1e-4
            assert case["error"]["windows"] <= max(2 * case["error"]["walk"], 1e-6)
    # A plain RNN forgets; an LSTM that begins with a long memory does not.
    assert all(1 < note["windows"] < 900 for note in tasks["characters_rnn"]["long"])
    assert all("remembers" in note["walked"] for note in tasks["copy_lstm"]["long"])
    assert tasks["characters_rnn"]["training"][0]["walked"] == 'trained by "linear"'
    assert tasks["characters_rnn"]["steps_in_windows"] == 0
    assert tasks["forecast_lstm"]["steps_in_windows"] == 5
    assert tasks["forecast_lstm"]["training"][0]["windows"] > 1
    shown = capsys.readouterr().out
    assert "| forecast_lstm | 4 | 900 |" in shown and "times the walk's" in shown


def test_all_ways_train_the_same_network(small):
    """The notes disturb no training: with other ones its loss is the same bits."""
    [task] = (t for t in windows_trained.TASKS if t.name == "forecast_lstm")
    seen = windows_trained.study(replace(task, steps=2), 0)
    losses = []
    windows_trained.train(
        replace(task, steps=2),
        lambda step, network: None,
        lambda step, n, loss: losses.append(loss),
    )
    assert [note["loss"] for note in seen["training"]] == [losses[0], losses[2]]
    assert losses[0] != losses[2]

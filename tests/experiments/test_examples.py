"""The examples run, small: they learn what stock PyTorch learns, and leave a picture."""

import json
import re

import pytest
import torch

pytest.importorskip("matplotlib", reason="needs matplotlib, of the extra experiments")

from matplotlib.image import imread  # noqa: E402
from torch import nn  # noqa: E402

from experiments.examples import forecasting, reinforcement, side_by_side  # noqa: E402


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs an example's --quick; its record, and what it printed."""

    def run(example, *arguments):
        monkeypatch.chdir(tmp_path)
        example.main(["--quick", *arguments])
        name = example.__name__.rpartition(".")[2]
        path = tmp_path / "runs" / "records" / f"example_{name}.json"
        drawn(path.with_suffix(".png"))
        return json.loads(path.read_text()), capsys.readouterr().out

    return run


def drawn(path):
    """Checks that a picture has something in each half."""
    pixels = imread(path)[..., :3]
    width = pixels.shape[1] // 2
    for half in (pixels[:, :width], pixels[:, width:]):
        coloured = half.max(-1) - half.min(-1) > 0.2
        assert coloured.mean() > 0.001, path


def learned_the_same(found, tolerance=1e-5):
    assert found["losses_differ_by"] < tolerance
    for way in ("stock", "bppsa"):
        losses, seconds = found[way]["losses"], found[way]["seconds"]
        assert len(losses) >= 5 and sum(losses[-3:]) < sum(losses[:3])
        assert seconds["step"] > seconds["forward"] > 0
    assert found["speed_up"]["step"] > 0


def test_forecasting(run, monkeypatch):
    monkeypatch.setattr(forecasting, "find_spec", lambda name: None)
    found, printed = run(forecasting)
    learned_the_same(found)
    assert found["task"] == "nn.GRU" and "pip install pytorch-forecasting" in printed
    assert 0 < found["errors"]["forecast"] < 0.6  # the series' own size is 0.6


def test_forecasting_with_the_package(run):
    pytest.importorskip("pytorch_forecasting", reason="needs pytorch-forecasting")
    found, printed = run(forecasting)
    learned_the_same(found)
    assert "DeepAR" in found["task"] and "pip install" not in printed


@pytest.mark.slow
def test_audio_tagging(run, monkeypatch, tmp_path):
    for package in ("pretty_midi", "midirenderer", "librosa"):
        pytest.importorskip(package, reason=f"needs {package}, of the extra audio")
    from bppsa_lightning.datasets.rendering import corpus
    from bppsa_lightning.datasets.rendering.instruments import INSTRUMENTS
    from experiments.examples import audio_tagging

    monkeypatch.setattr(
        corpus, "INSTRUMENTS", {code: INSTRUMENTS[code] for code in ("cel", "flu", "pia")}
    )
    monkeypatch.setattr(audio_tagging, "BATCH", 4)
    found, printed = run(audio_tagging, "--data", str(tmp_path / "clips"))
    learned_the_same(found)
    assert 0 <= found["right"] <= 1 and f"{found['right']:.0%} of {found['clips']}" in printed


def test_pruning_and_retraining(run):
    pytest.importorskip("sklearn", reason="needs scikit-learn, of the extra experiments")
    from experiments.examples import prune_and_retrain

    found, _ = run(prune_and_retrain)
    learned_the_same(found)
    assert found["weights_left"] == pytest.approx(0.05, abs=1e-3)
    assert found["right"]["bppsa"] == found["right"]["stock"]


@pytest.mark.slow
def test_long_sequences(run, environment, monkeypatch):
    from experiments.examples import long_sequences

    monkeypatch.setenv("PYTHONPATH", environment["PYTHONPATH"])
    found, printed = run(long_sequences)
    stock = found["stock"]["losses"]
    assert stock[-1] < stock[0]
    for way in ("bppsa", "chain"):
        assert found[way]["losses"] == pytest.approx(stock, rel=1e-4)
        assert found[way]["bytes"] > 0 and found[way]["step"] > 0
    assert "bppsa_chain, 2 processes" in printed


def test_reinforcement(run):
    found, _ = run(reinforcement)
    assert found["gradients_differ_by"] < 1e-5
    for way in reinforcement.WAYS:
        # The same games: rounding moves no action within three updates.
        assert found[way]["rewards"] == found["loop"]["rewards"]
        assert len(found[way]["seconds"]) == 3


@pytest.mark.slow
def test_memory_is_learned():
    learner = reinforcement.Learner("bppsa")
    for _ in range(120):
        learner.update()
    assert learner.rewards[0] < 0.4 and learner.rewards[-1] > 0.9


@pytest.mark.parametrize("resets", ["none", "all", "some", "at the first step", "at the last step"])
def test_segments_are_the_loop(resets):
    torch.manual_seed(0)
    T, B = 9, 4
    first = {
        "none": torch.zeros(T, B), "all": torch.ones(T, B), "some": torch.rand(T, B) < 0.3,
        "at the first step": torch.arange(T)[:, None].expand(T, B) == 0,
        "at the last step": torch.arange(T)[:, None].expand(T, B) == T - 1,
    }[resets].bool()  # fmt: skip
    gru = nn.GRU(3, 5).double()
    x = torch.randn(T, B, 3, dtype=torch.float64, requires_grad=True)
    h = torch.randn(1, B, 5, dtype=torch.float64, requires_grad=True)
    found, wanted = (
        (states, torch.autograd.grad(states.sin().sum(), (x, h, *gru.parameters())))
        for way in (reinforcement.segments, reinforcement.masked_loop)
        for states in [way(gru, x, first, h)]
    )
    torch.testing.assert_close(found[0], wanted[0])
    torch.testing.assert_close(found[1], wanted[1])


def test_games_begin_and_end_within_a_rollout():
    """A sign is seen at the first step alone; an episode that is over is followed by another."""
    rollout = reinforcement.Learner("stock").play()
    first, over = rollout["first"], rollout["over"]
    assert torch.equal(first[1:], over[:-1]) and first[0].all()
    assert 16 * 256 / 100 <= first.sum() <= 16 * 256 / 20
    assert torch.equal(rollout["x"].sum(-1), first.float())


def test_a_summary_compares_pair_by_pair():
    def of(step, losses):
        return side_by_side.Run(losses, [step, step], {"step": step, "data": 0.0})

    runs = {
        "stock": [of(4.0, [2.0, 1.0]), of(9.0, [2.0, 1.0])],
        "bppsa": [of(2.0, [2.0, 1.5]), of(3.0, [2.0, 1.5])],
    }
    found = side_by_side.summary(runs)
    assert found["speed_up"] == {"step": 2.5} and found["losses_differ_by"] == 0.25
    assert found["stock"]["elapsed"] == [9.0, 18.0] and found["bppsa"]["elapsed"] == [3.0, 6.0]
    text = side_by_side.table(found)
    assert re.search(r"step +6500\.00 ms +2500\.00 ms +2\.5x", text) and "2e-01" in text
    assert "the first 1 of 2 steps by less than 1e-04" in text
    assert side_by_side.together([2.0, 1.0], [2.0001, 1.0]) == 2

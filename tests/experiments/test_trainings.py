"""The benchmark of whole training steps, each training in a process of its own."""

import json
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest

from experiments import recording
from experiments.benchmarks import trainings
from experiments.paper.quotes import training as quotes


@pytest.fixture
def small(monkeypatch):
    """The same models, of few units, samples and steps."""
    models = {
        name: replace(model, hidden=3, B=2, T=9, features=2, lengths=min(model.lengths, 4))
        for name, model in trainings.MODELS.items()
    }
    monkeypatch.setattr(trainings, "MODELS", models)


@pytest.mark.parametrize("name", trainings.MODELS)
def test_both_trainings_have_the_same_losses(name, small, accelerate_everything, capsys):
    found = {}
    for strategy in trainings.STRATEGIES:
        trainings.main(["--steps", "3", "--threads", "1", "one", name, strategy])
        found[strategy] = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert found[strategy]["seconds"] > 0 and found[strategy]["faults"] >= 0
    assert found["bppsa"]["loss"] == pytest.approx(found["stock"]["loss"], rel=1e-4)


def test_pairs_of_processes_make_a_record_and_a_table(tmp_path, monkeypatch, capsys):
    """Which of the two is asked for, and how, is what the command line says."""
    asked, run = [], subprocess.run

    def ran(command, **options):
        if "one" not in command:  # asks for the processor, say
            return run(command, **options)
        one = trainings.parser().parse_args(command[3:])
        asked.append((one.model, one.strategy, one.steps, one.threads))
        seconds = {"stock": 0.03, "bppsa": 0.01}[one.strategy]
        found = {"seconds": seconds, "faults": 7.0, "loss": 2.0 + (one.strategy == "bppsa") * 1e-5}
        return SimpleNamespace(stdout=f"what Lightning says\n{json.dumps(found)}\n")

    monkeypatch.setattr(subprocess, "run", ran)
    monkeypatch.setattr(recording, "folder", lambda record: tmp_path)
    trainings.main(["--models", "audio", "text", "--rounds", "2", "--steps", "5", "--threads", "1"])
    assert asked == [(m, s, 5, 1) for m in ("audio", "text") for s in ("stock", "bppsa") * 2]
    assert "| text | LSTM 128 | (32, 200) | 30.0 ms | 10.0 ms | 3.0x |" in capsys.readouterr().out
    monkeypatch.setattr(quotes, "read", lambda name: recording.read(name, tmp_path))
    said = quotes.usual_models("records")
    assert "| audio | bidirectional GRU 128 | 16 | 300 | 30.0 ms | 10.0 ms | 3.0x |" in said
    assert "One thread. After 15 steps" in said and "within 5e-06 of each other" in said

"""The bitstream experiment as a user runs it: compared, interrupted, killed, resumed."""

import json
import os
import signal
import time

import pytest
import torch
from support import forked

from experiments import recording
from experiments.compare import __main__ as compare
from experiments.compare import runs

SMALL = [
    *("--data.steps", "30"),
    *("--data.num_samples", "1600"),
    *("--data.num_val_samples", "160"),
    *("--trainer.accelerator", "cpu"),
    *("--trainer.enable_progress_bar", "false"),
]


@pytest.fixture
def start(environment, tmp_path):
    """Starts a module of experiments/ in an empty folder; what it says is in `said` there."""
    started = []

    def start(module, *arguments, **variables):
        variables = {"PYTHONPATH": environment["PYTHONPATH"], **variables}
        started.append(
            forked.start(
                tmp_path / "said", f"experiments.{module}", *arguments, *SMALL, folder=tmp_path,
                **variables,
            )
        )  # fmt: skip
        return started[-1]

    yield start
    for process in started:
        forked.kill(process)


@pytest.fixture
def run(start, tmp_path):
    """Runs one of them to its end; what it says."""

    def run(*arguments, status=0, **variables):
        process = start(*arguments, **variables)
        process.join(300)
        said = (tmp_path / "said").read_text()
        assert process.exitcode == status, said
        return said

    return run


def losses(folder):
    rows = (folder / "csv" / "version_0" / "metrics.csv").read_text().splitlines()
    column = rows[0].split(",").index("train/loss")
    return [float(row.split(",")[column]) for row in rows[1:] if row.split(",")[column]]


@pytest.mark.slow
def test_compare_trains_both_and_shows_that_the_curves_coincide(
    trained_here, tmp_path, capsys, caplog
):
    caplog.set_level("INFO")
    compare.main(["bitstream_rnn", "--trainer.limit_train_batches", "40", *SMALL])
    printed = capsys.readouterr().out
    assert "speed-up" in printed and "curves:" in printed
    folder = tmp_path / "runs" / "bitstream_rnn"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["largest_relative_loss_difference"] < 1e-4
    assert {"cpu", "torch", "date"} <= set(summary["environment"])
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert len(losses(folder / "bppsa")) == len(losses(folder / "stock")) == 4
    # Scanned in one run, stock in the other; and W&B wrote its offline file without an account.
    assert caplog.text.count("BPPSA accelerates 1 of 1 recurrent layers: rnn (RNN-tanh)") == 1
    assert list((folder / "bppsa").rglob("*.wandb")) and list((folder / "stock").rglob("*.wandb"))


@pytest.mark.slow
def test_compare_goes_on_where_it_was_interrupted(trained_here, tmp_path, monkeypatch):
    """With --resume both end with the losses of runs that nothing interrupted."""
    fit = ["--trainer.limit_train_batches", "16", "--trainer.log_every_n_steps", "1", *SMALL]
    fit += ["--checkpoint.every_n_train_steps", "5"]
    compare.main(["bitstream_rnn", *fit])
    folder = tmp_path / "runs" / "bitstream_rnn"
    whole = {name: runs.read_training(folder / name) for name in ("bppsa", "stock")}
    assert [step for step, _ in whole["stock"][runs.LOSS]] == list(range(16))

    train = runs.command

    def cut_short(*arguments):
        """The scanned run ends, stock's is interrupted two steps after a checkpoint."""
        if arguments[2].name == "stock":
            train(*arguments[:3], [*arguments[3], "--trainer.max_steps", "12"])
            raise KeyboardInterrupt
        return train(*arguments)

    monkeypatch.setattr(runs, "command", cut_short)
    with pytest.raises(SystemExit, match="with --resume goes on from the last checkpoint"):
        compare.main(["bitstream_rnn", *fit])
    monkeypatch.setattr(runs, "command", train)
    saved = folder / "stock" / "checkpoints" / "epoch=0-step=10.ckpt"
    (folder / "stock" / "checkpoints" / "last.ckpt").write_bytes(saved.read_bytes())
    trained_here.clear()
    compare.main(["bitstream_rnn", "--resume", *fit])
    assert all("--ckpt_path" in command for command in trained_here) and len(trained_here) == 2
    for name, log in whole.items():
        resumed = runs.read_training(folder / name)
        for metric in (runs.LOSS, "train/accuracy", "val/loss"):
            assert resumed[metric] == log[metric], f"{name}: {metric}"
        seconds = [value for _, value in resumed[runs.CLOCK]]
        assert seconds == sorted(seconds)


def test_a_part_of_a_training_holds_from_its_first_step_on(tmp_path):
    parts = {
        0: "0,0.5,1.0,\n1,1.5,0.9,\n2,2.5,0.8,",  # two steps after its last checkpoint
        1: "",  # killed before its first step
        2: "1,0.25,0.7,\n3,2.25,0.6,\n3,,,0.2",
        10: "4,1.0,0.5,",
    }
    for version, rows in parts.items():
        path = tmp_path / "csv" / f"version_{version}" / "metrics.csv"
        path.parent.mkdir(parents=True)
        path.write_text(f"step,{runs.CLOCK},{runs.LOSS},val/loss\n{rows}\n")
    log = runs.read_training(tmp_path)
    assert log[runs.LOSS] == [(0, 1.0), (1, 0.7), (3, 0.6), (4, 0.5)]
    assert log[runs.CLOCK] == [(0, 0.5), (1, 0.75), (3, 2.75), (4, 3.75)]
    assert log["val/loss"] == [(3, 0.2)]
    assert runs.read_last(tmp_path)[runs.LOSS] == [(4, 0.5)]
    with pytest.raises(FileNotFoundError, match="found no metrics of a training"):
        runs.read_training(tmp_path / "nowhere")


def test_a_clock_stands_while_its_process_is_stopped():
    clock = [(step, 0.5 * step) for step in range(20)]
    late = [(step, seconds + 720.0 * (step >= 7)) for step, seconds in clock]
    found = runs.without_stops(late)
    assert [step for step, _ in found] == list(range(20))
    assert found[6] == (6, 3.0) and found[7:] == [(step, 0.5 * (step - 1)) for step in range(7, 20)]
    validated = [(step, seconds + 20.0 * (step >= 7)) for step, seconds in clock]
    assert runs.without_stops(validated) == validated  # what takes long is no stop
    slow = [(step, 60.0 * step) for step in range(20)]
    assert runs.without_stops(slow) == slow
    assert runs.without_stops(clock[:1]) == clock[:1]


def test_a_schedule_of_another_name_leaves_folder_and_record_alone(tmp_path, monkeypatch, capsys):
    def pair(experiment, folder, arguments, *_):
        asked.append((experiment, folder.as_posix(), arguments))
        log = {runs.LOSS: [(0, 2.0), (9, 1.0)], runs.CLOCK: [(0, 0.5), (9, 1.0)]}
        log |= {name: [(9, 0.5)] for name in ("val/loss", "val/accuracy")}
        log |= {f"seconds/{part}": [(9, 0.01)] for part in compare.summary.PARTS}
        return {"bppsa": log, "stock": log}

    asked = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "pair", pair)
    monkeypatch.setattr(recording, "RECORDS", tmp_path / "records")
    compare.main(["bitstream_rnn", "--name", "longer", "--record", "--model.lr", "1e-5"])
    assert asked == [("bitstream_rnn", "runs/longer", ["--model.lr", "1e-5"])]
    found = {path.name for path in (tmp_path / "records").iterdir()}
    assert {"longer.json", "longer_curves.json", "longer.png"} <= found
    assert not [name for name in found if not name.startswith("longer")]
    record = json.loads((tmp_path / "records" / "longer.json").read_text())
    assert record["name"] == "longer" and record["experiment"] == "bitstream_rnn"
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["longer"]
    for name in ("a/b", "..", ""):
        with pytest.raises(SystemExit):
            compare.main(["bitstream_rnn", "--name", name])
        assert f"--name: found {name!r}, wanted the name of a file" in capsys.readouterr().err


def test_compare_names_what_it_does_not_find(run):
    said = run("compare", "nothing", status=2)
    assert "invalid choice: 'nothing'" in said
    assert all(name in said for name in runs.experiments())
    assert runs.experiments() == ["bitstream_rnn", "irmas_gru", "lenet5", "pruned_vgg11"]


def wait_for(condition, process, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.is_alive(), "ended before it could be interrupted"
        assert time.monotonic() < deadline, "took too long"
        time.sleep(0.02)


@pytest.mark.slow
def test_interrupted_killed_and_then_resumed(start, run, tmp_path):
    fit = ["train.bitstream_rnn", "fit", "--checkpoint.every_n_train_steps", "1"]
    disabled = {"WANDB_MODE": "disabled"}
    checkpoints = tmp_path / "runs" / "bitstream_rnn" / "checkpoints"
    last = checkpoints / "last.ckpt"

    def steps_done():
        return torch.load(last, weights_only=True)["global_step"] if last.exists() else 0

    def stop(how, *resume):
        """Trains until there is a new checkpoint, then sends a signal; the steps of the last."""
        before = steps_done()
        process = start(*fit, *resume, "--trainer.max_epochs", "1000", **disabled)
        wait_for(lambda: steps_done() > before, process)
        os.kill(process.pid, how)
        process.join(60)
        forked.kill(process)
        whole = list(checkpoints.glob("*.ckpt"))
        assert whole
        for path in whole:
            assert torch.load(path, weights_only=True)["state_dict"]
        assert all(not path.name.endswith(".tmp") for path in (tmp_path / "data").iterdir())
        return steps_done()

    interrupted = stop(signal.SIGINT)
    assert not list(checkpoints.glob("*.tmp"))
    killed = stop(signal.SIGKILL, "--ckpt_path", str(last))
    assert killed > interrupted
    resume = ["--ckpt_path", str(last), "--trainer.max_steps", str(killed + 3)]
    run(*fit, *resume, "--trainer.max_epochs", "-1", **disabled)
    assert steps_done() == killed + 3

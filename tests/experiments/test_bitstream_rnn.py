"""The bitstream experiment as a user runs it: compared, interrupted, killed, resumed."""

import json
import signal
import subprocess
import sys
import time

import pytest
import torch

from experiments.compare import runs

SMALL = [
    *("--data.steps", "30"),
    *("--data.num_samples", "1600"),
    *("--data.num_val_samples", "160"),
    *("--trainer.accelerator", "cpu"),
    *("--trainer.enable_progress_bar", "false"),
]


@pytest.fixture
def run(environment, tmp_path):
    """Runs a module of experiments/ in an empty folder."""

    def run(module, *arguments, check=True):
        command = [sys.executable, "-m", f"experiments.{module}", *arguments, *SMALL]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    return run


def losses(folder):
    rows = (folder / "csv" / "version_0" / "metrics.csv").read_text().splitlines()
    column = rows[0].split(",").index("train/loss")
    return [float(row.split(",")[column]) for row in rows[1:] if row.split(",")[column]]


@pytest.mark.slow
def test_compare_trains_both_and_shows_that_the_curves_coincide(run, tmp_path):
    printed = run("compare", "bitstream_rnn", "--trainer.limit_train_batches", "40")
    assert "speed-up" in printed.stdout and "curves:" in printed.stdout
    folder = tmp_path / "runs" / "bitstream_rnn"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["largest_relative_loss_difference"] < 1e-4
    assert {"cpu", "torch", "date"} <= set(summary["environment"])
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert len(losses(folder / "bppsa")) == len(losses(folder / "stock")) == 4
    # Scanned in one run, stock in the other; and W&B wrote its offline file without an account.
    assert (
        "BPPSA accelerates 1 of 1 recurrent layers: rnn (RNN-tanh)"
        in printed.stderr + printed.stdout
    )
    assert list((folder / "bppsa").rglob("*.wandb")) and list((folder / "stock").rglob("*.wandb"))


def test_compare_names_what_it_does_not_find(run):
    done = run("compare", "nothing", check=False)
    assert done.returncode == 2 and "invalid choice: 'nothing'" in done.stderr
    assert all(name in done.stderr for name in runs.experiments())
    assert runs.experiments() == ["bitstream_rnn", "irmas_gru", "lenet5", "pruned_vgg11"]


def wait_for(condition, process, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "ended before it could be interrupted"
        assert time.monotonic() < deadline, "took too long"
        time.sleep(0.02)


@pytest.mark.slow
def test_interrupted_killed_and_then_resumed(environment, tmp_path):
    fit = [sys.executable, "-m", "experiments.train.bitstream_rnn", "fit"]
    fit += ["--checkpoint.every_n_train_steps", "1", *SMALL]
    environment = {**environment, "WANDB_MODE": "disabled"}
    checkpoints = tmp_path / "runs" / "bitstream_rnn" / "checkpoints"
    last = checkpoints / "last.ckpt"

    def steps_done():
        return torch.load(last, weights_only=True)["global_step"] if last.exists() else 0

    def stop(how, *resume):
        """Trains until there is a new checkpoint, then sends a signal; the steps of the last."""
        before = steps_done()
        process = subprocess.Popen(
            [*fit, *resume, "--trainer.max_epochs", "1000"],
            cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            # A shell's background jobs ignore it, and so would what they start.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        try:
            wait_for(lambda: steps_done() > before, process)
            process.send_signal(how)
            process.wait(60)
        finally:
            process.kill()
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
    done = subprocess.run(
        [*fit, *resume, "--trainer.max_epochs", "-1"],
        cwd=tmp_path, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert steps_done() == killed + 3

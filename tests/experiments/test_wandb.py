"""An experiment's W&B run, read back with wandb's own reader: what is in it, and what is not."""

import getpass
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from lightning.pytorch.loggers import WandbLogger

wandb = pytest.importorskip("wandb", reason="needs wandb, of the extra experiments")

from experiments.train import bitstream_rnn, cli  # noqa: E402

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow
PARTS = ("forward", "backward", "optimizer", "rest", "step")
USER = "ada.lovelace"


class Run:
    """One W&B run that stayed on this machine."""

    def __init__(self, folder):
        (self.log,) = folder.rglob("*.wandb")
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(self.log)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        self.records = [json.loads(line) for line in printed.splitlines()]
        self.files = self.log.parent / "files"

    def of(self, kind):
        return [record[kind] for record in self.records if record["type"] == kind]

    def history(self, name):
        rows = [item["item"] for item in self.of("history")]
        return [row[name] for row in rows if name in row]

    def config(self):
        merged = {}
        for record in self.of("config"):
            merged |= record["update"]
        return merged

    def file(self, name):
        """The content of the file that the history's item `name` points at."""
        (path,) = self.history(f"{name}.path") or self.history(f"{name}.filenames")
        return (self.files / (path if isinstance(path, str) else path[0])).read_bytes()


@pytest.fixture(scope="module")
def trained(environment, tmp_path_factory):
    """The bitstream experiment, small, by a user without account, network or key."""
    folder = tmp_path_factory.mktemp("work")
    home = folder / "home" / USER
    home.mkdir(parents=True)
    project = home / "project"
    project.mkdir()
    git = ["git", "-c", f"user.email={USER}@example.org", "-c", f"user.name={USER}"]
    for command in (
        ["init", "--quiet"],
        ["commit", "--quiet", "--allow-empty", "-m", "start"],
        ["remote", "add", "origin", f"https://{USER}:secret@example.org/own.git"],
    ):
        subprocess.run([*git, *command], cwd=project, check=True)
    nowhere = "http://127.0.0.1:9"
    own = {
        **{k: v for k, v in environment.items() if not k.startswith("WANDB_")},
        "HOME": str(home), "USER": USER, "LOGNAME": USER, "EMAIL": f"{USER}@example.org",
        "http_proxy": nowhere, "https_proxy": nowhere, "WANDB_BASE_URL": nowhere,
        "TMPDIR": str(folder),
    }  # fmt: skip
    command = [
        *(sys.executable, "-m", "experiments.train.bitstream_rnn", "fit"),
        *("--data.steps", "30", "--data.num_samples", "480", "--data.num_val_samples", "160"),
        *("--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"),
        *("--trainer.logger.init_args.log_model", "true"),
    ]
    done = subprocess.run(command, cwd=project, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Run(project), home


def test_the_run_holds_config_metrics_plan_picture_and_checkpoint(trained):
    run, _ = trained
    config = run.config()
    assert (config["hidden_size"], config["lr"], config["steps"]) == (20, 1e-4, 30)
    assert config["trainer"]["strategy"] == "bppsa" and config["seed_everything"] == 0
    for name in ("train/loss", "train/accuracy", *(f"seconds/{part}" for part in PARTS)):
        assert len(run.history(name)) == 3, name
    assert len(run.history("val/loss")) == len(run.history("val/accuracy")) == 1
    assert all(norm > 0 for norm in run.history("grad_norm")) and len(run.history("grad_norm")) == 3
    plan = json.loads(run.file("plan"))
    assert dict(zip(plan["columns"], plan["data"][0]))["type"] == "RNN-tanh"
    assert run.file("seconds_per_step").startswith(b"\x89PNG")
    (checkpoint,) = (a for a in run.of("artifact") if a["type"] == "model")
    (content,) = checkpoint["manifest"]["contents"]
    saved = run.log.parents[2] / "checkpoints" / "last.ckpt"
    assert Path(content["local_path"]).read_bytes() == saved.read_bytes()


def test_nothing_personal_is_in_it(trained):
    run, home = trained
    values = {record.get("host") for record in run.of("run")}
    assert values == {"-"}
    files = [path for path in run.files.rglob("*") if path.is_file()]
    assert files and {path.parts[len(run.files.parts)] for path in files} == {"media"}
    content = b"".join(path.read_bytes() for path in (run.log, *files))
    for what in (USER, "example.org", "secret", str(home), str(ROOT), sys.prefix):
        assert what.encode() not in content, what
    strings = set(_strings(run.records))
    for what in (socket.gethostname(), getpass.getuser(), str(Path.home())):
        assert what not in strings
    assert not {"git", "output_raw", "output", "environment"} & {r["type"] for r in run.records}


def _strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


OFFLINE = "--trainer.logger.init_args.offline=true"


@pytest.mark.parametrize(
    ("arguments", "mode", "logger_offline"),
    [
        ([], "offline", False),
        (["--online"], "online", False),
        ([OFFLINE], "offline", True),
        (["--online", OFFLINE], "online", False),
        (["--online", "--trainer.logger=false"], "online", None),
    ],
)
def test_one_flag_goes_online(monkeypatch, arguments, mode, logger_offline, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bitstream_rnn"])
    for name in (*cli.WANDB, "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, "to be restored")
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path))
    defaults = [str(cli.HERE / f"{name}.yaml") for name in ("defaults", "bitstream_rnn")]
    application = cli.Application(
        bitstream_rnn.BitstreamRNN, bitstream_rnn.BitstreamDataModule, run=False, args=arguments,
        experiment="bitstream_rnn", auto_configure_optimizers=False,
        parser_kwargs={"default_config_files": defaults},
    )  # fmt: skip
    assert os.environ["WANDB_MODE"] == mode
    loggers = [x for x in application.trainer.loggers if isinstance(x, WandbLogger)]
    assert [x._offline for x in loggers] == ([] if logger_offline is None else [logger_offline])
    assert all(x._wandb_init.get("mode") is None for x in loggers)
    settings = wandb.Settings()
    settings.update_from_env_vars(os.environ)
    assert settings.mode == mode and settings.host == "-"

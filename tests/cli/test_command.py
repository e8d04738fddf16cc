"""The process of the command line loads nothing until it is asked; every other one at once."""

import subprocess
import sys

import pytest
from support.forked import environment

from bppsa_lightning import _command

USES = """
import sys
import bppsa_lightning as bl
print(bl._command.waiting, "torch" in sys.modules)
bl.attach
from lightning.pytorch.strategies import StrategyRegistry
print(bl._command.waiting, callable(bl.attach), "bppsa" in StrategyRegistry, bl.StepTimer.__name__)
"""


def ran(script, *arguments):
    done = subprocess.run(
        [sys.executable, script, *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("name, waits", [("bppsa", True), ("bppsa.py", False), ("train", False)])
def test_a_script_of_the_command_s_name_waits_until_a_name_is_used(tmp_path, name, waits):
    script = tmp_path / name
    script.write_text(USES)
    assert ran(script) == [f"{waits} {not waits}", "False True True StepTimer"]


@pytest.mark.parametrize(
    "argv, orig_argv, waits",
    [
        (["-m", "doctor"], ["python", "-m", "bppsa_lightning", "doctor"], True),
        (["-m"], ["python", "-W", "ignore", "-m", "bppsa_lightning"], True),
        (["-m", "-m"], ["python", "-Im", "bppsa_lightning", "-m"], True),
        (["-m", "x"], ["python", "-mbppsa_lightning", "x"], True),
        (["-m"], ["python", "-m", "bppsa_lightning.__main__"], True),
        (["-m", "bppsa_lightning"], ["python", "-m", "pytest", "bppsa_lightning"], False),
        (["-m"], ["python", "-m", "my_bppsa_lightning"], False),
        (["-m"], ["python", "-m", "bppsa_lightning.planner"], False),
        (["/venv/bin/bppsa", "doctor"], ["python", "/venv/bin/bppsa", "doctor"], True),
        (["bppsa.exe"], ["bppsa.exe"], True),
        (["train.py", "bppsa"], ["python", "train.py", "bppsa"], False),
        (["-c"], ["python", "-c", "import bppsa_lightning"], False),
        ([], ["python"], False),
    ],
)
def test_which_processes_are_the_command_line(monkeypatch, argv, orig_argv, waits):
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", orig_argv)
    assert _command._is_command() == waits


def test_here_it_is_loaded():
    assert not _command.waiting
    _command.load()  # does nothing

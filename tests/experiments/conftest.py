"""What the experiments' tests share: `experiments` is found, here and by what they start."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# As `python -m pytest` has it; last, so that an installed bppsa_lightning comes first.
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))


@pytest.fixture(scope="session")
def environment():
    """An environment in which a process finds `experiments`, whatever folder it runs in."""
    paths = [os.environ.get("PYTHONPATH"), str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.fixture
def trained_here(monkeypatch, tmp_path):
    """In an empty folder, trainings that a script starts run in this process; their arguments.

    Each process by itself takes six seconds to import torch and Lightning.
    """
    commands, start = [], subprocess.run

    def run(command, **settings):
        if command[1] != "-m" or not command[2].startswith("experiments.train."):
            return start(command, **settings)
        commands.append(command[3:])
        importlib.import_module(command[2]).main(command[3:])
        if "wandb" in sys.modules:  # its run is this process's, and would be the next training's
            sys.modules["wandb"].finish()
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.chdir(tmp_path)
    return commands

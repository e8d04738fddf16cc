"""All commands: help, wrong usage, exit codes, one JSON object on stdout and nothing else."""

import json
import os
import subprocess
import sys

import pytest
from support.forked import environment

GRU = ("torch.nn:GRU", "--args", '{"input_size": 5, "hidden_size": 7}')

WRONG = [
    ((), "COMMAND"),
    (("train",), "invalid choice"),
    (("doctor", "twice"), "unrecognized arguments"),
    (("bench", *GRU), "--input: found none"),
    (("bench", "--input", "3"), "TARGET: found none"),
    (("bench", "torch.nn", "--input", "3"), "TARGET: found 'torch.nn', wanted package.module:NAME"),
    (("bench", "torch.nn:Gru", "--input", "3"), "TARGET: torch.nn has no Gru"),
    (("bench", "torch.nn:init", "--input", "3"), "TARGET: torch.nn:init is module"),
    (("bench", "torch:Size", "--input", "3"), "TARGET: torch:Size gives Size, wanted an nn.Module"),
    (("bench", "nowhere.at_all:X", "--input", "3"), "TARGET: found no module nowhere"),
    (("bench", "nowhere.py:X", "--input", "3"), "TARGET: found no file"),
    (("bench", "torch.nn:Identity", "--input", "3"), "returns nothing that has a gradient"),
    (("bench", "torch.nn:GRU", "--input", "3", "--args", "5"), "--args: found '5', wanted a JSON"),
    (("bench", "torch.nn:GRU", "--input", "3", "--args", "{"), "--args: found '{', which is no J"),
    (("bench", *GRU, "--input", "3,4,x"), "--input: found '3,4,x', wanted sizes"),
    (("bench", *GRU, "--input", "3,0,5"), "--input: found the size 0"),
    (("bench", *GRU, "--input", "3,4:int"), "--input: found the dtype 'int'"),
    (("bench", *GRU, "--input", "3:float32:4"), "--input: found a limit in"),
    (("bench", *GRU, "--input", "3:int64:0"), "--input: found the limit '0'"),
    (("bench", *GRU, "--input", "99999,99999,999"), "would take"),
    (("bench", *GRU, "--input", "3,4,5", "--algorithm", "fast"), "--algorithm: found 'fast'"),
    (("bench", *GRU, "--input", "3,4,5", "--device", "tpu"), "--device: found tpu"),
    (("bench", *GRU, "--input", "3,4,5", "--seconds", "0"), "--seconds: found 0"),
    (("bench", *GRU, "--input", "3,4,5", "--threads", "0"), "--threads: found 0"),
    (("bench", *GRU, "--input", "3,4,5", "--picture", "x.gif"), "--picture: found 'x.gif'"),
    (("bench", *GRU, "--input", "3,4,5", "--training-step"), "--training-step: GRU has none"),
    (("bench", *GRU, "--input", "3,4,5", "--checkpoint", "no"), "--checkpoint: found no file"),
    (("calibrate", "--seconds", "-1"), "--seconds: found -1.0"),
    (("calibrate", "--device", "tpu"), "--device: found 'tpu'"),
    (("calibrate", "--device", "mps"), "--device: found mps"),
    (("report", "/nowhere/at/all"), "RUN: /nowhere/at/all does not exist"),
]


@pytest.mark.parametrize("arguments, said", WRONG, ids=lambda value: str(value)[:60])
def test_wrong_usage_is_named(command, monkeypatch, tmp_path, arguments, said):
    monkeypatch.chdir(tmp_path)
    status, out, err = command(*arguments)
    assert status == 2, err
    assert said in err and "Traceback" not in err
    assert not out


def test_an_error_is_an_object_too(command):
    status, out, err = command("bench", *GRU, "--input", "x", "--json")
    assert status == 2
    assert json.loads(out) == {"error": err.strip().removeprefix("bppsa bench: error: ")}


@pytest.mark.parametrize("name", ["doctor", "bench", "calibrate", "report"])
def test_help(command, name):
    status, out, _ = command(name, "--help")
    assert status == 0
    assert f"usage: bppsa {name}" in out and "examples:" in out and "--json" in out
    assert name in command("--help")[1]


def test_help_is_quick():
    """Nothing heavy is imported for it."""
    source = (
        "import runpy, sys; sys.argv[1:] = ['--help']\n"
        "sys.argv[0] = '/usr/bin/bppsa'\n"
        "try: runpy.run_module('bppsa_lightning', run_name='__main__')\n"
        "except SystemExit as exit: print(exit.code, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment(), capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "0 False", done.stderr


TALKS = """
import os
import torch

print("python says this on import")

class Model(torch.nn.GRU):
    def forward(self, x):
        print("python")
        os.write(1, b"and below python\\n")
        return super().forward(x)
"""


@pytest.mark.slow
def test_stdout_has_the_object_alone(tmp_path):
    """Whatever the user's model prints, and on whichever level; run as it is by people."""
    (tmp_path / "talks.py").write_text(TALKS)
    command = ["bench", "talks:Model", *GRU[1:], "--input", "3,4,5", "--seconds", "0.1", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "bppsa_lightning", *command],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["layers"][0]["type"] == "GRU" and found["memory"]["bppsa"] is not None
    assert "and below python" in done.stderr and "python says this on import" in done.stderr


def test_a_reader_who_leaves_is_no_error(tmp_path):
    """As in `bppsa doctor | head -0`."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "bppsa_lightning", "bench", "--json"],
        env=environment(),
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    assert done.returncode == 141, done.stderr
    assert "Traceback" not in done.stderr

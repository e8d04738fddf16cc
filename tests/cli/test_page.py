"""docs/command_line.md: names the options that there are; what it shows is printed in that form."""

import argparse
import re
from pathlib import Path

import pytest

from bppsa_lightning.cli.main import parser
from experiments import recording
from experiments.benchmarks import command_line

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "command_line.md").read_text()


def commands():
    (subparsers,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    return subparsers.choices


def section(name):
    return re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]


@pytest.mark.parametrize("name", ["doctor", "bench", "calibrate", "report"])
def test_options_are_those_of_the_command(name):
    options = {
        option
        for action in commands()[name]._actions
        if action.help != argparse.SUPPRESS
        for option in action.option_strings
        if option.startswith("--") and option not in ("--help", "--json")
    }
    prose = re.sub(r"<!-- numbers.*?<!-- end -->", "", section(name), flags=re.DOTALL)
    assert set(re.findall(r"--[a-z][a-z-]+", prose)) == options


def test_the_recorded_commands_are_those_of_the_page():
    assert f"bppsa {' '.join(command_line.BENCH)} --picture gains.png" in PAGE


def test_areas_of_doctor_are_those_of_the_page():
    table = re.findall(r"^\| (\w+) \| ", section("doctor"), re.MULTILINE)
    recorded = re.findall(r"^(\w+)$", recording.read("command_line")["doctor"], re.MULTILINE)
    assert table == recorded


@pytest.mark.slow
def test_what_it_shows_is_what_is_printed(tmp_path):
    """Apart from numbers, units, and what only this machine has."""
    found = command_line.results(0.2, tmp_path / "gains.png")
    shown = recording.read("command_line")
    assert shape(found["bench"]) == shape(shown["bench"])
    assert found["bench_json"].keys() == shown["bench_json"].keys()
    for command in ("doctor", "bench"):
        for place in map(str, (ROOT, Path.home(), tmp_path)):
            assert place == "/" or place not in shown[command]
    assert "All is well" in found["doctor"]


def shape(text):
    """The words of each line, but those of the machine and of other programs."""
    lines = [line for line in text.splitlines() if " kernels); torch" not in line]
    lines = [line for line in lines if not line.startswith("Other programs")]
    words = [re.sub(r"[\d.,]+(e[+-]?\d+)?|\b(us|ms|s|x|inf)\b", "", line).split() for line in lines]
    return [[w for w in line if not re.fullmatch(r"\(\w+[._]\w*\)|x|-", w)] for line in words]

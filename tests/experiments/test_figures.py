"""The page of the records is what the records say, and `make figures` leaves the records alone."""

import argparse
import importlib
import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "experiments" / "records"


@pytest.fixture
def figures(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    return importlib.import_module("figures")


def test_the_page_is_what_the_records_say(figures):
    written = (RECORDS / "README.md").read_text()
    again = figures.figures_page.page(RECORDS, figures.EXPERIMENTS, full=True)
    assert written == again, "stale: run `python experiments/figures.py --page`"


def test_every_picture_and_section_that_the_page_names_is_there(figures):
    page = (RECORDS / "README.md").read_text()
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", page)
    assert len(pictures) >= 10
    for name in pictures:
        assert (RECORDS / name).read_bytes().startswith(b"\x89PNG"), name
    headings = [figures.figures_page.anchor(h) for h in re.findall(r"^## (.*)$", page, re.M)]
    assert re.findall(r"\]\(#(.*?)\)", page) == headings
    assert len(set(headings)) == len(figures.EXPERIMENTS)


def test_what_has_no_record_is_not_measured(figures, tmp_path):
    page = figures.figures_page.page(tmp_path, figures.EXPERIMENTS, full=False)
    with_records = [e for e in figures.EXPERIMENTS if e.records]
    assert page.count("**Ours.** Not measured.") == len(with_records)
    assert "![" not in page and "short runs" in page
    # Nothing but the paper's own numbers.
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| [")]
    assert {row[-1] for row in rows} == {"not measured |", "see below |"}


def test_sizes_that_stock_wins_are_named(figures, tmp_path):
    name = "bitstream_sweep_rnn_cpu"
    record = json.loads((RECORDS / f"{name}.json").read_text())
    slow = record["rows"][0]
    slow["ratio_stock"]["step"] = 0.5
    (tmp_path / f"{name}.json").write_text(json.dumps(record))
    page = figures.figures_page.page(tmp_path, figures.EXPERIMENTS, full=True)
    assert f"**Stock PyTorch is faster at:** B = {slow['B']}, T = {slow['T']} (0.5x)." in page
    assert f"{name}.png: not measured." in page


@pytest.mark.parametrize("full", [False, True])
def test_what_is_measured_can_be_measured_again(figures, full):
    for experiment in figures.EXPERIMENTS:
        command = experiment.command(full, images=figures.CIFAR10)
        if command is None:
            assert experiment.elsewhere
        elif figures.figures_page.read(RECORDS, experiment) is not None:
            script, *arguments = shlex.split(command)
            assert "{" not in command
            assert (ROOT / "experiments" / script).is_file(), script
            if script == "compare.py":
                assert (ROOT / "experiments" / f"{arguments[0]}.yaml").is_file(), arguments[0]


class Parsed(Exception):
    """A script's command line is right: what it did not know itself."""


COMMANDS = [
    (name, full)
    for name in ("bitstream_rnn", "rnn_sweep", "gru_sweep", "irmas_gru", "gru_breakdown", "lenet5",
                 "table1", "figure10", "draw_scan", "pruned_vgg11")
    for full in (False, True)
]  # fmt: skip


@pytest.mark.parametrize("name,full", COMMANDS)
def test_every_command_line_is_parsed(figures, monkeypatch, tmp_path, capsys, name, full):
    pytest.importorskip("jsonargparse", reason="needs jsonargparse, of the extra experiments")
    (experiment,) = [e for e in figures.EXPERIMENTS if e.name == name]
    parse = argparse.ArgumentParser.parse_known_args

    def parse_and_stop(parser, arguments=None, namespace=None):
        raise Parsed(parse(parser, arguments, namespace)[1])

    def parse_all_and_stop(parser, arguments=None, namespace=None):
        _, unknown = parse(parser, arguments, namespace)
        assert not unknown, unknown
        raise Parsed([])

    for line in dict.fromkeys(experiment.command(full, images) for images in ("", figures.CIFAR10)):
        script, *arguments = shlex.split(line)
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        with monkeypatch.context() as patch, pytest.raises(Parsed) as parsed:
            patch.setattr(argparse.ArgumentParser, "parse_known_args", parse_and_stop)
            patch.setattr(argparse.ArgumentParser, "parse_args", parse_all_and_stop)
            runpy.run_path(str(ROOT / "experiments" / script), run_name="__main__")
        (rest,) = parsed.value.args
        applications = {"compare.py": arguments[:1], "compare_pruned.py": ["pruned_vgg11"],
                        "irmas_curves.py": ["irmas_gru"]}.get(script, [])  # fmt: skip
        for application in applications:
            command = [f"{application}.py", "fit", *rest, "--print_config"]
            monkeypatch.setattr(sys, "argv", command)
            monkeypatch.chdir(tmp_path)
            with pytest.raises(SystemExit) as done:
                runpy.run_path(str(ROOT / "experiments" / command[0]), run_name="__main__")
            assert done.value.code in (0, None)
            assert "max_epochs" in capsys.readouterr().out


def test_the_command_lines_that_are_parsed_are_all(figures):
    full = {e.name: e.minutes for e in figures.EXPERIMENTS if e.full}
    assert {name for name, _ in COMMANDS} == set(full) and all(full.values())
    assert all(f"{name} {minutes}" in figures.times() for name, minutes in full.items())


def run(figures, monkeypatch, tmp_path, *arguments):
    """Runs it where the only experiment writes down its arguments and the folder of the records."""
    (tmp_path / "one.py").write_text(
        "import json, os, pathlib, sys\n"
        "folder = pathlib.Path(os.environ['BPPSA_RECORDS'])\n"
        "folder.mkdir(parents=True, exist_ok=True)\n"
        "(folder / 'one.json').write_text(json.dumps({'environment': None}))\n"
        "(folder / 'arguments').write_text(' '.join(sys.argv[1:]))\n"
        "sys.exit(3 * ('fail' in sys.argv))\n"
    )
    one = figures.Experiment("one", "One", "", quick="one.py --short fail", full="one.py")
    monkeypatch.setattr(figures, "EXPERIMENTS", (one,))
    monkeypatch.setattr(figures, "HERE", tmp_path)
    monkeypatch.setattr(figures.record, "RECORDS", tmp_path / "records")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["figures", *arguments])
    figures.main()


def test_a_quick_run_leaves_the_records_alone_and_names_what_failed(figures, monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match="these experiments failed: one"):
        run(figures, monkeypatch, tmp_path)
    assert (tmp_path / "runs" / "figures" / "arguments").read_text() == "--short fail"
    assert (tmp_path / "runs" / "figures" / "README.md").is_file()
    assert not (tmp_path / "records").exists()


def test_an_experiment_that_is_not_there_is_left_out(figures, monkeypatch, tmp_path, capsys):
    none = figures.Experiment("none", "None", "", quick="compare.py none", full=None)
    assert figures.run(none, tmp_path, full=False)
    assert "none: left out (there is no " in capsys.readouterr().out and not list(
        tmp_path.iterdir()
    )


def test_a_full_run_keeps_its_records(figures, monkeypatch, tmp_path):
    run(figures, monkeypatch, tmp_path, "--full")
    assert (tmp_path / "records" / "arguments").read_text() == ""
    assert "short runs" not in (tmp_path / "records" / "README.md").read_text()
    assert not (tmp_path / "runs").exists()

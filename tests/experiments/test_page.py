"""The page of the records is what the records say, and the quick run leaves the records alone."""

import argparse
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import recording
from experiments.paper import page, run_all
from experiments.paper.section import Section
from experiments.paper.sections import SECTIONS

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "experiments" / "records"


@pytest.mark.parametrize("machine", ["", *page.MACHINES])
def test_the_page_is_what_the_records_say(machine):
    folder = RECORDS / machine
    written = (folder / "README.md").read_text()
    again = page.page(folder, page.sections_of(folder), full=True)
    assert written == again, f"stale: run `python -m experiments.paper.page {machine}`"


def test_another_machine_s_page_has_what_was_measured_there_and_no_pictures():
    for machine in page.MACHINES:
        text = (RECORDS / machine / "README.md").read_text()
        assert "not measured" not in text.lower() and "![" not in text
        measured = {path.stem for path in (RECORDS / machine).glob("*.json")}
        shown = {name for s in page.sections_of(RECORDS / machine) for name in s.records}
        assert len(shown) >= 10 and shown <= measured
        for target in re.findall(r"\]\((?!http|#)([^)#]+)\)", text):
            assert (RECORDS / machine / target).is_file(), target


def test_the_page_and_the_numbers_need_no_torch_and_no_matplotlib():
    code = (
        "import sys, experiments.numbers, experiments.paper.page\n"
        "found = {'torch', 'matplotlib', 'lightning', 'bppsa_lightning'} & set(sys.modules)\n"
        "sys.exit(f'imported: {found}' if found else 0)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_every_picture_and_section_that_the_page_names_is_there():
    text = (RECORDS / "README.md").read_text()
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", text)
    assert len(pictures) >= 10
    for name in pictures:
        assert (RECORDS / name).read_bytes().startswith(b"\x89PNG"), name
    for target in re.findall(r"\]\((?!http|#)([^)#]+)\)", text):
        assert (RECORDS / target).is_file(), target
    headings = [page.anchor(h) for h in re.findall(r"^## (.*)$", text, re.M)]
    assert re.findall(r"\]\(#(.*?)\)", text) == headings
    assert len(set(headings)) == len(SECTIONS)


def test_what_has_no_record_is_not_measured(tmp_path):
    text = page.page(tmp_path, SECTIONS, full=False)
    with_records = [section for section in SECTIONS if section.records]
    assert text.count("**Ours.** Not measured.") == len(with_records)
    assert "![" not in text and "short runs" in text
    # Nothing but the paper's own numbers.
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| [")]
    assert {row[-1] for row in rows} == {"not measured |", "see below |"}


def test_sizes_that_stock_wins_are_named(tmp_path):
    name = "bitstream_sweep_rnn_cpu"
    record = json.loads((RECORDS / f"{name}.json").read_text())
    slow = record["rows"][0]
    slow["ratio_stock"]["step"] = 0.5
    (tmp_path / f"{name}.json").write_text(json.dumps(record))
    text = page.page(tmp_path, SECTIONS, full=True)
    assert f"**Stock PyTorch is faster at:** B = {slow['B']}, T = {slow['T']} (0.5x)." in text
    assert f"{name}.png: not measured." in text


def test_a_record_names_the_command_that_made_it():
    section = Section("one", "One", "", run="experiments.compare one", full="--all", records=("r",))
    record = {"environment": None, "rows": [{"arguments": ["--record", "--few", "1 2"]}]}
    assert page._made(section, {"r": record}, full=True) == (
        "`python -m experiments.compare one --record --few '1 2'`; in full "
        "`python -m experiments.compare one --record --all`"
    )


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_every_command_line_is_parsed(section, full, monkeypatch, tmp_path, capsys):
    pytest.importorskip("jsonargparse", reason="needs jsonargparse, of the extra experiments")
    if not section.run:
        assert section.elsewhere and not section.arguments(full)
        return
    assert section.elsewhere == "" and section.minutes
    monkeypatch.chdir(tmp_path)
    for images, resume in (("", False), (run_all.CIFAR10, False), ("", True)):
        module, *arguments = section.arguments(full, images, resume)
        assert ("--resume" in arguments) == (resume and section.resumes)
        assert not [argument for argument in arguments if "{" in argument]
        script = importlib.import_module(entry(module))
        asked, rest = script.parser().parse_known_args(arguments)
        assert asked.record
        training = {
            "experiments.compare": getattr(asked, "experiment", None),
            "experiments.paper.irmas_curves": "irmas_gru",
        }.get(module)
        if training is None:
            assert not rest
            continue
        fit = importlib.import_module(f"experiments.train.{training}").main
        with pytest.raises(SystemExit) as done:
            fit(["fit", *rest, "--print_config"])
        assert done.value.code in (0, None)
        assert "max_epochs" in capsys.readouterr().out


def entry(module):
    """The module that ``python -m`` runs."""
    package = ROOT.joinpath(*module.split("."), "__main__.py")
    return f"{module}.__main__" if package.is_file() else module


def test_how_long_the_full_runs_take_is_said():
    said = run_all.times()
    assert all(f"{s.name} {s.minutes}" in said for s in SECTIONS if s.run)


def run(monkeypatch, tmp_path, *arguments):
    """Runs the only experiment, which writes down its arguments and the folder of the records."""
    (tmp_path / "one.py").write_text(
        "import json, os, pathlib, sys\n"
        "folder = pathlib.Path(os.environ['BPPSA_RECORDS'])\n"
        "folder.mkdir(parents=True, exist_ok=True)\n"
        "(folder / 'one.json').write_text(json.dumps({'environment': None}))\n"
        "(folder / 'arguments').write_text(' '.join(sys.argv[1:]))\n"
        "sys.exit(3 * ('fail' in sys.argv))\n"
    )
    one = Section("one", "One", "", run="one", quick="--short fail", resumes=True)
    monkeypatch.setattr(run_all, "SECTIONS", (one,))
    monkeypatch.setattr(page, "SECTIONS", (one,))
    monkeypatch.setattr(recording, "RECORDS", tmp_path / "records")
    monkeypatch.chdir(tmp_path)
    run_all.main(list(arguments))


def test_a_quick_run_leaves_the_records_alone_and_names_what_failed(monkeypatch, tmp_path):
    with pytest.raises(SystemExit, match="these experiments failed: one"):
        run(monkeypatch, tmp_path)
    assert (tmp_path / "runs" / "figures" / "arguments").read_text() == "--record --short fail"
    assert (tmp_path / "runs" / "figures" / "README.md").is_file()
    assert not (tmp_path / "records").exists()


def test_a_full_run_keeps_its_records(monkeypatch, tmp_path):
    run(monkeypatch, tmp_path, "--full")
    assert (tmp_path / "records" / "arguments").read_text() == "--record"
    assert "short runs" not in (tmp_path / "records" / "README.md").read_text()
    assert not (tmp_path / "runs").exists()
    run(monkeypatch, tmp_path, "--full", "--resume")
    assert (tmp_path / "records" / "arguments").read_text() == "--record --resume"


def test_results_go_to_the_records_only_if_asked_for(monkeypatch):
    parser = argparse.ArgumentParser()
    recording.add_record_argument(parser)
    folders = [recording.folder(parser.parse_args(a).record) for a in ([], ["--record"])]
    assert folders == [Path("runs/records"), RECORDS]

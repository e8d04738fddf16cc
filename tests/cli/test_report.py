"""`bppsa report`: which data, which page, and what it says where there are none."""

import json
import webbrowser

import pytest
from support.damage import damaged, places_in
from support.report_data import report_data

from bppsa_lightning.cli.report import DATA, PAGE
from bppsa_lightning.report import page


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "version_3"
    folder.mkdir()
    (folder / DATA).write_text(json.dumps(report_data()))
    return folder


def test_of_a_folder_and_of_its_data(command, run):
    for asked in (run, run / DATA):
        assert command("report", asked)[:2] == (0, f"{run / PAGE}\n")
        assert (run / PAGE).read_text() == page(report_data())
        (run / PAGE).unlink()


def test_somewhere_else_and_as_json(command_json, run, tmp_path):
    there = tmp_path / "page.html"
    assert command_json("report", run, "--output", there) == (
        0,
        {"data": str(run / DATA), "page": str(there), "opened": False},
    )
    assert there.exists() and not (run / PAGE).exists()


@pytest.mark.parametrize("opens", [True, False])
def test_in_a_browser(command, run, monkeypatch, opens):
    asked = []
    monkeypatch.setattr(webbrowser, "open", lambda url: asked.append(url) or opens)
    status, out, _ = command("report", run, "--open")
    assert status == 0 and asked == [(run / PAGE).as_uri()]
    assert ("No browser was found" in out) != opens


def test_a_folder_without_data(command, run, tmp_path):
    status, _, err = command("report", tmp_path)
    assert status == 2 and f"found no {DATA} in {tmp_path} itself, but in {run}" in err
    (run / DATA).unlink()
    status, _, err = command("report", tmp_path)
    assert status == 2 and "Trainer(callbacks=[bl.RunReport()])" in err


@pytest.mark.parametrize("text", ["", "{}", "[1]", "\xff"])
def test_damaged_data(command, run, text):
    (run / DATA).write_bytes(text.encode("latin1"))
    status, _, err = command("report", run)
    assert status == 1 and f"{run / DATA} is damaged, or another version wrote it" in err
    assert not (run / PAGE).exists()


@pytest.mark.parametrize("wrong", [None, 1e999, "<script>", {}], ids=repr)
def test_damage_in_any_place_is_shown_or_named(command, run, wrong):
    said = set()
    for place in places_in(report_data()):
        (run / DATA).write_text(json.dumps(damaged(report_data(), place, wrong)))
        status, _, err = command("report", run)
        assert status == 0 or f"{run / DATA} is damaged, or another version wrote it" in err
        said.add(status)
        if status == 0:
            assert "<script>" not in (run / PAGE).read_text()
            (run / PAGE).unlink()
        assert not (run / PAGE).exists()
    assert said == {0, 1}


def test_a_page_that_cannot_be_written(command, run):
    for there in (run / "no" / "page.html", run):
        status, _, err = command("report", run, "--output", there)
        assert status == 1 and f" {there} cannot be read or written (" in err and ".tmp" not in err

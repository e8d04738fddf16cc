"""Runs of an experiment: what becomes of earlier results in their folder."""

import pytest

from experiments.compare import runs


@pytest.fixture
def folder(tmp_path):
    """With results of an earlier run."""
    folder = tmp_path / "runs" / "bppsa"
    folder.mkdir(parents=True)
    (folder / "last.ckpt").write_text("of three hours")
    return folder


def train(monkeypatch, folder, status, begins, **options):
    """A run that ends with a status; whether it makes its folder first."""

    def command(experiment, subcommand, where, arguments):
        assert not where.exists() or options
        if begins:
            where.mkdir()
            (where / "metrics.csv").write_text("")
        return status

    monkeypatch.setattr(runs, "command", command)
    runs.train("bitstream_rnn", folder, None, [], **options)


def test_a_mistyped_argument_costs_nothing(folder, monkeypatch):
    with pytest.raises(SystemExit, match="ended with status 2"):
        train(monkeypatch, folder, 2, begins=False)
    assert (folder / "last.ckpt").read_text() == "of three hours"
    assert [path.name for path in folder.parent.iterdir()] == ["bppsa"]


@pytest.mark.parametrize("status", [0, 1])
def test_a_run_that_has_begun_takes_the_place_of_the_earlier_one(status, folder, monkeypatch):
    if status:
        with pytest.raises(SystemExit):
            train(monkeypatch, folder, status, begins=True)
    else:
        train(monkeypatch, folder, status, begins=True)
    assert [path.name for path in folder.iterdir()] == ["metrics.csv"]
    assert [path.name for path in folder.parent.iterdir()] == ["bppsa"]


def test_what_a_killed_run_left_aside_comes_back(folder, monkeypatch):
    folder.rename(folder.with_name("bppsa.earlier"))
    with pytest.raises(SystemExit, match="ended with status 2"):
        train(monkeypatch, folder, 2, begins=False)
    assert (folder / "last.ckpt").is_file()

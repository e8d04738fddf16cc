"""What the README claims is what the records say, and its snippets run."""

import importlib
import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import bppsa_lightning as bl

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
RECORDS = ROOT / "experiments" / "records"


def test_the_table_of_the_experiment_is_that_of_its_record(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    compare = importlib.import_module("compare")
    record = json.loads((RECORDS / "bitstream_rnn.json").read_text())
    assert compare.table(record) in README
    assert record["speed_up"]["step"] > 1


def test_the_speed_ups_are_those_of_the_benchmark():
    record = json.loads((RECORDS / "benchmark_recurrent_cpu.json").read_text())
    wanted = {tuple(str(r[k]) for k in ("cell", "B", "T", "H", "I")): r for r in record["rows"]}
    found = re.findall(r"^\| (RNN|GRU|LSTM) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (.+?) ms \| "
                       r"(.+?) ms \| (.+?)x \| (.+?)x \|$", README, re.M)  # fmt: skip
    assert len(found) >= 10
    for *size, ours, stock, ratio, jax in found:
        row = wanted[tuple(size)]
        assert float(ours) == pytest.approx(row["ours"]["both"] * 1e3, abs=0.006)
        assert float(stock) == pytest.approx(row["stock"]["both"] * 1e3, abs=0.06)
        assert float(ratio) == pytest.approx(row["ratio_stock"]["both"], abs=0.06)
        assert float(jax) == pytest.approx(row["ratio_jax"]["both"], abs=0.06)


def test_what_it_says_of_the_grid_is_what_its_record_says():
    rows = json.loads((RECORDS / "grid_recurrent_cpu.json").read_text())["rows"]
    scanned = [r["ratio_stock"]["both"] for r in rows if r["scanned"]]
    said = r"Of (\d+) sizes .*? (\d+) are left to PyTorch; of the others (\d+) are slower"
    found = re.search(said, README.replace("\n", " "))
    slower = sum(ratio < 1 for ratio in scanned)
    assert [int(n) for n in found.groups()] == [len(rows), len(rows) - len(scanned), slower]


def test_files_that_it_names_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).is_file(), target


def test_the_snippets_run():
    model = nn.Sequential(nn.RNN(1, 20))
    assert [type(c) for c in bl.attach(model)] and model(torch.rand(7, 2, 1))[0].shape[-1] == 20
    shown = re.search(r"```\n1 chain in BitstreamRNN\n(.*?)```", README, re.S).group(1)
    header = shown.splitlines()[0].split()
    assert header == bl.explain(model).splitlines()[1].split()
    bl.detach(model)
    g = bl.ops.reverse_scan(torch.rand(3, 2, 4, 4), torch.rand(4, 2, 4))
    assert g.shape == (4, 2, 4)

"""Layers in bfloat16 and in inference: PyTorch's where they were measured to be faster.

T steps, B batch, H hidden.
"""

import math

import pytest
import torch

from bppsa_lightning import planner
from bppsa_lightning.planner import hand_over, machine, ratios, tables
from bppsa_lightning.planner.request import MODES
from experiments import recording

CPU = torch.device("cpu")
PART = {
    "threads": torch.get_num_threads(), "cell": "LSTM", "T": [1, 100], "B": [1, 16], "H": [8, 128],
    "training": [[[2.0, 2.0], [2.0, 0.5]], [[4.0, 1.0], [0.25, 0.25]]],
    "inference": [[[0.5, 0.5], [0.5, 0.5]], [[2.0, 2.0], [2.0, 2.0]]],
}  # fmt: skip


@pytest.fixture
def part(monkeypatch):
    """The table has `PART` for this number of threads, and something else for others and a GRU."""
    others = {"training": PART["inference"], "inference": PART["training"]}
    parts = [PART | others | {"threads": 64}, PART | others | {"cell": "GRU"}, PART]
    monkeypatch.setattr(machine, "ratios", lambda section: parts if section == "bfloat16" else [])
    machine.forget()
    yield
    monkeypatch.undo()
    machine.forget()


def faster(T, B, H, mode="training"):
    return ratios.pytorch_is_faster("lstm", True, mode, T, B, H)


def test_at_the_sizes_that_were_measured(part):
    assert not faster(1, 1, 8) and faster(1, 16, 128) and faster(100, 16, 8)
    assert not faster(100, 1, 128)  # as fast: ours are the more exact ones
    assert faster(1, 1, 8, "inference") and not faster(100, 1, 8, "inference")


def test_between_them_sizes_and_ratios_are_interpolated_on_logarithmic_scales(part):
    def ratio(T, B, H):
        places = [
            hand_over.place([math.log2(n) for n in PART[of]], n)
            for of, n in zip("TBH", (T, B, H), strict=True)
        ]
        return 2 ** ratios._between(PART["training"], places)

    assert ratio(1, 16, 32) == pytest.approx(1.0)  # half of the way from 2 to 1/2
    assert ratio(10, 1, 8) == pytest.approx(8**0.5)
    assert ratio(10, 4, 32) == pytest.approx((2 * 2 * 2 * 0.5 * 4 * 1 * 0.25 * 0.25) ** (1 / 8))
    assert not faster(1, 16, 31) and faster(1, 16, 34)


def test_each_cell_has_its_own(part):
    assert ratios.pytorch_is_faster("gru", True, "training", 1, 1, 8) and not faster(1, 1, 8)
    assert not ratios.pytorch_is_faster("rnn_tanh", True, "training", 1, 1, 8)  # was not measured


def test_beyond_them_the_last_one_counts(part):
    assert faster(10**6, 300, 2000) and faster(10**6, 300, 1) and not faster(10**6, 1, 1)


def test_auto_leaves_to_pytorch_what_is_faster_there_and_no_other_algorithm_does(part):
    layer = planner.Request("lstm", 1, 16, 128, CPU, bfloat16=True)
    reason = planner.fallback_reason(layer)
    assert reason == "seq_len 1, batch 16, hidden 128 in bfloat16: PyTorch's kernel measured faster"
    assert planner.fallback_reason(layer._replace(T=3, H=8)) is None
    assert planner.fallback_reason(layer._replace(mode="inference", T=100)) is None
    for algorithm in planner.ALGORITHMS[1:]:
        assert planner.fallback_reason(layer._replace(algorithm=algorithm)) is None
    # In float32 it is asked for itself, whatever was found in bfloat16.
    in_float32 = layer._replace(bfloat16=False, T=1000)
    assert planner.fallback_reason(in_float32) is None
    assert planner.fallback_reason(in_float32._replace(bfloat16=True)) is not None


@pytest.mark.parametrize("section", ["bfloat16", "inference"])
@pytest.mark.parametrize("name", machine.shipped_cpus())
def test_a_machine_whose_table_lacks_it_takes_that_of_another(name, section, monkeypatch):
    monkeypatch.setenv(machine.TABLE, name)
    machine.forget()
    wanted = tables.shipped()[name].get(section, tables.shipped()["amd_epyc_2"][section])
    assert machine.ratios(section) == wanted
    monkeypatch.undo()
    machine.forget()


@pytest.mark.parametrize("cell", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("mode", MODES)
def test_the_record_of_what_is_chosen(cell, mode):
    """Sizes between those of the table: seldom far from the better of the two."""
    of_all = recording.read("layers_bfloat16")["rows"]
    rows = [row for row in of_all if (row["cell"], row["mode"]) == (cell, mode)]
    assert {row["threads"] for row in rows} == {1, 2} and len(rows) > 50
    assert {row["ours"] for row in rows} == {True, False}
    assert all(row["auto"]["step"] < 1.5 * row["stock"]["step"] for row in rows)
    # (What is PyTorch's either way differs by what disturbed it.)
    ours = [row["auto"]["step"] / row["stock"]["step"] for row in rows if row["ours"]]
    assert sum(ratio > 1.1 for ratio in ours) <= 2
    assert min(row["stock"]["step"] / row["linear"]["step"] for row in rows if row["ours"]) > 0.7
    worst = max(rows, key=lambda row: row["linear"]["step"] / row["stock"]["step"])
    assert worst["linear"]["step"] > 1.3 * worst["stock"]["step"] and not worst["ours"]

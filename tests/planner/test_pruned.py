"""The choice between sparse and dense, for one pruned layer."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bppsa_lightning.ops import SparsePattern
from bppsa_lightning.planner import cost_pruned as cost
from bppsa_lightning.pruned.layer import request_of

RECORD = Path(__file__).parents[2] / "experiments" / "records" / "planner_sparse_cpu.json"


def plan(O, C, K, density, B, H):
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(O, C, K, K, generator=generator) < density
    return cost.choose(request_of(SparsePattern.of(mask, 1, K // 2), B, H, H))


def test_few_weights_are_sparse_and_all_are_dense():
    for shape in ((128, 64, 3), (512, 256, 3), (256, 256, 1)):
        assert plan(*shape, 0.03, 32, 8).sparse and not plan(*shape, 1.0, 32, 8).sparse
    assert not plan(10, 512, 1, 0.03, 32, 1).sparse  # not worth the call


def test_more_weights_never_turn_a_dense_layer_sparse():
    for B in (1, 32, 256):
        choices = [plan(64, 64, 3, d / 20, B, 8).sparse for d in range(21)]
        assert choices == sorted(choices, reverse=True)


def test_the_reason_names_density_and_the_rival():
    few, all = (plan(128, 64, 3, density, 32, 8).reason for density in (0.03, 1.0))
    assert few.startswith("3.0% of the weights left; dense would take")
    assert all.startswith("100.0% of the weights left; sparse would take")


def test_a_small_gain_is_said_to_be_too_small():
    plans = [plan(128, 64, 3, density / 100, 32, 8) for density in range(1, 101)]
    left = [p for p in plans if not p.sparse]
    near = [p.sparse_seconds < p.dense_seconds for p in left]
    assert any(near) and not all(near)
    assert near == [p.reason.endswith("too near to tell") for p in left]
    assert not any("too near" in p.reason for p in plans if p.sparse)


@pytest.mark.parametrize("size", [(0, 8), (3, 1)])
def test_any_size_has_a_plan(size):
    B, H = size
    assert plan(4, 4, 1, 0.5, B, H).seconds > 0
    assert plan(0, 4, 1, 0.5, B, H).seconds > 0


def _as_recorded(row):
    """The plan of a layer of the record, without a mask: so many weights survive of so many."""
    H, K = max(row["H"], 1), row["K"]
    shape = (row["O"], row["C"], K, K)
    pattern = SimpleNamespace(
        shape=shape,
        in_channels=row["C"],
        nnz=round(row["density"] * math.prod(shape)),
        output_size=lambda *size: size,
    )
    return cost.choose(request_of(pattern, row["B"], H, H))


def test_sparse_is_never_chosen_where_it_was_measured_to_be_slower(monkeypatch):
    record = json.loads(RECORD.read_text())
    monkeypatch.setattr(torch, "get_num_threads", lambda: record["environment"]["torch_threads"])
    rows = record["rows"]
    chosen = [row for row in rows if _as_recorded(row).sparse]
    assert len(rows) / 4 < len(chosen) < len(rows)
    slower = [row for row in chosen if row["sparse"] > 1.1 * row["dense"]]
    assert not slower
    # Nor is dense where much would be gained by sparse: 3 % of a layer that takes some time.
    left = [row for row in rows if row not in chosen and row["density"] <= 0.03]
    assert all(row["sparse"] > 0.6 * row["dense"] or row["dense"] < 3e-3 for row in left)

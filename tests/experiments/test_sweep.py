"""The sweeps over T and B: measured in pairs, and drawn as measured."""

import json
from pathlib import Path

from experiments import recording
from experiments.benchmarks import timing
from experiments.paper import sweep
from experiments.paper.sections.sweep import slower


def test_turns_are_taken_in_pairs_and_compared_pair_by_pair():
    order = []

    def way(name, durations):
        taken = iter(durations)

        def step():
            order.append(name)
            return {"whole": next(taken)}

        return step

    # Each turn: a step that is not counted, then one that is. Seconds 0, so the least turns.
    ways = {"ours": way("a", [9, 9, 1, 9, 2, 9, 4]), "stock": way("b", [9, 9, 3, 9, 8, 9, 40])}
    found = timing.measure(ways, seconds=0, most=11, least=3, shortest=1)
    assert "".join(order) == "ab" + "aabb" * 3
    assert found == {
        "pairs": 3, "ours": {"whole": 2}, "stock": {"whole": 8}, "ratio_stock": {"whole": 4},
    }  # fmt: skip


def test_a_sweep_leaves_a_record_and_a_picture(
    accelerate_everything, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(sweep, "LENGTHS", [(2, 4), (2, 8)])
    monkeypatch.setattr(sweep, "BATCHES", [(1, 8), (2, 8)])
    monkeypatch.setattr(recording, "RECORDS", tmp_path)
    sweep.main(["--seconds", "0", "--cell", "GRU", "--record"])
    record = json.loads((tmp_path / "bitstream_sweep_gru_cpu.json").read_text())
    assert [(row["B"], row["T"]) for row in record["rows"]] == [(2, 4), (2, 8), (1, 8)]
    for row in record["rows"]:
        assert row["algorithm"] == "linear" and row["pairs"] == 3
        for who in ("ours", "stock"):
            parts = [row[who][part] for part in sweep.PARTS]
            assert 0 < sum(parts) <= 3 * row[who]["step"]
    assert (tmp_path / "bitstream_sweep_gru_cpu.png").read_bytes().startswith(b"\x89PNG")
    assert "step x" in capsys.readouterr().out


def test_sizes_at_which_stock_wins_are_marked(monkeypatch):
    monkeypatch.setattr(sweep, "LENGTHS", [(2, 4), (2, 8)])
    monkeypatch.setattr(sweep, "BATCHES", [(1, 8), (2, 8)])

    def row(B, T, ratio):
        times = {part: 1.0 for part in (*sweep.PARTS, "step")}
        ratios = dict.fromkeys(times, ratio)
        return {"B": B, "T": T, "ours": times, "stock": times, "ratio_stock": ratios}

    rows = [row(2, 4, 0.5), row(2, 8, 3.0), row(1, 8, 2.0)]
    drawn = []
    monkeypatch.setattr(recording, "save_figure", lambda figure, *a, **k: drawn.append(figure))
    sweep.draw({"cell": "RNN", "rows": rows, "environment": {}}, Path("none.png"))
    red = [
        line.get_xydata().tolist()
        for line in drawn[0].axes[0].lines
        if line.get_markeredgecolor() == "#c1121f"
    ]
    assert red == [[[0.0, 0.5]], [[0.0, 0.5]]]  # backward and step of the first size
    assert slower(rows) == rows[:1]
    assert [sweep.thousands(n) for n in (300, 1000, 30000)] == ["300", "1k", "30k"]

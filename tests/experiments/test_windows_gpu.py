"""Windows on a GPU: what is predicted of them, what is measured (a CPU in its place), its bars."""

import json

import pytest
import torch

from bppsa_lightning.windows import Cut
from bppsa_lightning.windows.forward import _followed
from experiments import recording
from experiments.benchmarks import windows_gpu, windows_ways
from experiments.benchmarks import windows_model as model
from experiments.benchmarks.gpu_day import bars, bars_of_windows
from experiments.benchmarks.recurrent_cases import CELLS, PARTS

each_cell = pytest.mark.parametrize("cell", CELLS)
MANY = Cut(30_000, 60, 500, 60)

# --- what is predicted ------------------------------------------------------------------------


@each_cell
def test_walks_are_the_records(cell):
    ours = recording.read("h200_recurrent", model.COMMITTED)["rows"]
    for row in (r for r in ours if (r["cell"], r["H"]) == (cell, 20)):
        size, plans = (cell, row["B"], row["T"]), row["plans"]
        for who, plan in ((model.LINEAR, "linear"), (model.AUTO, row["best"])):
            found = model.walk(who, *size)
            assert found["backward"] == pytest.approx(plans[plan]["backward"])
            assert found["forward"] == pytest.approx(min(p["forward"] for p in plans.values()))
            assert found["both"] == found["forward"] + found["backward"]
    stock = recording.read("h200_stock_cudnn", model.COMMITTED)["rows"]
    for row in (r for r in stock if (r["cell"], r["H"]) == (cell, 20)):
        found = model.walk(model.CUDNN, cell, row["B"], row["T"])
        assert [found[p] * 1e3 for p in PARTS[:2]] == pytest.approx(
            [row["forward_ms"], row["backward_ms"]]
        )


@each_cell
@pytest.mark.parametrize("who", [model.CUDNN, model.LINEAR])
def test_between_sizes_and_beyond_them_time_grows(cell, who):
    def both(B, T):
        return model.walk(who, cell, B, T)["both"]

    assert both(16, 10_000) < both(16, 15_000) < both(16, 30_000) < both(16, 40_000)
    assert both(256, 1000) < both(1000, 1000) < both(2000, 1000)
    assert both(256, 500) < both(256, 1000) < both(256, 4000)
    assert both(16, 1) == both(16, 10) > 0


@each_cell
@pytest.mark.parametrize("loss", ["every", "last"])
def test_windows_take_less_than_walks_of_their_sequence_and_more_than_walks_of_their_steps(
    cell, loss
):
    for who in (model.LINEAR, model.CUDNN):
        found = model.windows(who, cell, 16, MANY, loss)
        assert found["both"] < model.walk(who, cell, 16, 30_000)["both"]
        assert found["both"] > model.walk(who, cell, 16 * 60, 500)["both"]


@pytest.mark.parametrize("who, seconds", [(model.CUDNN, 1e-4), (model.LINEAR, 1e-5)])
def test_what_fits_no_window_takes_time(who, seconds):
    def both(*cut):
        return model.windows(who, "GRU", 16, Cut(*cut))["both"]

    assert both(30_000, 128, 234, 60) > both(30_000, 125, 240, 60) + seconds


@pytest.mark.parametrize("cut", [MANY, Cut(240, 4, 60, 40), Cut(400, 4, 100, 50)], ids=str)
def test_pieces_are_those_of_windows(cut):
    engine = model._Costly("gru", list(torch.nn.GRU(1, 20).parameters()))
    assert model.pieces_of(cut) == _followed(cut.span, cut.warm, engine)


@each_cell
def test_operations_are_counted(cell):
    for who, least, most in ((model.CUDNN, 15, 60), (model.LINEAR, 1, 7)):
        every, last = (model.operations(cell, loss, who) for loss in ("every", "last"))
        assert all(least < count < most for count in every.values())
        assert last["forward"] == every["forward"] and last["backward"] < every["backward"]


def test_the_committed_prediction_is_the_model_s():
    """Within what a few operations more or less make."""
    record = recording.read("h200_windows_predicted", model.COMMITTED)
    for row in record["rows"]:
        found = model.row(row["cell"], row["B"], row["T"])
        for ours, theirs in zip(found["ways"], row["ways"], strict=True):
            assert ours.keys() == theirs.keys() and ours["who"] == theirs["who"]
            assert ours["both"] == pytest.approx(theirs["both"], rel=0.1)


def test_predictions_are_written_and_printed(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model, "PAPER", [(16, 10, 20, 1), (16, 3000, 20, 1), (16, 3000, 64, 1)])
    model.main([])
    path = tmp_path / recording.UNRECORDED / "h200_windows_predicted.json"
    rows = json.loads(path.read_text())["rows"]
    assert [(r["cell"], r["T"]) for r in rows] == [(c, T) for T in (10, 3000) for c in CELLS]
    assert not any("windows" in way for way in rows[0]["ways"])
    assert [w["windows"] for w in rows[-1]["ways"] if "windows" in w] == 2 * [8, 16, 30]
    assert "RNN (16, 10): {'who': 'auto'" in capsys.readouterr().out


# --- what is measured -------------------------------------------------------------------------


@pytest.fixture
def rows(monkeypatch, tmp_path):
    """The rows of a record of the CPU."""

    def run(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(recording, "cpu_name", lambda: "A CPU")
        windows_gpu.main(["--device", "cpu", "--seconds", "0", *arguments])
        found = json.loads((tmp_path / recording.UNRECORDED / "a_cpu_windows.json").read_text())
        return found["windows"]

    return run


@pytest.mark.slow
def test_the_benchmark(rows, capsys):
    found = rows("--sizes", "2,1200,20,1", "--windows", "4", "1000", "--cells", "GRU", "LSTM")
    assert [(r["cell"], r["loss"]) for r in found] == [
        ("GRU", "every"), ("LSTM", "every"), ("GRU", "last"), ("LSTM", "last")
    ]  # fmt: skip
    for row in found:
        names = [f"{who}, windows: {k}" for who in ("linear", "cuDNN") for k in (4, "chosen")]
        assert list(row["ways"]) == ["cuDNN", "linear", "auto", windows_ways.ATTACHED, *names]
        for name, way in row["ways"].items():
            assert set(way["seconds"]) == {"forward", "backward", "both"} and way["error"] < 1e-4
            assert way["speed_up"]["both"] > 0
            assert ("predicted" in way) == (name != windows_ways.ATTACHED)
        for name in names:
            way = row["ways"][name]
            assert way["windows"] >= 2 and way["warm"] >= 20 and way["missed"] == 0
            assert way["chosen"] == name.endswith("chosen")
            assert way["head"] + way["windows"] * way["span"] == 1200
    printed = capsys.readouterr().out
    assert "GRU, B 2, T 1200, H 20; loss on the last state" in printed
    assert "| linear, windows: 4 | 4 | 60 |" in printed


def test_short_sequences_are_walked(rows):
    [row] = rows("--sizes", "2,100,20,1", "--cells", "RNN", "--loss", "every")
    assert list(row["ways"]) == ["cuDNN", "linear", "auto", windows_ways.ATTACHED]
    assert not any("windows" in way for way in row["ways"].values())


def test_a_warm_up_that_is_asked_for(rows):
    given = ["--cells", "RNN", "--loss", "every", "--windows", "4"]
    [row] = rows("--sizes", "2,400,20,1", *given, "--warm", "70")
    assert row["ways"]["linear, windows: 4"]["warm"] == 70
    [row] = rows("--sizes", "2,400,4,1", *given)  # no record is of 4 hidden units
    assert not any("predicted" in way for way in row["ways"].values())


def test_a_way_that_fails_stops_no_other(rows, monkeypatch):
    def failing(self, xs, state):
        raise RuntimeError("no such kernel\nand more")

    monkeypatch.setattr(windows_gpu, "ways_of", ways := ways_that_fail(failing))
    [row] = rows("--sizes", "2,400,20,1", "--cells", "RNN", "--loss", "every", "--windows", "4")
    assert ways.made and row["ways"]["linear, windows: 4"] == {"fails": "no such kernel"}
    assert row["ways"]["cuDNN, windows: 4"]["seconds"]["both"] > 0
    verdict = bars_of_windows.exact(bars.Found("", {"a": {"windows": [row]}}, {}))
    assert verdict.met is False and "1 ways failed" in verdict.found


def ways_that_fail(failing):
    """`ways_of`, with windows over our kernels that fail."""

    class Failing(windows_ways.LayerEngine):
        __call__ = failing

    def made(*given):
        found = windows_ways.ways_of(*given)
        for name, way in found.items():
            if name == "linear, windows: 4":
                way.step.layer.kind = Failing
                made.made = True
        return {n: w for n, w in found.items() if "chosen" not in n}

    return made


def test_a_gpu_is_given_the_long_sequences_first():
    asked = windows_gpu.parser().parse_args([])
    cases = windows_gpu.cases_of(asked)
    assert [(c.cell, c.B, c.T, c.H, c.loss) for c in cases[:6]] == [
        (cell, 16, 30_000, 20, loss) for loss in ("every", "last") for cell in CELLS
    ]
    sizes = {(c.B, c.T) for c in cases}
    assert {(16, T) for T in (10, 30, 100, 300, 1000, 3000, 10_000, 30_000)} <= sizes
    assert {(B, 1000) for B in (2, 4, 8, 16, 32, 64, 128, 256)} <= sizes
    assert len(cases) == len(set(map(str, cases))) == 2 * 3 * len(sizes)
    assert asked.device == torch.device("cuda")


# --- what is wanted ---------------------------------------------------------------------------


def way(speed_up, error=1e-6, seconds=1e-3, **more):
    times = {"both": seconds}
    return {"speed_up": {"both": speed_up}, "error": error, "seconds": times} | more


def windows(speed_up, K, predicted, **more):
    guess = {"both": 2e-3, "speed_up": predicted}
    more = {"missed": 0, "backward_passes": 1, "waits": [1, 1]} | more
    return way(speed_up, windows=K, predicted=guess, **more)


def found(loss="every", **more):
    ways = {
        "cuDNN": way(1.0), "linear": way(5.0), windows_ways.ATTACHED: way(38.0, windows=60),
        "linear, windows: 8": windows(20.0, 8, 22.0),
        "linear, windows: 60": windows(46.0, 60, 44.0),
        "linear, windows: chosen": windows(38.0, 125, 40.0, chosen=True),
        "cuDNN, windows: 16": windows(7.0, 16, 10.0),
        "cuDNN, windows: 8": {"fails": "out of memory"},
    }  # fmt: skip
    row = {"cell": "GRU", "B": 16, "T": 30_000, "H": 20, "loss": loss, "ways": ways | more}
    return bars.Found("", {"h200_windows": {"windows": [row]}}, {})


@pytest.mark.parametrize(
    "bar, found, met, told",
    [
        (
            bars_of_windows.over_stock("GRU", "linear", 45),
            found(),
            True,
            "46.0x with 60 windows, 44.0x was predicted at best; 38.0x with 125, as chosen",
        ),
        (bars_of_windows.over_stock("GRU", "linear", 47), found(), False, "46.0x with 60"),
        (bars_of_windows.over_stock("GRU", "cuDNN", 8), found(), False, "7.0x with 16 windows"),
        (bars_of_windows.over_stock("RNN", "cuDNN", 8), found(), False, "no such row"),
        (bars_of_windows.over_stock("GRU", "cuDNN", 8), found("last"), False, "no such row"),
        (bars_of_windows.exact, found(), False, "1 ways failed"),
        (
            bars_of_windows.exact,
            found(**{"cuDNN, windows: 8": windows(1.0, 8, 1.0, error=1.9e-6)}),
            True,
            "6, at most 1.90 times at GRU (16, 30000, 20) cuDNN, windows: 8",
        ),
        (
            bars_of_windows.exact,
            found(**{"cuDNN, windows: 8": windows(1.0, 8, 1.0, error=2.1e-6)}),
            False,
            "2.10 times",
        ),
        (  # another's rounding excuses nothing
            bars_of_windows.exact,
            found(
                **{"linear, windows: 8": windows(1.0, 8, 1.0, error=2.1e-6)},
                **{"cuDNN": way(1.0, error=4e-4), "cuDNN, windows: 8": windows(1.0, 8, 1.0)},
            ),
            False,
            "2.10 times at GRU (16, 30000, 20) linear, windows: 8",
        ),
        (bars_of_windows.wait_once, found(), True, "4 of 1 + 1"),
        (
            bars_of_windows.wait_once,
            found(**{"linear, windows: 8": windows(1.0, 8, 1.0, waits=[3, 1])}),
            False,
            "3 of 1 + 1, 1 of 3 + 1",
        ),
        (  # where windows were walked again, or gradients followed further, it waits more often
            bars_of_windows.wait_once,
            found(**{"linear, windows: 8": windows(1.0, 8, 1.0, waits=[9, 9], missed=1)}),
            True,
            "3 of 1 + 1",
        ),
        (bars_of_windows.as_predicted, found(), None, "median 0.50 of 4"),
        (bars_of_windows.as_predicted, bars.Found("", {}, {}), None, "no windows"),
        (bars_of_windows.wait_once, bars.Found("", {}, {}), False, "none met"),
        (bars_of_windows.exact, bars.Found("", {}, {}), False, "no windows"),
    ],
)
def test_bars(bar, found, met, told):
    verdict = bar(found)
    assert verdict.met is met and told in verdict.found, verdict

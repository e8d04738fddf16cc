"""The benchmark of the recurrent layers: what it measures, its records, tables and pictures; that
of a GPU with the CPU in its place."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import bppsa_lightning as bl
from experiments import recording
from experiments.benchmarks import (
    fit_planner,
    recurrent_cases,
    recurrent_cpu,
    recurrent_gpu,
    recurrent_jax,
    recurrent_memory,
    recurrent_plots,
    recurrent_report,
    recurrent_rows,
    recurrent_threads,
    recurrent_training,
)

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "experiments" / "records"
CPU = torch.device("cpu")


@pytest.fixture
def records(monkeypatch, tmp_path):
    """The folder of the records; JAX and peak memory are not measured."""
    monkeypatch.setattr(recording, "RECORDS", tmp_path)
    monkeypatch.setattr(recurrent_memory, "row", lambda cell, device: {"cell": cell})
    monkeypatch.setattr(recurrent_jax, "step_of", lambda case: {})
    return tmp_path


def test_a_gpu_is_given_the_grid_of_the_paper():
    asked = recurrent_gpu.parser().parse_args([])
    sizes = recurrent_gpu.sizes(asked)
    assert asked.device == "cuda"
    assert len(set(sizes)) == len(sizes) and asked.cells == ["RNN", "GRU", "LSTM"]
    for T in (10, 30, 100, 300, 1000, 3000, 10000, 30000):
        assert (16, T, 20, 1) in sizes
    for B in (2, 4, 8, 16, 32, 64, 128, 256):
        assert (B, 1000, 20, 1) in sizes
    assert all((16, 1000, H, 1) in sizes for H in (64, 128, 256))
    for script in (recurrent_cpu, recurrent_gpu):
        given = script.parser().parse_args(["--sizes", "1,2,3,4", "5,6,7,8"])
        assert script.sizes(given) == [(1, 2, 3, 4), (5, 6, 7, 8)]


@pytest.mark.parametrize("asked, index", [("cuda", 0), ("cuda:1", 1)])
def test_torch_sets_a_gpu_by_its_index(asked, index, monkeypatch):
    """`torch.cuda.set_device` takes no device without one."""
    found = []
    monkeypatch.setattr(torch.cuda, "set_device", found.append)
    monkeypatch.setattr(recurrent_gpu, "run", lambda asked, device: found.append(device))
    recurrent_gpu.main(["--device", asked])
    assert found == [index, torch.device(asked)]


def test_the_planner_is_fitted_to_no_loss_of_the_last_state(tmp_path):
    """A walk passes over the steps that such a loss no longer reaches."""
    row = {"cell": "RNN", "B": 16, "T": 1000, "H": 20, "loss": "last"}
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps({"environment": {"date": "2026-11-28"}, "rows": [row]}))
    with pytest.raises(SystemExit, match="gpu.json is of the loss 'last', wanted 'every'"):
        fit_planner.main([str(path)])


def test_rows_share_the_time_that_is_left(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(recurrent_gpu, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    budget = recurrent_gpu.Budget(whole=60, each=2)
    assert budget.share(10) == 2
    now[0] = 50.0
    assert budget.share(10) == 1
    now[0] = 70.0
    assert budget.share(10) == 0


def test_the_cpu_s_table(records, monkeypatch, capsys):
    monkeypatch.setattr(recurrent_cpu, "TABLE", [(2, 6, 3, 1), (1, 5, 4, 2)])
    recurrent_cpu.main(["--seconds", "0", "--cells", "RNN", "LSTM", "--record"])
    results = json.loads((records / "benchmark_recurrent_cpu.json").read_text())
    found = [(r["cell"], r["B"], r["T"], r["H"], r["I"]) for r in results["rows"]]
    assert found == [(c, *size) for size in recurrent_cpu.TABLE for c in ("RNN", "LSTM")]
    assert all("plans" not in r and r["loss"] == "every" for r in results["rows"])
    assert (records / "benchmark_recurrent_cpu.png").read_bytes().startswith(b"\x89PNG")
    assert str(records) in capsys.readouterr().out


@pytest.fixture
def a_gpu(records, monkeypatch):
    """The CPU, called a GPU; fewer and smaller sizes."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB/HBM3")
    monkeypatch.setattr(recurrent_gpu, "PAPER", [(2, 20, 20, 1), (2, 20, 40, 1)])
    options = [{"lengths": "different", "dtype": torch.float64}, {"proj_size": 2}]
    options.append({"autocast": torch.bfloat16, "num_layers": 2})
    monkeypatch.setattr(recurrent_gpu, "OPTIONS", [((2, 6, 3, 2), o) for o in options])
    monkeypatch.setattr(recurrent_gpu, "LONG", (1, 50, 3, 1))
    monkeypatch.setattr(recurrent_gpu, "replayed", lambda cell, device, seconds: {"cell": cell})
    trained = recurrent_training.compare
    monkeypatch.setattr(
        recurrent_training, "compare", lambda device, steps: trained(CPU, 2, 5, rounds=1)
    )

    def run(*more):
        asked = recurrent_gpu.parser().parse_args(["--device", "cuda", "--record", *more])
        recurrent_gpu.run(asked, CPU)

    return run


def test_a_gpu_s_record(a_gpu, tmp_path, capsys):
    a_gpu("--minutes", "0", "--cells", "GRU", "LSTM")
    results = json.loads((tmp_path / "nvidia_h100_80gb_hbm3.json").read_text())
    rows = results["rows"]
    assert [(r["cell"], r["H"]) for r in rows[:3]] == [("GRU", 20), ("GRU", 40), ("LSTM", 20)]
    assert len(rows) == 4 and {r["loss"] for r in rows} == {"last"}
    for row in rows:
        assert ("c8" in row["plans"]) == (row["H"] == 20) and "linear" in row["plans"]
        assert row["best"] in row["plans"] and row["pairs"] >= 1
        for times in (row["ours"], row["stock"], *row["plans"].values()):
            assert times["both"] > 0 and set(times) == {"forward", "backward", "both"}
        assert not any(name.startswith("ratio_c") for name in row)
    options = [(r["cell"], r["settings"]) for r in results["options"]]
    assert ("LSTM", {"proj_size": "2"}) in options and (
        "GRU",
        {"lengths": "different", "dtype": "float64"},
    ) in options
    assert not any(c == "GRU" and "proj_size" in s for c, s in options)
    assert {r["cell"] for r in results["long"]} == {r["cell"] for r in results["graphs"]}
    training = results["training"]
    assert training["ratio"] == pytest.approx(training["stock"] / training["ours"])
    assert (tmp_path / "nvidia_h100_80gb_hbm3.png").read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out
    assert "best c" in said or "best linear" in said


def test_a_part_that_fails_takes_no_other_along(a_gpu, monkeypatch, tmp_path):
    def failing(*_):
        raise RuntimeError("an illegal memory access\nand more")

    monkeypatch.setattr(recurrent_training, "compare", failing)
    a_gpu("--minutes", "0", "--cells", "GRU")
    results = json.loads((tmp_path / "nvidia_h100_80gb_hbm3.json").read_text())
    assert results["training_fail"] == "an illegal memory access" and "training" not in results
    assert results["rows"] and results["graphs"] and results["peak_memory"] and results["long"]


def test_a_gpu_s_record_of_a_gradient_of_every_output(a_gpu, tmp_path):
    a_gpu("--minutes", "0", "--cells", "GRU", "--loss", "every")
    results = json.loads((tmp_path / "nvidia_h100_80gb_hbm3_every.json").read_text())
    assert {r["loss"] for r in results["rows"]} == {"every"} and set(results) == {
        "environment",
        "rows",
    }


def test_parts_of_a_gpu_s_record_join_what_it_has(a_gpu, tmp_path):
    def parts():
        return set(json.loads((tmp_path / "nvidia_h100_80gb_hbm3.json").read_text()))

    a_gpu("--minutes", "0", "--cells", "GRU", "--only", "graphs", "long")
    assert parts() == {"environment", "graphs", "long"}
    a_gpu("--minutes", "0", "--cells", "GRU", "--only", "rows")
    assert parts() == {"environment", "graphs", "long", "rows"}
    a_gpu("--minutes", "0", "--cells", "GRU")
    assert parts() == {"environment", *recurrent_gpu.PARTS}


def test_a_row_is_kept_at_once_and_one_that_fails_stops_no_other(a_gpu, monkeypatch, tmp_path):
    path, measure, kept = tmp_path / "nvidia_h100_80gb_hbm3.json", recurrent_gpu.measure, []

    def failing(case, *more, **settings):
        kept.append(len(json.loads(path.read_text())["rows"]) if path.exists() else 0)
        if case.H == 20:
            raise RuntimeError("out of memory\nand more")
        return measure(case, *more, **settings)

    monkeypatch.setattr(recurrent_gpu, "measure", failing)
    a_gpu("--minutes", "0", "--cells", "GRU", "LSTM", "--only", "rows")
    results = json.loads(path.read_text())
    assert kept == [0, 0, 1, 1] and [r["cell"] for r in results["rows"]] == ["GRU", "LSTM"]
    assert [r["fails"] for r in results["rows_failed"]] == ["out of memory"] * 2


@pytest.mark.filterwarnings("ignore:BPPSA has accelerated nothing:UserWarning")
def test_what_is_left_to_pytorch_is_measured_scanned_beside_it(a_gpu, monkeypatch, tmp_path):
    def left(request):
        return "for the test" if request.algorithm == "auto" else None

    steps = []
    scanned = recurrent_rows.scanned
    monkeypatch.setattr(
        recurrent_rows, "scanned", lambda *given: steps.append(scanned(*given)) or steps[-1]
    )
    monkeypatch.setattr(bl.planner, "fallback_reason", left)
    a_gpu("--minutes", "0", "--cells", "GRU")
    assert all(step.layer.forward.calls and not step.layer.forward.reason for step in steps)
    results = json.loads((tmp_path / "nvidia_h100_80gb_hbm3.json").read_text())
    for row in (*results["rows"], *results["options"]):
        assert not row["scanned"] and row["left_to_pytorch"] == "for the test"
        assert row["scan"]["both"] > 0 and row["ratio_scan"]["both"] > 0


def test_sizes_of_one_s_own_leave_no_record(a_gpu, tmp_path):
    a_gpu("--sizes", "1,9,4,1", "--cells", "RNN", "--seconds", "0")
    assert not list(tmp_path.iterdir())


def test_a_row_that_stock_cannot_compute(monkeypatch):
    pair = recurrent_rows.pair

    def failing(case, device):
        ours, stock = pair(case, device)
        stock.forward = lambda: (_ for _ in ()).throw(RuntimeError("cuDNN error\nand more"))
        return ours, stock

    monkeypatch.setattr(recurrent_rows, "pair", failing)
    row = recurrent_rows.measure(recurrent_cases.Case("GRU", 1, 5, 3), CPU, 0.0, pairs=1)
    assert row["stock_fails"] == "cuDNN error" and "stock" not in row
    assert "cuDNN error" in recurrent_report.line(row)
    assert "| fails | - | - |" in recurrent_report.table([row])


@pytest.mark.parametrize("name", ["h200_recurrent", "benchmark_recurrent_cpu"])
def test_a_committed_record_makes_a_table_and_a_picture(name, tmp_path, capsys):
    path = tmp_path / "copy.json"
    path.write_bytes((RECORDS / f"{name}.json").read_bytes())
    recurrent_plots.main([str(path)])
    rows = json.loads(path.read_text())["rows"]
    table = capsys.readouterr().out.split("\n")
    assert table[1].startswith("|---|") and sum(line[:2] == "| " for line in table) == 1 + len(rows)
    assert (tmp_path / "copy.png").read_bytes().startswith(b"\x89PNG")


def test_the_operators_alone_compute_what_the_layer_does():
    """A step under each plan: the same gradients of the weights, from the same seeds."""
    for loss in ("every", "last"):
        case = recurrent_cases.Case("GRU", 3, 20, 5, 2, loss=loss)
        layer = recurrent_cases.pair(case, CPU)[1]
        step = recurrent_cases.OperatorStep(case, bl.Plan("chunked", chunk=4), CPU)
        layer.forward()
        step.forward()
        output, _ = layer.layer(layer.x)
        assert torch.allclose(step.output, output, atol=1e-6)
        assert recurrent_cases.name_of(step.plan) == "c4" and set(step()) == set(
            recurrent_cases.PARTS
        )


@pytest.fixture
def bare_site(tmp_path):
    """What `make gpu-offline` has: the packages, without the extras of pyproject.toml, and the
    project as a plain folder."""
    extras = "jsonargparse wandb tensorboard matplotlib librosa torchvision torchaudio soundfile"
    extras += " sklearn scikit_learn jax platformdirs bppsa_lightning __editable__"
    site, own = tmp_path / "site", Path(bl.__file__).parent
    (site / "bppsa_lightning-0.dist-info").mkdir(parents=True)
    for path in Path(torch.__file__).parents[1].iterdir():
        if not path.name.startswith(tuple(extras.split())) and path.suffix != ".pth":
            (site / path.name).symlink_to(path)
    metadata = "Metadata-Version: 2.1\nName: bppsa-lightning\nVersion: 0\n"
    (site / "bppsa_lightning-0.dist-info" / "METADATA").write_text(metadata)
    shutil.copytree(own, site / own.name, ignore=shutil.ignore_patterns("datasets", "__pycache__"))
    (site / own.name / "datasets").symlink_to(ROOT / "datasets")
    for library in torch.ops.loaded_libraries:
        if not (site / own.name / Path(library).name).exists():
            (site / own.name / Path(library).name).symlink_to(library)
    return site


@pytest.mark.slow
def test_on_a_machine_with_little_else_than_torch_and_lightning(bare_site, tmp_path):
    code = (
        "import torch\n"
        "from experiments.benchmarks import recurrent_cpu as b, recurrent_gpu, products\n"
        "b.TABLE, b.recurrent_memory.row = [(1, 3, 2, 1)], lambda *_: None\n"
        "b.main(['--seconds', '0', '--cells', 'RNN', '--record'])\n"
        "recurrent_gpu.recurrent_training.compare(torch.device('cpu'), 2, 5, rounds=1)\n"
    )
    own = {"PYTHONPATH": f"{bare_site}:{ROOT}", "BPPSA_RECORDS": str(tmp_path / "records")}
    found = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True, text=True, env=os.environ | own, cwd=tmp_path,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    assert "matplotlib is not installed" in found.stdout and "bppsa" in found.stdout
    assert [p.name for p in (tmp_path / "records").iterdir()] == ["benchmark_recurrent_cpu.json"]


def test_sizes_of_the_grid_that_come_out_close_to_stock_are_measured_again(
    records, accelerate_everything, monkeypatch
):
    monkeypatch.setattr(recurrent_cpu, "GRID", [(1, 16, 4, 4)])
    monkeypatch.setattr(recurrent_cpu, "SECONDS_OF_CLOSE", 0.0)
    grid = ["--grid", "--cells", "RNN", "--seconds", "0"]

    def rows(close, arguments):
        monkeypatch.setattr(recurrent_cpu, "CLOSE", close)
        recurrent_cpu.main([*arguments, "--record"])
        return json.loads((records / "grid_recurrent_cpu.json").read_text())["rows"]

    (row,) = rows(0.0, grid)
    assert row["scanned"] and row["pairs"] == 1 and "again" not in row
    (row,) = rows(float("inf"), ["--again"])
    assert row["again"] and row["pairs"] == recurrent_cpu.PAIRS_OF_CLOSE
    assert (row["cell"], row["B"], row["T"], row["H"], row["I"]) == ("RNN", 1, 16, 4, 4)
    (row,) = rows(float("inf"), grid)
    assert row["again"] and row["pairs"] == recurrent_cpu.PAIRS_OF_CLOSE


def test_the_grid_of_a_number_of_threads(records, monkeypatch):
    threads, name = torch.get_num_threads(), "grid_recurrent_cpu_an_epyc_16_cores_1.json"
    monkeypatch.setattr(recording, "cpu_name", lambda: "an EPYC, 16 cores")
    monkeypatch.setattr(recurrent_threads, "SIZES", [(1, 6, 4, 4), (2, 1, 8, 8), (1, 1, 600, 600)])

    def rows(minutes):
        asked = ["1", "--cells", "LSTM", "--seconds", "0", "--minutes", minutes, "--record"]
        recurrent_threads.main(asked)
        return json.loads((records / name).read_text())

    try:
        found = rows("1")
        assert found["environment"]["torch_threads"] == 1 and found["left_out"] == 0
        assert [(r["B"], r["T"], r["H"]) for r in found["rows"]] == [
            (1, 6, 4), (2, 1, 8), (1, 1, 600)
        ]  # fmt: skip
        left = found["rows"][-1]  # the planner's choice, and ours all the same
        assert not left["scanned"] and left["scan"]["both"] > 0
        assert "scanned:" in recurrent_report.line(left)
        assert rows("0")["left_out"] == 2
    finally:
        torch.set_num_threads(threads)


def test_trainings_of_every_cell(records):
    asked = ["--steps", "2", "--rounds", "1", "--lengths", "4", "--cells", "RNN", "LSTM"]
    recurrent_training.main([*asked, "--record"])
    rows = json.loads((records / "training_cpu.json").read_text())["rows"]
    assert [(row["cell"], row["T"]) for row in rows] == [("RNN", 4), ("LSTM", 4)]
    assert all(row["ratio"] > 0 for row in rows)

"""On a GPU "auto" scans with kernels that are known to be right there, and with no others."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import gpus
from support.recurrent_layers import GATES

from bppsa_lightning import planner
from bppsa_lightning.planner import Request, gpu_tables, kernels, tables
from bppsa_lightning.planner.machine import forget
from experiments.benchmarks.fit_planner import table_of

ROOT = Path(__file__).parents[2]
CUDA = torch.device("cuda", 0)
HOW = re.escape('bl.calibrate(device="cuda")')


def left(cell="gru", T=1000, B=16, H=20, **more):
    """Why a call is left to PyTorch."""
    return planner.fallback_reason(Request(cell, T, B, H, CUDA, **more))


def compiled(cell="gru", H=20, algorithm="auto", dtype=torch.float32, lengths=False):
    return planner.fallback_reason_when_compiled(
        CUDA, cell, dtype, 1, H, 0, 1, 1, lengths, algorithm
    )


@pytest.mark.parametrize("cell", GATES)
def test_a_gpu_without_a_table_is_not_trusted(cell, monkeypatch):
    gpus.claim(monkeypatch, None)
    for size in ({}, {"T": 70_000}, {"H": 5}, {"H": 300}, {"dtype": torch.float64}):
        reason = left(cell, **size)
        assert "not tested on this GPU (NVIDIA H200)" in reason and re.search(HOW, reason)
    with torch.backends.cudnn.flags(enabled=False):
        assert re.search(HOW, left(cell))
    assert re.search(HOW, compiled(cell))


@pytest.mark.parametrize("algorithm", planner.ALGORITHMS[1:])
def test_an_algorithm_by_name_is_obeyed_as_far_as_the_kernels_reach(algorithm, monkeypatch):
    gpus.claim(monkeypatch, None)
    for size in ({}, {"T": 2}, {"T": 70_000}, {"H": 300}, {"H": 64, "dtype": torch.float16}):
        assert left(**size, algorithm=algorithm) is None
    assert "at most 2730" in left(H=2731, algorithm=algorithm)
    assert compiled(algorithm=algorithm) is None and compiled(H=300, algorithm=algorithm) is None
    assert "at most 2730" in compiled(H=2731, algorithm=algorithm)


# Of the records' layers, those that the H200 leaves to cuDNN: where it is hardly slower by the
# record that the estimates are fitted to, and batches that were not in it.
LEFT_BY_THE_H200 = {
    ("RNN", 16, 192), ("RNN", 256, 128), ("GRU", 16, 96), ("GRU", 16, 128), ("GRU", 64, 128),
    ("GRU", 256, 128), ("LSTM", 16, 96), ("LSTM", 256, 64), ("LSTM", 256, 128),
}  # fmt: skip


@pytest.mark.parametrize("name", ["h200_recurrent", "h200_layers"])
def test_the_h200_scans_what_is_faster_in_its_records(name, monkeypatch):
    """Nothing that was slower, and as much as is known of what was faster."""
    gpus.claim(monkeypatch)
    for row in json.loads((ROOT / f"experiments/records/{name}.json").read_text())["rows"]:
        cells = {"RNN": ("rnn_tanh", "rnn_relu")}.get(row["cell"], (row["cell"].lower(),))
        found = {left(cell, row["T"], row["B"], row["H"]) is not None for cell in cells}
        assert found == {(row["cell"], row["B"], row["H"]) in LEFT_BY_THE_H200}, row
        if found == {False}:
            assert row["stock"]["both"] > row["plans"]["linear"]["both"]


def test_the_h200_scans_what_its_kernels_are_right_for(monkeypatch):
    gpus.claim(monkeypatch)
    assert left("lstm", P=5) is None and left(total_steps=9_000, padded_steps=1000) is None
    assert left(directions=2) is None and left(layers=3, I=7) is None
    assert left(T=70_000) is None and left(T=70_000, H=65) is None
    assert "above 256" in left(H=300) and "float16" in left(H=65, dtype=torch.float16)
    assert compiled() is None and compiled(H=33) is None and compiled(lengths=True) is None
    assert re.search(f"ligru.float32.20.chunked was not tested .*{HOW}", left("ligru"))
    assert "ligru.float32" in compiled("ligru")


def test_windows_are_tried_where_they_were_faster(monkeypatch):
    """By the record, than the walk under either loss; and nowhere else than on long sequences."""
    gpus.claim(monkeypatch)
    found = {}
    for row in json.loads((ROOT / "experiments/records/h200_windows.json").read_text())["windows"]:
        cell, T, B, H = (row[name] for name in ("cell", "T", "B", "H"))
        request = Request(cell.lower().replace("rnn", "rnn_tanh"), T, B, H, CUDA)
        ways = {name: way["seconds"]["both"] for name, way in row["ways"].items()}
        if planner.windows_pay(request):
            gain = ways["auto"] / ways["attached, speculative"]
            found.setdefault((cell, T, B), []).append(gain)
    assert set(found) == {("GRU", 10_000, 16), ("LSTM", 10_000, 16)} | {
        (cell, 30_000, 16) for cell in ("RNN", "GRU", "LSTM")
    }
    assert min(min(gains) for gains in found.values()) > 1.4

    long = Request("lstm", 30_000, 16, 20, CUDA)
    assert planner.windows_pay(long) and planner.windows_pay(long._replace(dtype=torch.float16))
    for what in (
        {"P": 10}, {"dtype": torch.float64}, {"total_steps": 99, "padded_steps": 9}, {"T": 1000},
        {"B": 2000}, {"H": 33},
    ):  # fmt: skip
        assert not planner.windows_pay(long._replace(**what)), what
    gpus.claim(monkeypatch, None)
    assert not planner.windows_pay(long)


def test_the_h200s_table_comes_from_its_record():
    table = tables.shipped()["nvidia_h200"]
    (record,) = table["measured"]["records"]
    measured = json.loads((ROOT / record).read_text())
    machine, file = table["machine"], Path(record).name
    said = table_of(measured, file, machine["processors"], machine["capability"])
    assert table | said == table
    recurrent = {name for name in table["kernels"]["right"] if not name.startswith("scan.")}
    assert recurrent <= gpus.every_kernel()
    verified = json.loads((ROOT / "experiments/records/h200_verified.json").read_text())
    assert table["kernels"] == verified["kernels"]
    assert verified["environment"]["gpu"] == table["machine"]["name"]


def test_a_kernel_that_failed_is_named_and_the_others_are_used(monkeypatch):
    bad = "gru.float32.20.chunked"
    table = replace(
        gpus.H200, right=gpus.every_kernel() - {bad}, wrong={bad: "hung: no answer in 20 s"}
    )
    gpus.claim(monkeypatch, table)
    # The plan without it is slower, and still right; chunks of other sizes and cells stay.
    assert left() is None and planner.plan(Request("gru", 1000, 16, 20, CUDA)).algorithm == "linear"
    for cell, H in (("gru", 8), ("lstm", 20)):
        assert planner.plan(Request(cell, 10_000, 16, H, CUDA)).algorithm == "chunked"
    asked = planner.plan(Request("gru", 1000, 16, 20, CUDA, "chunked"))
    assert asked.algorithm == "chunked"
    assert bad in compiled()  # where either plan may be chosen when sizes are known

    bad = "gru.float32.20.forward_one_input"
    gpus.claim(monkeypatch, replace(table, right=table.right - {bad}, wrong={bad: "off by 0.1"}))
    assert f"{bad} failed its test" in left() and "off by 0.1" in left()
    assert left(I=3) is None and left("lstm") is None and left(H=21) is None


def test_a_cell_that_was_not_timed_is_left_to_cudnn(monkeypatch):
    cells = {kind: fit for kind, fit in gpus.H200.cells.items() if kind != "gru"}
    gpus.claim(monkeypatch, replace(gpus.H200, cells=cells))
    assert "GRU was not timed" in left() and left("lstm") is None
    assert planner.plan(Request("gru", 1000, 16, 20, CUDA, "linear")).seconds > 0


def test_gates_are_computed_again_only_where_that_is_right(monkeypatch):
    large = Request("lstm", 30_000, 256, 64, CUDA)
    gpus.claim(monkeypatch, gpus.with_every_kernel())
    assert planner.saved(large) == planner.Saved.STATES
    right = gpus.every_kernel() - {"lstm.float32.gates_again"}
    gpus.claim(monkeypatch, replace(gpus.H200, right=right))
    assert planner.saved(large) == planner.Saved.GATES


def test_the_compiled_gate_is_a_constant_of_the_graph(monkeypatch):
    """torch.compile does not look into it: that would fail, or break the graph."""

    def read(*_):
        seen.append(Path(__file__).read_text())

    seen = []
    monkeypatch.setattr(planner.fallback_cuda, "_unverified", read)
    gpus.claim(monkeypatch, None)

    @torch.compile(fullgraph=True, backend="eager")
    def traced(x):
        reason = planner.fallback_reason_when_compiled(
            torch.device("cuda", 0), "gru", x.dtype, 1, 20, 0, 1, 1, False, "auto"
        )
        return x + 1 if reason is None else x

    assert torch.equal(traced(torch.ones(2)), torch.full((2,), 2.0)) and len(seen) == 1


@pytest.fixture
def at_hand(monkeypatch):
    """A GPU for gpu_tables: its properties, its driver, its build."""

    def properties(device):
        return SimpleNamespace(name=name[0], multi_processor_count=132, major=9, minor=0)

    name = ["NVIDIA H200"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(gpu_tables, "driver", lambda: gpus.VERSIONS["driver"])
    monkeypatch.setattr(gpu_tables._library, "cuda_build", lambda: gpus.VERSIONS["build"])
    forget()
    yield name
    forget()


def test_a_shipped_table_is_for_its_model_alone(at_hand):
    assert gpu_tables.own(CUDA).gpu == "NVIDIA H200"
    assert "h200_recurrent.json" in gpu_tables.own(CUDA).source
    at_hand[0] = "NVIDIA H200 MIG 1g.18gb"
    forget()
    assert gpu_tables.own(CUDA) is None and gpu_tables.nearest(CUDA) is gpu_tables.DEFAULT


def test_the_owners_table_comes_first_as_long_as_it_fits(at_hand, monkeypatch, tmp_path):
    monkeypatch.setenv(tables.FOLDER, str(tmp_path))
    shipped = tables.shipped()["nvidia_h200"]
    machine = gpu_tables.machine(CUDA)
    assert machine == gpus.HARDWARE | gpus.VERSIONS
    mine = shipped | {"machine": machine, "kernels": {"right": ["mine"], "wrong": {}}}
    mine["measured"] = {"date": "2030-01-01", "torch": "3"}
    tables.write(tables.user_path(machine), mine)
    forget()
    assert gpu_tables.own(CUDA).right == {"mine"}
    assert "calibrated 2030-01-01" in gpu_tables.own(CUDA).source

    for version in gpus.VERSIONS:
        mine["machine"] = machine | {version: "another"}
        tables.write(tables.user_path(machine), mine)
        forget()
        with pytest.warns(UserWarning, match=f"ignores the calibration .*{version} 'another'"):
            assert gpu_tables.own(CUDA).right == set(shipped["kernels"]["right"])
        gpu_tables.own(CUDA)  # read once, warned of once


def test_a_damaged_table_is_ignored(at_hand, monkeypatch, tmp_path):
    monkeypatch.setenv(tables.FOLDER, str(tmp_path))
    machine = gpu_tables.machine(CUDA)
    path = tables.user_path(machine)
    for damaged, why in (("{", "cannot be read"), ("[]", "no table"), ('{"kernels"', "be read")):
        path.write_text(damaged)
        forget()
        with pytest.warns(UserWarning, match=f"{path.name}.*{why}"):
            assert gpu_tables.own(CUDA).gpu == "NVIDIA H200"
    tables.write(path, {"format": 1, "machine": machine, "kernels": {"right": []}})
    forget()
    with pytest.warns(UserWarning, match=f"{path.name}: it is damaged"):
        assert gpu_tables.own(CUDA).source.startswith("fitted to h200_recurrent.json")


def test_sizes_are_those_that_are_compiled():
    """The bounds of with_unit_shape in shape.cuh, in order, for both dtypes."""
    source = (ROOT / "csrc/cuda/recurrent/shape.cuh").read_text()
    body = source[source.index("void with_unit_shape(") :]
    narrow, wide = body[: body.index("\n}\n")].split("  } else {\n    if (H <= 32)")
    bounds = [int(n) for n in re.findall(r"if \(H <= (\d+)", narrow)]
    assert sorted({*bounds, 512, 4096}) == list(kernels._SIZES["float32"])
    assert [32, *map(int, re.findall(r"if \(H <= (\d+)", wide)), 4096] == list(
        kernels._SIZES["float64"]
    )
    assert "constexpr int kMostUnits = 4096;" in source
    for cell, gates in GATES.items():
        assert kernels.sizes(cell, "float32", True) == kernels._SIZES["float32"]
        assert (256 in kernels.sizes(cell, "float32", False)) == (gates == 1)
    composed = (ROOT / "csrc/cuda/recurrent").glob("*.cuh")
    assert any("kMostComposedH = 32;" in path.read_text() for path in composed)


def test_kernels_of_a_call():
    def names(cell="lstm", H=20, T=100, plan=None, clusters=True, **more):
        request, plan = Request(cell, T, 4, H, CUDA, **more), plan or planner.Plan("linear")
        return {n.partition(".")[2] for n in kernels.of_call(request, clusters, plan)}

    chunks = planner.Plan("chunked", chunk=8)
    assert names() == {"float32.20.forward_one_input", "float32.20.linear"}
    assert names(plan=chunks, I=2) == {"float32.20.forward", "float32.20.chunked"}
    assert names(plan=chunks, H=33, I=2) == {"float32.64.forward", "float32.64.linear"}
    assert names(plan=chunks, T=8, I=2) == {"float32.20.forward", "float32.20.linear"}
    assert names(I=2, dtype=torch.float16) == {"float32.20.forward", "float32.20.linear"}
    assert names(I=2, dtype=torch.float64) == {"float64.32.forward", "float64.32.linear"}
    assert names(H=200, I=2) == {"float32.256.forward", "float32.256.linear"}
    assert names(H=200, I=2, clusters=False) == {"float32.512.forward", "float32.512.linear"}
    assert names(layers=2) == names() | names(I=2)
    assert names(directions=2) - names() == {"float32.reverse"}
    assert names(P=3) - names() == {"float32.projection"}
    assert names(total_steps=99) == names(I=2) | {"float32.lengths"}

"""Measured tables: which one counts, what they say, and that they come from their records.

T steps, B batch, H hidden.
"""

import json
import warnings
from pathlib import Path

import pytest
import torch

from bppsa_lightning import planner
from bppsa_lightning.planner import fallback, hand_over, machine, tables
from bppsa_lightning.planner.hand_over import LeastSteps
from experiments.benchmarks import tables as derivation

CPU = torch.device("cpu")
RECORDS = Path(__file__).parents[2] / "experiments" / "records"
CELLS = {"RNN": "rnn_tanh", "GRU": "gru", "LSTM": "lstm"}
GRIDS = {"intel_xeon_2": "grid_recurrent_cpu", "amd_epyc_2": "amd_epyc/grid_recurrent_cpu"}
OVERRULED = "intel_xeon_2"  # whose table comes from its grid
ONE = {
    "device": "cpu", "name": "One CPU", "cores": 4, "kernels": "x86_64_v2", "torch": "2.14.1",
    "bppsa_lightning": "0.1.0",
}  # fmt: skip


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """A folder of its own for the user's tables; and nobody's afterwards."""
    monkeypatch.setenv(tables.FOLDER, str(tmp_path))
    monkeypatch.delenv(machine.TABLE, raising=False)
    machine.forget()
    yield
    monkeypatch.undo()
    machine.forget()


@pytest.fixture(params=sorted(derivation.SOURCES))
def shipped(request, monkeypatch):
    """Tables that are fitted to records of grids."""
    monkeypatch.setenv(machine.TABLE, request.param)
    machine.forget()
    return request.param


@pytest.fixture(params=sorted((*derivation.SOURCES, *derivation.CALIBRATED)))
def any_table(request, monkeypatch):
    monkeypatch.setenv(machine.TABLE, request.param)
    machine.forget()
    return request.param


# --- from records ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted((*derivation.SOURCES, *derivation.CALIBRATED)))
def test_a_table_is_what_its_records_give(name):
    found = derivation.derived(name)
    table = tables.shipped()[name]
    assert {key: table[key] for key in found} == found
    record = next(iter(table["measured"]["records"].values()))
    assert (RECORDS.parents[1] / record).is_file()


@pytest.mark.parametrize("name", sorted(derivation.SOURCES))
def test_another_record_gives_another_table(name, monkeypatch):
    """The test above would notice: one call of the grid that PyTorch kept, one that took longer."""
    read = derivation.recording.read
    worse = json.loads(json.dumps(read(derivation.SOURCES[name]["hand_over"])))
    if "rows" in worse:
        row = next(r for r in worse["rows"] if (r["cell"], r["T"], r["H"]) == ("GRU", 100, 20))
        row["scanned"] = False
    else:
        worse["hand_over"][0]["least_T"]["GRU"][2][0] = 99
    monkeypatch.setattr(
        derivation.recording,
        "read",
        lambda record: worse if record == derivation.SOURCES[name]["hand_over"] else read(record),
    )
    assert derivation.derived(name)["hand_over"] != tables.shipped()[name]["hand_over"]


def test_every_size_of_the_grid_is_planned_as_it_was_measured(shipped, monkeypatch):
    rows = derivation.recording.read(GRIDS[shipped])["rows"]
    assert len(rows) == 420
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    for row in rows:
        size = row["T"], row["B"], row["H"]
        here = planner.fallback_reason(planner.Request(CELLS[row["cell"]], *size, CPU)) is None
        here |= row.get("algorithm") == "speculative"  # windows, whose walk was PyTorch's otherwise
        overruled = shipped == OVERRULED and (row["cell"], *size) in derivation.OVERRULED
        assert here == (row["scanned"] and not overruled), row
        plan = planner.plan(planner.Request(CELLS[row["cell"]], *size, CPU))
        assert plan.algorithm == "linear"


def test_estimates_of_backward_passes_are_near_the_record(shipped):
    sources = tables.shipped()[shipped]["measured"]["records"]
    rows = json.loads((RECORDS.parents[1] / sources["scan"]).read_text())["rows"]
    ratios = []
    for row in rows:
        request = planner.Request(row["cell"], row["T"], row["B"], row["H"], CPU, "linear")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "get_num_threads", lambda: 2)
            ratios.append(planner.plan(request).seconds / row["seconds"]["linear"])
    ratios.sort()
    assert 0.8 < ratios[len(ratios) // 2] < 1.25
    assert ratios[0] > 0.25 and ratios[-1] < 2.5


# --- what a table says -------------------------------------------------------------------------


def test_the_least_steps_between_the_measured_sizes():
    least = LeastSteps([16, 64], [1, 4, 16], [[2, 2, 2], [8, 32, None]])
    assert [round(least.at(B, 16)) for B in (1, 2, 16, 99)] == [2] * 4
    assert round(least.at(1, 64)) == 8 and round(least.at(2, 64)) == 16  # logarithmic
    assert round(least.at(1, 32)) == 4 and round(least.at(1, 1000)) == 8
    assert least.at(16, 64) > 1e6 > least.at(9, 64) > 32
    # Exactly at what was measured there is no rounding.
    assert least.at(4, 64) <= 32 and least.at(1, 8) <= 2


def test_threads_nearest_to_those_measured():
    measured = [{"threads": n} for n in (1, 4, 16)]
    for threads, wanted in ((1, 1), (2, 1), (3, 4), (7, 4), (9, 16), (64, 16)):
        assert hand_over.nearest_threads(measured, threads)["threads"] == wanted


def test_steps_of_one_thread_where_two_were_measured(shipped, monkeypatch):
    """One thread takes for n samples what two take for twice as many."""
    for cell in CELLS.values():
        for n in (1, 4, 16):
            monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
            one = planner.step_seconds(cell, 20, 1, n)
            monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
            assert one == planner.step_seconds(cell, 20, 1, 2 * n)


@pytest.mark.parametrize("algorithm", ["linear", "chunked", "blelloch"])
@pytest.mark.parametrize("cell", ["rnn_tanh", "gru", "lstm"])
def test_only_auto_hands_over(cell, algorithm, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    short = planner.Request(cell, 1, 1, 512, CPU)
    assert planner.fallback_reason(short) is not None
    assert planner.fallback_reason(short._replace(algorithm=algorithm)) is None


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 16, 64])
def test_any_number_of_threads_has_a_plan(threads, monkeypatch, any_table):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    for size in ((10_000, 1, 4), (10_000, 1, 20), (1000, 16, 20), (7, 300, 64), (100, 1, 512)):
        for cell in CELLS.values():
            plan = planner.plan(planner.Request(cell, *size, CPU))
            assert plan.seconds > 0
            # What was never measured with so many threads must promise more than the linear scan.
            linear = planner.plan(planner.Request(cell, *size, CPU, "linear")).seconds
            assert plan.algorithm == "linear" or (threads > 4 and plan.seconds < linear)
            assert plan.algorithm == "linear" or (size[1] == 1 and size[2] <= 64)


# --- which table -------------------------------------------------------------------------------


def test_the_nearest_machine():
    intel, amd = "Intel(R) Xeon(R) Processor", "AMD EPYC"
    assert machine.nearest({"name": intel, "kernels": "x86_64_v4", "cores": 64}) == "intel_xeon_2"
    assert machine.nearest({"name": amd, "kernels": "x86_64_v4", "cores": 2}) == "amd_epyc_2"
    assert machine.nearest({"name": amd, "kernels": "x86_64_v3", "cores": 2}) == "amd_epyc_2_avx2"
    assert machine.nearest({"name": "?", "kernels": "x86_64_v3", "cores": 8}) == "amd_epyc_2_avx2"
    assert machine.nearest({"name": "?", "kernels": "generic", "cores": 8}) == machine.DEFAULT


def test_a_machine_that_is_far_from_all_is_told(monkeypatch):
    amd = tables.shipped()["amd_epyc_2"]["machine"]
    for more, told in (({}, False), ({"cores": 4}, False), ({"cores": 8}, True), (ONE, True)):
        monkeypatch.setattr(machine, "this_cpu", lambda more=more: ONE | amd | more)
        machine.forget()
        line = machine.suggestion()
        assert (line is not None) == told
        assert line is None or (
            "bl.calibrate()" in line and str((ONE | amd | more)["cores"]) in line
        )


def test_kernels_are_told_where_names_are_the_same(monkeypatch):
    amd = tables.shipped()["amd_epyc_2"]["machine"]
    monkeypatch.setattr(machine, "this_cpu", lambda: ONE | amd | {"kernels": "generic"})
    monkeypatch.setattr(machine, "nearest", lambda this: "amd_epyc_2")
    machine.forget()
    assert "AMD EPYC, 2 cores (generic kernels)" in machine.suggestion()
    assert "AMD EPYC, 2 cores (x86_64_v4 kernels)" in machine.suggestion()


def test_a_table_by_name(monkeypatch):
    monkeypatch.setenv(machine.TABLE, "amd_epyc_2")
    assert machine.cpu()["machine"]["name"] == "AMD EPYC"
    monkeypatch.setenv(machine.TABLE, "nvidia_h200")
    machine.forget()
    with pytest.raises(ValueError, match="BPPSA_TABLE: found 'nvidia_h200', wanted one of amd"):
        machine.cpu()


# --- the user's table --------------------------------------------------------------------------


def kept(**more):
    table = {"format": tables.FORMAT, "machine": dict(ONE), "mark": 1} | more
    path = tables.user_path(ONE)
    tables.write(path, table)
    return path


def test_the_users_table_counts_and_what_it_lacks_is_the_nearest_ones(monkeypatch):
    monkeypatch.setattr(machine, "this_cpu", lambda: ONE)
    scan = {"threads": 4, **dict.fromkeys(("RNN", "GRU", "LSTM"), [1.0] * 7)}
    kept(scan=scan)
    table = machine.cpu()
    assert table["scan"] == scan and table["machine"] == ONE
    assert table["pruned"] == tables.shipped()[machine.DEFAULT]["pruned"]
    assert machine.suggestion() is None


def test_a_table_is_one_machines():
    assert tables.user_path(ONE) != tables.user_path(ONE | {"cores": 8})
    assert tables.user_path(ONE) == tables.user_path(ONE | {"torch": "3.0"})
    assert tables.read_user(ONE) is None  # and no warning
    kept()
    assert tables.read_user(ONE)["mark"] == 1


UNFIT = {
    "empty": "",
    "cut short": '{"format": 1, "machi',
    "no JSON": "\0\1\2",
    "not text": b"\xff\xfe\xff",
    "a list": "[]",
    "no machine": '{"format": 1}',
    "of another format": json.dumps({"format": 0, "machine": ONE}),
    "another machine's": json.dumps({"format": 1, "machine": ONE | {"cores": 8}}),
    "an older version's": json.dumps({"format": 1, "machine": ONE | {"torch": "2.11.0"}}),
}


@pytest.mark.parametrize("what", UNFIT)
def test_an_unfit_table_is_ignored_with_one_warning_that_names_it(what, monkeypatch):
    monkeypatch.setattr(machine, "this_cpu", lambda: ONE)
    path = tables.user_path(ONE)
    content = UNFIT[what]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.warns(UserWarning, match="ignores the calibration") as warned:
        table = machine.cpu()
        planner.fallback_reason(planner.Request("gru", 10, 16, 20, CPU))
    assert len(warned) == 1 and str(path) in str(warned[0].message)
    assert what.split()[0] in ("an", "another") or "an older" not in str(warned[0].message)
    assert table == tables.shipped()[machine.DEFAULT]


DAMAGED = {
    "no threads": {"hand_over": []},
    "half a part": {"hand_over": [{"threads": 2, "H": [1]}]},
    "a row too short": {
        "hand_over": [{"threads": 2, "H": [1, 2], "B": [1], "least_T": {"GRU": [[1]]}}]
    },
    "packed": {"packed": {"even": {}}},
    "coefficients": {"scan": {"threads": 2, "RNN": [1.0] * 7, "GRU": [1.0], "LSTM": [1.0] * 7}},
    "a number": {"scan": 3},
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_table_that_is_damaged_inside_is_ignored(what, monkeypatch):
    monkeypatch.setattr(machine, "this_cpu", lambda: ONE)
    path = kept(**DAMAGED[what])
    with pytest.warns(UserWarning, match="it is damaged") as warned:
        table = machine.cpu()
    assert len(warned) == 1 and str(path) in str(warned[0].message)
    assert table == tables.shipped()[machine.DEFAULT]


def test_a_folder_in_the_tables_place(monkeypatch):
    tables.user_path(ONE).mkdir(parents=True)
    with pytest.warns(UserWarning, match="cannot be read"):
        assert tables.read_user(ONE) is None


def test_a_write_that_fails_leaves_the_old_table(monkeypatch):
    path = kept()
    monkeypatch.setattr(tables.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        kept(mark=2)
    assert json.loads(path.read_text())["mark"] == 1
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_tables_are_read_once(monkeypatch):
    monkeypatch.setattr(machine, "this_cpu", lambda: ONE)
    kept()
    planner.fallback_reason(planner.Request("gru", 10, 16, 20, CPU))
    monkeypatch.setattr(tables, "read_user", lambda machine: pytest.fail("read again"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for T in range(1, 50):
            planner.fallback_reason(planner.Request("gru", T, 16, 20, CPU))
            planner.plan(planner.Request("gru", T, 16, 20, CPU))


def test_answers_are_kept_within_bounds_and_forgotten_with_the_tables(monkeypatch, shipped):
    monkeypatch.setattr(fallback, "_MOST_ANSWERS", 5)
    fallback._answers.clear()
    request = planner.Request("gru", 1, 16, 128, CPU)
    for T in [*range(1, 12), 1, 3, 1]:
        reason = planner.fallback_reason(request._replace(T=T))
        slower = hand_over.pytorch_is_faster("gru", T, 16, 128)
        assert (reason is not None) == slower and len(fallback._answers) <= 5
        assert planner.fallback_reason(request._replace(T=T)) == reason
        assert planner.fallback_reason(request._replace(T=T, algorithm="linear")) is None
    machine.forget()
    assert not fallback._answers

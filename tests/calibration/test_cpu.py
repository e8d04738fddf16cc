"""bl.calibrate(): whole or not at all, stopped and gone on with, and used from then on.

T steps, B batch, H hidden.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

import bppsa_lightning as bl
from bppsa_lightning import planner
from bppsa_lightning.calibration import cpu, least, pairs, ratios, steps
from bppsa_lightning.calibration.fit_cpu import Size
from bppsa_lightning.planner import machine, tables
from bppsa_lightning.recurrent import precision

CPU = torch.device("cpu")
# A grid of few sizes, of which each is measured for a moment.
SMALL = """
from bppsa_lightning.calibration import cpu, least, ratios, steps
ratios.GRIDS = {"LSTM": ratios.Grid((3, 6), (2,), (5, 7))}
steps.SIZES, steps.SAMPLES, steps._WORK, steps._LEAST = (4, 8), (1, 4), 1 << 10, 8
least.SIZES, least.BATCHES = (4, 8), (1, 16)
least.PACKED_SIZES, least.PACKED_BATCHES = (4,), (4, 8)
cpu.SCANS = ((1, 20, 4), (2, 10, 8))
"""
RUN = SMALL + "import bppsa_lightning as bl; print(bl.calibrate(seconds=0.5, progress=False))"


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    monkeypatch.setenv(tables.FOLDER, str(tmp_path))
    monkeypatch.delenv(machine.TABLE, raising=False)
    for name in ("SIZES", "SAMPLES", "_WORK", "_LEAST"):
        monkeypatch.setattr(steps, name, getattr(steps, name))
    for name in vars(least):
        if name.endswith(("SIZES", "BATCHES")):
            monkeypatch.setattr(least, name, getattr(least, name))
    monkeypatch.setattr(cpu, "SCANS", cpu.SCANS)
    monkeypatch.setattr(ratios, "GRIDS", ratios.GRIDS)
    exec(SMALL, {})
    machine.forget()
    yield tmp_path
    monkeypatch.undo()
    machine.forget()


@pytest.fixture
def timed(monkeypatch):
    """Measures nothing: PyTorch takes `timed.stock` times as long. `timed.sizes` were asked for."""

    def pair(size, seconds, turns=7, padded=None, bfloat16=False, mode="training"):
        kind = asked.in_bfloat16 if bfloat16 else asked.sizes
        (asked.in_inference if mode == "inference" and not bfloat16 else kind).append(size)
        return pairs.Pair(1e-3, 1e-3 * asked.stock(size))

    class asked:
        sizes: list = []
        in_bfloat16: list = []
        in_inference: list = []
        stock = staticmethod(lambda size: 0.5 * size.T)

    asked.sizes, asked.in_bfloat16, asked.in_inference = [], [], []
    monkeypatch.setattr(pairs, "pair", pair)
    monkeypatch.setattr(pairs, "fastest", lambda size, I, seconds: 1e-6 * size.T)
    return asked


def test_from_then_on_the_planner_chooses_by_it(timed, small):
    gru = torch.nn.GRU(3, 8)
    (chain,) = bl.attach(gru)
    gru(torch.rand(9, 1, 3))
    layer = planner.Request("gru", 9, 1, 8, CPU)
    assert planner.fallback_reason(layer) is None
    timed.stock = lambda size: 3.0 if size.T > 100 or size.cell != "GRU" else 0.5
    report = bl.calibrate(seconds=0.1, progress=False)
    assert "faster" in planner.fallback_reason(layer)
    gru(torch.rand(9, 1, 3))  # the same size again, of a layer that was attached before
    assert (chain.calls, chain.fallback_calls) == (1, 1)
    assert planner.fallback_reason(layer._replace(cell="lstm")) is None
    assert planner.fallback_reason(layer._replace(T=1000)) is None
    # The GRU's single step goes to PyTorch now; that of the RNN comes here.
    assert "elsewhere than with the table used before" in report and " the other way" in report
    (path,) = small.iterdir()
    assert str(path) in report and json.loads(path.read_text())["machine"] == machine.this_cpu()
    assert planner.plan(layer).seconds > 0


def test_the_report_says_when_nothing_changes(timed):
    bl.calibrate(seconds=0.1, progress=False)
    assert "chooses the same for all" in bl.calibrate(seconds=0.1, progress=False)


def test_the_report_says_when_the_table_is_not_used(timed, monkeypatch):
    monkeypatch.setenv(machine.TABLE, "amd_epyc_2")
    machine.forget()
    assert bl.calibrate(seconds=0.1, progress=False).endswith(
        "(unused while BPPSA_TABLE is set to amd_epyc_2)"
    )


def test_what_another_number_of_threads_gave_is_kept(timed, small):
    bl.calibrate(seconds=0.1, progress=False)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 3)
        bl.calibrate(seconds=0.1, progress=False)
        bl.calibrate(seconds=0.1, progress=False)
    finally:
        torch.set_num_threads(threads)
    (path,) = small.iterdir()
    parts = json.loads(path.read_text())["hand_over"]
    assert [part["threads"] for part in parts] == [threads, threads + 3]


@pytest.mark.parametrize("damage", [{"hand_over": [3]}, {"hand_over": 3}, {"steps": [{}]}], ids=str)
def test_in_the_place_of_a_damaged_table(timed, small, damage):
    bl.calibrate(seconds=0.1, progress=False)
    (path,) = small.iterdir()
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | damage))
    machine.forget()
    with pytest.warns(UserWarning, match="it is damaged"):
        bl.calibrate(seconds=0.1, progress=False)
    found = json.loads(path.read_text())
    assert [found[name] for name in damage] == [whole[name] for name in damage]


def test_steps_are_measured_around_the_least_that_pays(timed):
    timed.stock = lambda size: {"RNN": 2.0, "GRU": 0.5, "LSTM": 0.3 * size.T}[size.cell]
    bl.calibrate(seconds=0.1, progress=False)
    steps = {cell: {s.T for s in timed.sizes if s.cell == cell and s.H == 8} for cell in cpu.CELLS}
    assert steps == {"RNN": {10, 2, 1}, "GRU": {10, 30, 100, 1000}, "LSTM": {100, 10, 2}}


@pytest.mark.parametrize("multiplies", [False, True])
def test_bfloat16_is_measured_where_the_cpu_multiplies_it(timed, small, monkeypatch, multiplies):
    monkeypatch.setattr(precision, "multiplies_bfloat16", lambda: multiplies)
    timed.stock = lambda size: 0.5 if size.H == 7 else 3.0
    bl.calibrate(seconds=0.1, progress=False)
    (path,) = small.iterdir()
    table = json.loads(path.read_text())
    assert bool(timed.in_bfloat16) == multiplies == ("bfloat16" in table)
    # In inference in float32 everywhere.
    assert timed.in_inference == [Size("LSTM", T, 2, H) for H in (5, 7) for T in (3, 6)]
    (part,) = table["inference"]
    assert part["inference"] == [[[3.0, 0.5]]] * 2 and "training" not in part
    request = planner.Request("lstm", 3, 2, 7, CPU, mode="inference")
    assert planner.fallback_reason(request) and not planner.fallback_reason(request._replace(H=5))
    if multiplies:
        assert len(timed.in_bfloat16) == 2 * 2 * 2 and len(set(timed.in_bfloat16)) == 4
        (part,) = table["bfloat16"]
        assert (part["threads"], part["cell"]) == (torch.get_num_threads(), "LSTM")
        assert (part["T"], part["B"], part["H"]) == ([3, 6], [2], [5, 7])
        assert part["training"] == part["inference"] == [[[3.0, 0.5]]] * 2
        request = planner.Request("lstm", 3, 2, 7, CPU, bfloat16=True, mode="inference")
        assert planner.fallback_reason(request) is not None
        assert planner.fallback_reason(request._replace(H=5)) is None


def test_larger_sizes_in_bfloat16_are_as_those_of_fewer_steps(timed, monkeypatch):
    monkeypatch.setattr(ratios, "MOST", 6 * 2 * 5 * 5)
    timed.stock = lambda size: float(size.T)
    nodes = ratios.measured(lambda name, measure: measure(), 0.0, bfloat16=True)
    found = {size: ratio for node in nodes for size, ratio in node.items()}
    assert found["LSTM", "training", 6, 2, 5] == 6.0
    assert found["LSTM", "training", 6, 2, 7] == 3.0


@pytest.mark.parametrize("mode", ["training", "inference"])
def test_a_pair_in_bfloat16(mode):
    found = pairs.pair(Size("GRU", 20, 2, 8), 0.01, bfloat16=True, mode=mode)
    assert found.ours > 0 and found.stock > 0


def test_neither_random_numbers_nor_modes_of_the_caller_change():
    torch.manual_seed(3)
    wanted = torch.rand(3)
    torch.manual_seed(3)
    threads = torch.get_num_threads()
    with torch.no_grad():
        assert pairs.CELLS and bl.calibrate(seconds=0.1, progress=False)
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.rand(3), wanted) and torch.get_num_threads() == threads


def test_the_cpu_is_measured_whatever_the_default_device_is(monkeypatch):
    made, devices = pairs._layer, set()

    def layer(*arguments):
        module = made(*arguments)
        devices.update(p.device.type for p in module.parameters())
        return module

    monkeypatch.setattr(pairs, "_layer", layer)
    with torch.device("meta"):
        bl.calibrate(seconds=0.1, progress=False)
    assert devices == {"cpu"}


def test_nothing_intercepts_the_calls_that_are_timed(timed, monkeypatch):
    """A default device does, in Python: a microsecond each, which made short layers look slow."""
    pair, modes = pairs.pair, set()

    def watched(*arguments, **more):
        modes.add(torch._C._len_torch_function_stack())
        return pair(*arguments, **more)

    monkeypatch.setattr(pairs, "pair", watched)
    bl.calibrate(seconds=0.1, progress=False)
    assert modes == {0}


def test_a_pair_is_of_our_kernels_and_of_pytorchs():
    found = pairs.pair(Size("GRU", 200, 4, 8), 0.2)
    assert found.stock > 1.5 * found.ours > 0
    spread = pairs.pair(Size("GRU", 200, 4, 8), 0.2, padded=True)
    assert spread.stock > 1.5 * spread.ours > 0


@pytest.mark.parametrize("padded", [True, False])
def test_lengths_are_of_the_kind_that_was_asked_for(padded):
    for T in (3, 5, 8, 14, 30):
        for B in (8, 32, 128):
            lengths = pairs._lengths(Size("GRU", T, B, 8), padded)
            assert lengths[0] == T and lengths == sorted(lengths, reverse=True) and lengths[-1] >= 1
            assert sum(lengths) != T * B and (2 * sum(lengths) < T * B) == padded


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"device": "mps"}, "device: found mps, wanted 'cpu'"),
        ({"seconds": 0}, "seconds: found 0, wanted a positive number"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        bl.calibrate(**arguments)


# --- stopped -----------------------------------------------------------------------------------


def test_a_stopped_calibration_goes_on_where_it_was(timed, small, monkeypatch):
    class Stop(Exception):
        pass

    count, pair = 9, pairs.pair

    def stop(*arguments, **more):
        if len(timed.sizes) == count:
            raise Stop
        return pair(*arguments, **more)

    monkeypatch.setattr(pairs, "pair", stop)
    with pytest.raises(Stop):
        bl.calibrate(seconds=0.1, progress=False)
    (partial,) = small.iterdir()
    assert partial.suffix == ".partial"
    monkeypatch.setattr(pairs, "pair", pair)
    bl.calibrate(seconds=0.1, progress=False)
    assert len(set(timed.sizes)) > count and len(timed.sizes[:count]) == count
    assert not set(timed.sizes[:count]) & set(timed.sizes[count:])  # (no size is of two kinds)
    assert [path.suffix for path in small.iterdir()] == [".json"]


@pytest.mark.parametrize("what", ["", "{", "[]", '{"format": 1, "machine": {}, "values": {}}'])
def test_a_damaged_or_foreign_rest_is_no_start(what, timed, small):
    path = tables.user_path(machine.this_cpu())
    threads = torch.get_num_threads()
    path.with_name(f"{path.stem}.{threads}-threads.partial").write_text(what)
    bl.calibrate(seconds=0.1, progress=False)
    assert len(timed.sizes) > 12


def test_killed_at_random_moments_it_leaves_no_damaged_table(small):
    """Twenty times, by SIGKILL: the next one goes on, and what lies there is whole."""
    moments, measured, starts = random.Random(0), [], 0
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    zygote = subprocess.Popen(
        [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip
    try:
        while starts < 20:
            zygote.stdin.write("run\n")
            zygote.stdin.flush()
            child = int(zygote.stdout.readline())
            time.sleep(moments.uniform(0.0, 0.15))
            with contextlib.suppress(ProcessLookupError):  # it has come to its end
                os.kill(child, signal.SIGKILL)
            assert zygote.stdout.readline() == "over\n"
            starts += 1
            for path in small.iterdir():
                if path.suffix in (".json", ".partial"):
                    table = json.loads(path.read_text())
                    assert table["machine"] == machine.this_cpu()
                    if path.suffix == ".partial":
                        measured.append(len(table["values"]))
    finally:
        zygote.communicate()
    assert measured and max(measured) > min(measured)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)  # as those that were killed
        report = bl.calibrate(seconds=0.2, progress=False)
    finally:
        torch.set_num_threads(threads)
    assert "Kept in" in report and tables.read_user(machine.this_cpu()) is not None
    assert [path.suffix for path in small.iterdir()] == [".json"]


# Forks a calibration for each line that comes in, as imports take longer than it does.
FORKS = (
    "import os, sys\nimport torch\ntorch.set_num_threads(1)\n"
    + SMALL
    + """
import bppsa_lightning as bl
for line in sys.stdin:
    child = os.fork()
    if not child:
        bl.calibrate(seconds=2.0, progress=False)
        os._exit(0)
    print(child, flush=True)
    os.waitpid(child, 0)
    print("over", flush=True)
"""
)


@pytest.mark.parametrize("busy", [0.1, 1.4, None])
def test_beside_other_programs_figures_are_not_to_be_trusted(timed, monkeypatch, busy):
    monkeypatch.setattr(cpu.OtherLoad, "cores", lambda self: busy)
    report = bl.calibrate(seconds=0.5, progress=False)
    said = "Other programs kept 1.4 cores busy: these figures are not to be trusted."
    assert (said in report) == ("not to be trusted" in report) == (busy == 1.4)

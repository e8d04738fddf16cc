"""Calibration of a GPU, on stand-ins: what it finds and keeps, and what "auto" does with it."""

import json
import re

import pytest
import torch
from support import gpus, stand_in_kernels
from support.emulation import needs_gxx
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import bppsa_lightning as bl
from bppsa_lightning import _library, planner
from bppsa_lightning.calibration.cuda import calibrate_cuda, cases, isolated, kept
from bppsa_lightning.planner import Request, choose, gpu_tables, tables
from bppsa_lightning.planner.machine import forget

CUDA = torch.device("cuda", 0)
MACHINE = gpus.HARDWARE | {"name": "NVIDIA B200"} | gpus.VERSIONS  # of which there is no record
SIZES = [
    {"cell": cell, "B": B, "T": T, "H": H}
    for cell in ("RNN", "GRU")
    for B, T, H in ((16, 10, 20), (16, 1000, 20), (16, 3000, 20), (256, 1000, 20))
]
SMALL = 30  # steps of a case: the stand-ins' are none the better for more


def some_kernels(*starts):
    """The cases of the kernels whose names begin so."""
    return {
        name: [case for case in found if case.T <= SMALL]
        for name, found in cases.of_gpu(clusters=True, processors=4).items()
        if name.startswith(starts)
    }


@pytest.fixture(autouse=True)
def a_gpu(monkeypatch, tmp_path):
    """A GPU that nobody has measured, of which only its tables are read."""
    monkeypatch.setenv(tables.FOLDER, str(tmp_path / "tables"))
    (tmp_path / "log").touch()
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)
    monkeypatch.setattr(choose, "gpu", lambda device: (132, True))
    monkeypatch.setattr(_library, "_missing_recurrent_cuda_kernels", lambda device: None)
    hardware = {name: MACHINE[name] for name in gpus.HARDWARE}
    monkeypatch.setattr(gpu_tables, "hardware_of", lambda device: dict(hardware))
    monkeypatch.setattr(gpu_tables, "machine", lambda device: dict(MACHINE))
    forget()
    yield
    forget()


@pytest.fixture
def calibrate(monkeypatch):
    def calibrate(kernels, faults=None, stand_in="cpu", sizes=SIZES, **limits):
        monkeypatch.setenv("SEEDED_FAULTS", json.dumps(faults or {}))
        monkeypatch.setenv("STAND_IN", stand_in)
        limits = {"case_limit": 20, "size_limit": 20} | limits
        runner = stand_in_kernels.RUNNER
        return calibrate_cuda(CUDA, False, runner, kernels, sizes, **limits)

    return calibrate


def reason(cell="gru", T=1000, H=20, **more):
    """Why a call is left to PyTorch."""
    return planner.fallback_reason(Request(cell, T, 16, H, CUDA, **more))


def tasks_done(tmp_path):
    """The tasks of all workers so far."""
    return [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]


@pytest.mark.filterwarnings("ignore:Accessing the data pointer:UserWarning")
def test_interrupted_it_goes_on_and_what_passes_is_scanned(calibrate, monkeypatch, tmp_path):
    tested = some_kernels("gru.float32.20.")
    monkeypatch.setattr(kept, "EVERY", 0.0)
    half, ask = sum(map(len, tested.values())) // 2, isolated.Isolated.ask
    interruptions = [
        lambda task: len(tasks_done(tmp_path)) == half,
        lambda task: task.get("size") == SIZES[-2],
    ]

    def interrupted(self, task, limit):
        if interruptions and interruptions[0](task):
            interruptions.pop(0)
            raise KeyboardInterrupt
        return ask(self, task, limit)

    monkeypatch.setattr(isolated.Isolated, "ask", interrupted)
    while interruptions:
        with pytest.raises(KeyboardInterrupt):
            calibrate(tested)
        assert kept.Kept(MACHINE).path.exists() and not tables.user_path(MACHINE).exists()
        assert "not tested on this GPU (NVIDIA B200)" in reason()  # until it is finished
    found = calibrate(tested)
    # No kernel and no size that was finished was asked for again.
    done = [json.dumps(task, sort_keys=True) for task in tasks_done(tmp_path)]
    assert len(set(done)) == sum(map(len, tested.values())) + 4
    assert len(done) - len(set(done)) < max(map(len, tested.values()))

    assert reason() is None and reason(H=9) is None
    assert reason(H=8) is not None and reason("lstm") is not None
    assert not found.issues and "5 of 5 CUDA kernels are right" in found.summary
    # The RNN's kernels were not tested, and so not timed.
    assert "Of 4 sizes timed beside cuDNN, 4 now run on these kernels" in found.summary
    assert "before it was 0" in found.summary

    table = json.loads(found.path.read_text())
    plan = planner.plan(Request("gru", 1000, 16, 20, CUDA))
    assert plan.algorithm == "chunked"
    assert f"calibrated {table['measured']['date']}, NVIDIA B200" in plan.reason
    assert table["machine"] == MACHINE and list(table["recurrent"]["cells"]) == ["gru"]
    assert found.path == tables.user_path(MACHINE) and not kept.Kept(MACHINE).path.exists()

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # a layer would ask for more
    with FakeTensorMode():
        layer = nn.GRU(1, 20, device="cuda")
        (chain,) = bl.attach(layer)
        layer(torch.ones(1000, 16, 1, device="cuda"))
    assert chain.calls == 1, chain.reason


LIMIT = 4.0  # seconds; whoever waits for a busy core has not hung
HUNG = "hung: no answer in 4 s"
FAULTS = {
    "rnn_tanh.float32.8.linear": ("wrong", "off by .* expected .*at .*, expected "),
    "rnn_tanh.float32.20.chunked": ("hang", HUNG),
    "gru.float32.8.forward": ("raise", "RuntimeError: CUDA error: an illegal memory access"),
    "gru.float32.8.blelloch": ("abort", "died with SIGABRT"),
}


def test_kernels_that_fail_are_named_and_not_used_and_the_others_are(calibrate, tmp_path):
    tested = some_kernels("rnn_tanh.float32.8.", "rnn_tanh.float32.20.", "gru.float32.8.")
    tested |= some_kernels("gru.float32.20.")
    late = "gru.float32.20.chunked"  # while it is timed
    faults = {kernel: fault for kernel, (fault, _) in FAULTS.items()} | {f"timed:{late}": "hang"}
    found = calibrate(tested, faults, case_limit=LIMIT, size_limit=LIMIT)
    kernels = json.loads(found.path.read_text())["kernels"]
    for kernel, (_, why) in {**FAULTS, late: ("hang", HUNG)}.items():
        assert re.search(why, kernels["wrong"].pop(kernel))
        (issue,) = (text for text in found.issues if kernel in text)
        assert re.search(why, issue) and "580.65.06" in issue and "NVIDIA B200" in issue
        assert kernel in found.summary
    assert not kernels["wrong"]
    assert kernels["right"] == sorted({*tested} - {*FAULTS, late})

    # The plan of a kernel that failed is not "auto"'s; another is.
    for cell in ("rnn_tanh", "gru"):
        assert reason(cell) is None
        assert planner.plan(Request(cell, 1000, 16, 20, CUDA)).algorithm == "linear"
    assert "gru.float32.8.forward failed its test on this NVIDIA B200" in reason(H=8, I=2)
    # None is run again after it has failed.
    timed = [task["plans"] for task in tasks_done(tmp_path) if "plans" in task]
    assert [plans for plans in timed if plans != ["linear"]] == [["linear", "c8"]]


def test_what_another_version_has_left_is_not_taken(calibrate, monkeypatch, tmp_path):
    left = kept.Kept(MACHINE | {"build": "another"})
    left.verdicts.right.update(gpus.every_kernel())
    left.write()
    assert kept.Kept(MACHINE).path.exists() and not kept.Kept(MACHINE).verdicts.right
    kept.Kept(MACHINE).path.write_text("{")
    assert not kept.Kept(MACHINE).verdicts.right


def test_a_gpu_that_no_process_can_use_is_told(calibrate):
    with pytest.raises(RuntimeError, match="no process can use cuda:0: .*initialization failed"):
        calibrate(some_kernels("gru.float32.20."), stand_in="none")
    assert not tables.user_path(MACHINE).exists()


def test_only_cuda_devices_are_calibrated_here():
    with pytest.raises(ValueError, match="device: found cpu, wanted a CUDA device"):
        calibrate_cuda("cpu")


@needs_gxx
def test_the_emulated_kernels_pass_and_with_faults_do_not(calibrate):
    tested = some_kernels("gru.float32.8.forward", "gru.float32.8.linear", "gru.float32.8.chunked")
    found = calibrate(tested, {"gru.float32.8.linear": "wrong"}, "emulator", [], case_limit=120)
    table = json.loads(found.path.read_text())["kernels"]
    assert set(table["wrong"]) == {"gru.float32.8.linear"}
    assert set(table["right"]) == {*tested} - {*table["wrong"]}

"""`bppsa doctor`: what it finds here, and how it judges what a machine may tell."""

import os
import struct
import sys
import time
from datetime import date

import pytest

from bppsa_lightning import _cores, _library
from bppsa_lightning.cli import doctor
from bppsa_lightning.cli.doctor import asked, calibration, cuda, elf, library, load, threads
from bppsa_lightning.cli.doctor.asked import Told
from bppsa_lightning.cli.doctor.finding import NOTE, OK, PROBLEM, Finding, as_text

TORCH = {"version": "2.14.1", "path": "/t", "threads": 2, "cuda": None, "hip": None}
TORCH |= {"devices": [], "no_devices": None}


@pytest.mark.slow
def test_here_nothing_is_wrong(command_json, command):
    status, found = command_json("doctor")
    problems = [f for f in found["findings"] if f["level"] == "problem"]
    assert not problems and status == 0 and found["ok"]
    areas = [f["area"] for f in found["findings"]]
    assert list(dict.fromkeys(areas)) == [
        *("versions", "library", "cuda", "threads", "load", "calibration"),
    ]
    assert found["facts"]["facts"]["library"]["kernels"] == _library.cpu_kernels()
    assert doctor.HELP in command("--help")[1].replace("\n" + " " * 14, " ")


# --- the process that is asked -------------------------------------------------------------------


@pytest.fixture
def probe(monkeypatch, tmp_path):
    """Puts a script in the probe's place, which writes lines to the descriptor `out`."""

    def put(source):
        path = tmp_path / "probe.py"
        path.write_text(f"import os, sys, time\nout = int(sys.argv[1])\n{source}\n")
        monkeypatch.setattr(asked, "_PROBE", path)

    return put


WELL = (
    """os.write(out, b'{"begins": "torch"}\\n{"stage": "torch", "facts": {"version": "3"}}\\n')"""
)


def test_one_that_comes_to_its_end(probe):
    probe(WELL + "\nprint('talks', file=sys.stderr); print('more')")
    assert asked.ask() == Told({"torch": {"version": "3"}}, said="talks")


@pytest.mark.parametrize(
    "source, ended",
    [
        ("os.kill(os.getpid(), 7)", "it was killed by SIGBUS"),
        ("os._exit(3)", "it ended with status 3"),
        ("time.sleep(60)", "it did not come to its end in 1 s"),
    ],
)
def test_one_that_does_not(probe, source, ended):
    begins = """os.write(out, b'{"begins": "package"}\\n{"stage": "pack')"""
    probe(f"{WELL}\n{begins}\n{source}")
    start = time.monotonic()
    told = asked.ask(1.0)
    assert time.monotonic() - start < 30
    assert (told.at, told.ended) == ("package", ended)
    assert told.facts == {"torch": {"version": "3"}}


def test_it_finds_modules_where_this_process_does(probe, monkeypatch, tmp_path):
    (tmp_path / "only_here.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    probe("import only_here")
    assert asked.ask().ended is None


# --- judgements ----------------------------------------------------------------------------------


def error(message, kind="ImportError", missing=None):
    facts = {"torch": TORCH}
    return Told(facts, {"package": {"type": kind, "message": message, "missing": missing}})


@pytest.mark.parametrize(
    "told, what, remedy",
    [
        (error("undefined symbol: aoti_x"), "another torch than this one (it lacks aoti_x)", ""),
        (error("x: version `GLIBC_2.99' not found"), "(GLIBC_2.99 is missing)", ""),
        (error("No", missing="tqdm"), "tqdm is missing", "pip install tqdm"),
        (error("", missing="sklearn.base"), "sklearn.base is missing", "install scikit-learn"),
        (error("boom", "ValueError"), "does not import: ValueError: boom", ""),
        (Told({"torch": TORCH}, at="package", ended="it was killed by SIGILL"), "processor", ""),
        (Told({"torch": TORCH}, at="package", ended="it was killed by SIGSEGV"), "SIGSEGV", ""),
    ],
)
def test_a_package_that_does_not_import(told, what, remedy):
    (found,) = library.findings(told)
    assert found.level == PROBLEM and what in found.what
    assert (remedy or "make build") in found.remedy


def answers(**facts):
    whole = {"path": "/x/_C.so", "kernels": "x86_64_v2", "error": 1e-7} | facts
    return Told({"torch": TORCH, "package": {}, "library": whole})


def test_a_library_that_computes(monkeypatch):
    monkeypatch.setattr(library, "_best", lambda: "x86_64_v4")
    monkeypatch.delenv("BPPSA_CPU_CAPABILITY", raising=False)
    path, level, right = library.findings(answers(kernels="x86_64_v4"))
    assert {path.level, level.level, right.level} == {OK}
    _, level, _ = library.findings(answers())
    assert level.level == NOTE and "slower than x86_64_v4" in level.what
    monkeypatch.setenv("BPPSA_CPU_CAPABILITY", "x86-64-v2")
    assert "unset BPPSA_CPU_CAPABILITY" in library.findings(answers())[1].remedy
    assert library.findings(answers(error=0.3))[2].level == PROBLEM
    told = answers()
    told.said = "bppsa_lightning: BPPSA_CPU_CAPABILITY: found 'v9', wanted …; ignored"
    assert "found 'v9'" in library.findings(told)[1].what


def test_a_library_for_another_level():
    message = "bppsa_lightning was built for x86_64_v4, which this machine does not run: build it"
    told = Told({"torch": TORCH, "package": {}})
    told.errors["library"] = {"type": "RuntimeError", "message": message, "missing": None}
    (found,) = library.findings(told)
    assert found.level == PROBLEM and "was built for x86_64_v4, not for this" in found.what


def test_the_best_level_is_what_the_library_chooses():
    if "BPPSA_CPU_CAPABILITY" not in os.environ:
        assert library._best() in (None, _library.cpu_kernels())


def test_files_of_libraries(tmp_path):
    whole = library.file().read_bytes()
    path = tmp_path / "_C.so"
    path.write_bytes(whole)
    assert elf.damage(path) is None
    path.write_bytes(whole[:-1])
    assert "cut off" in elf.damage(path)
    path.write_bytes(whole[:18] + struct.pack("<H", 183 if whole[18] == 62 else 62) + whole[20:])
    assert "and this machine is" in elf.damage(path)
    path.write_bytes(b"<html>404</html>" * 9)
    assert "no library of Linux" in elf.damage(path)
    path.write_bytes(b"")
    assert elf.damage(path) == "it is empty"
    path.unlink()
    assert "cannot be read" in elf.damage(path)


def test_gpus():
    def of(torch=None, **device):
        facts = {"torch": TORCH | (torch or {}), "library": {}}
        device = {"name": "H1", "missing": None, "table": None, "wrong": []} | device
        told = Told(facts | {"cuda": {"devices": [device]}})
        (found,) = cuda.findings(told)
        return found

    gpu = {"cuda": "13.0", "devices": ["H1"]}
    assert of().level == OK and "without CUDA" in of().what
    assert "no driver" in of({"cuda": "13.0", "no_devices": "no driver"}).what
    assert "ROCm" in of({"hip": "7"}).what
    assert of(gpu, missing="built without: do it").remedy == "do it"
    assert of(gpu, missing="x").level == PROBLEM
    assert of(gpu).level == NOTE and "calibrate --device cuda" in of(gpu).remedy
    assert of(gpu, table="measured", wrong=["a"]).level == NOTE
    assert of(gpu, table="measured").level == OK


@pytest.mark.parametrize("used, level", [(1, NOTE), (2, OK), (8, PROBLEM)])
def test_threads_beside_cores(monkeypatch, used, level):
    monkeypatch.setattr(_cores, "allowed", lambda: 2)
    monkeypatch.setattr(_cores, "quota", lambda: 1.5)
    cores, found = threads.findings(Told({"torch": TORCH | {"threads": used}}))
    assert "its control group's limit is 1.5" in cores.what
    assert found.level == level
    assert level == OK or "OMP_NUM_THREADS=2" in found.remedy


def test_load_is_what_others_use(monkeypatch, tmp_path):
    stat = tmp_path / "stat"
    monkeypatch.setattr(_cores, "_STAT", stat)
    monkeypatch.setattr(_cores, "affinity", lambda: (0, 2))
    stat.write_text("cpu 0\ncpu0 100 0 0 100 0 0 0 0 0 0\ncpu1 9 9 9 9\ncpu2 0 0 0 0 0 0 0 0 0 0\n")

    def later(_):
        stat.write_text("cpu0 190 0 0 110 0 0 0 0 0 0\ncpu2 0 10 0 50 40 0 0 0 0 0\n")

    monkeypatch.setattr(_cores.time, "sleep", later)
    assert _cores.busy_cores() == 1.0  # 0.9 of one, 0.1 of the other
    assert load.findings(1.0)[0].level == NOTE and load.findings(0.1)[0].level == OK
    stat.unlink()
    assert _cores.busy_cores() is None and load.findings(None)[0].level == OK


def test_tables():
    this = {"name": "CPU", "cores": 2}
    facts = {
        "machine": this, "path": "/c.json", "own": False, "unfit": [], "asked": None, "used": this,
        "measured": {"date": date.today().isoformat()}, "threads": [2], "far": None,
    }  # fmt: skip

    def of(**changes):
        return calibration.findings(
            Told(
                {
                    "torch": TORCH,
                    "package": {},
                    "library": {},
                    "calibration": facts | changes,
                }
            )
        )

    assert [f.what for f in of()] == [
        f"the table of CPU, 2 cores, measured {date.today()} (today); this machine is like it"
    ]
    assert of(far="…")[0].level == NOTE and "bppsa calibrate" in of(far="…")[0].remedy
    assert "BPPSA_TABLE=x" in of(asked="x")[0].what
    assert "(31 days ago)" in of(measured={"date": _days_ago(31)}, own=True)[0].what
    assert [f.level for f in of(own=True, threads=[1, 4])] == [OK, NOTE]
    assert [f.level for f in of(unfit=["ignores the calibration"])] == [OK, PROBLEM]


def _days_ago(days):
    return date.fromordinal(date.today().toordinal() - days).isoformat()


def test_a_problem_has_a_remedy():
    with pytest.raises(ValueError, match="remedy: found none for the problem 'it is broken'"):
        Finding("library", "it is broken", PROBLEM)
    findings = [Finding("a", "x"), Finding("a", "y", PROBLEM, "z"), Finding("b", "w", NOTE)]
    assert as_text(findings).splitlines() == [
        "a",
        "  ok       x",
        "  problem  y",
        "           -> z",
        "b",
        "  note     w",
        "Not well: 1 problem, 1 note.",
    ]

"""A day with a GPU, without one: parts that fail, hang and are killed; what is left of them."""

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from experiments import recording
from experiments.benchmarks.gpu_day import __main__ as command_line
from experiments.benchmarks.gpu_day import bars, processes, results
from experiments.benchmarks.gpu_day.day import DONE, FAILED, INTERRUPTED, OUT_OF_TIME, Day
from experiments.benchmarks.gpu_day.parts import PARTS, ROOT, Part

# What the commands of these parts find in their environment.
PRELUDE = """
import json, os, pathlib, subprocess, sys, time
records = pathlib.Path(os.environ["BPPSA_RECORDS"])
def record(name, results):
    beside = records / (name + ".tmp")
    beside.write_text(json.dumps(results))
    os.replace(beside, records / (name + ".json"))
"""


@pytest.fixture(autouse=True)
def polls_often(monkeypatch):
    monkeypatch.setattr(processes, "POLL", 0.02)


def part(name, code, seconds=10.0, **more):
    command = (sys.executable, "-I", "-S", "-c", PRELUDE + code)
    return Part(name, f"the part {name}", command, seconds, **{"needs": None, **more})


def day(folder, *parts):
    return Day(parts, folder, lambda day: results.publish(day, folder))


def ended(folder):
    return {name: entry["state"] for name, entry in json.loads(state(folder)).items()}


def state(folder):
    return (folder / "state.json").read_text()


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.01)


def test_what_fails_or_hangs_stops_no_other(tmp_path):
    away = "own = subprocess.Popen(['sleep', '60'], start_new_session=True); print(own.pid)\n"
    parts = (
        part("good", "record('a', {'rows': [1]}); print('well')"),
        part("fails", "print('no such kernel'); sys.exit(3)"),
        part("hangs", away + "sys.stdout.flush(); time.sleep(60)", seconds=0.4),
        Part("missing", "no such program", ("/no/such/program",), 1, needs=None),
        part("last", "print(os.environ['MORE'])", settings={"MORE": "and more"}),
    )
    start = time.monotonic()
    day(tmp_path, *parts).run(minutes=1)
    assert time.monotonic() - start < 5
    assert ended(tmp_path) == {
        "good": DONE, "fails": FAILED, "hangs": OUT_OF_TIME, "missing": FAILED, "last": DONE
    }  # fmt: skip
    assert not alive(int((tmp_path / "logs" / "hangs.log").read_text()))
    told = (tmp_path / "summary.md").read_text()
    assert "2 of 5 parts done" in told and "failed (exit status 3)" in told
    assert "no such kernel" in told and "and more" not in told
    logs = (tmp_path / "logs.txt").read_text()
    assert "well" in logs and "and more" in logs and "/no/such/program" in logs
    found = json.loads((tmp_path / "day.json").read_text())
    assert found["files"] == {"records/a.json": {"rows": [1]}}
    assert found["parts"]["good"]["wrote"] == ["records/a.json"]


def test_a_part_starts_only_where_its_whole_time_is_left(tmp_path, capsys):
    parts = (part("long", "", seconds=90), part("short", "", seconds=2), part("more", "", 2))
    day(tmp_path, *parts).run(minutes=0.2)
    assert ended(tmp_path) == {"short": DONE, "more": DONE}
    assert "long waits: it may take 90 s" in capsys.readouterr().out
    start = time.monotonic()
    day(tmp_path, *parts).run(minutes=0)
    assert time.monotonic() - start < 1 and "| waits |" in (tmp_path / "summary.md").read_text()


COUNTED = "print('x', end='', file=(records.parent / 'count').open('a'))"


def test_what_is_done_is_not_done_again_unless_asked(tmp_path):
    parts = part("once", COUNTED), part("fails", COUNTED + "; sys.exit(1)")

    def count(**asked):
        day(tmp_path, *parts).run(minutes=1, **asked)
        return len((tmp_path / "count").read_text())

    assert [count(), count()] == [2, 2]
    assert count(again=["fails"]) == 3 and count(only=["once"]) == 3
    assert count(only=["once"], again=["once", "fails"]) == 4


def test_parts_wait_for_the_one_that_they_need(tmp_path):
    made = Path("made")
    build = part("build", "sys.exit(1)", makes=made)
    needy = part("needy", "", needs="build")
    day(tmp_path, build, needy).run(minutes=1)
    assert ended(tmp_path) == {"build": FAILED}
    assert "waits for build" in (tmp_path / "summary.md").read_text()
    build = part("build", COUNTED + "; (records.parent / 'made').touch()", makes=made)
    for _ in range(2):  # what others need is tried again, until it is done
        day(tmp_path, build, needy).run(minutes=1)
        assert ended(tmp_path) == {"build": DONE, "needy": DONE}
    (tmp_path / made).unlink()  # another machine
    day(tmp_path, build, needy).run(minutes=1)
    assert (tmp_path / "count").read_text() == "xx" and (tmp_path / made).exists()


def start_elsewhere(folder, code):
    """A call in a process of its own, whose second part hangs, when that part runs."""
    parts = f"part('first', {COUNTED!r}), part('second', {code!r}, seconds=50)"
    script = f"from test_gpu_day import *\nday(Path({str(folder)!r}), {parts}).run(minutes=1)"
    paths = os.pathsep.join([str(Path(__file__).parent), str(ROOT)])
    started = folder / "started"
    call = subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_until(lambda: started.exists() and started.read_text())
    return call, int(started.read_text())


HANGS = "(records.parent / 'started').write_text(str(os.getpid())); time.sleep(60)"


def test_a_call_that_was_killed_is_gone_on_from(tmp_path):
    call, hanging = start_elsewhere(tmp_path, HANGS)
    with pytest.raises(SystemExit, match="in use by another call"):
        day(tmp_path).run(minutes=1)
    call.kill()
    call.wait()
    assert alive(hanging)
    parts = part("first", COUNTED), part("second", "record('b', {})")
    day(tmp_path, *parts).run(minutes=1)
    assert not alive(hanging)
    assert ended(tmp_path) == {"first": DONE, "second": DONE}
    assert (tmp_path / "count").read_text() == "x"


def test_a_call_that_is_terminated_takes_its_part_along(tmp_path):
    call, hanging = start_elsewhere(tmp_path, HANGS)
    call.send_signal(signal.SIGTERM)
    call.wait(10)
    assert not alive(hanging)
    assert ended(tmp_path) == {"first": DONE, "second": INTERRUPTED}
    assert "interrupted" in (tmp_path / "summary.md").read_text()


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_part_under_which_calls_die_is_given_up(tmp_path, attempts):
    entry = {"state": "running", "attempts": attempts, "limit": 1}
    (tmp_path / "state.json").write_text(json.dumps({"deadly": entry}))
    day(tmp_path, part("deadly", "")).run(minutes=1)
    told = (tmp_path / "summary.md").read_text()
    assert ("given up: interrupted 2 times" in told) == (attempts == 2)
    day(tmp_path, part("deadly", "")).run(minutes=1, again=["deadly"])
    assert ended(tmp_path) == {"deadly": DONE}


def test_results_are_whole_at_any_moment(tmp_path):
    writes = "for i in range(150): record('a', {'rows': [i] * 20000}); time.sleep(0.002)"
    over, seen, failures = threading.Event(), set(), []

    def read():
        while not over.is_set():
            try:
                found = json.loads((tmp_path / "day.json").read_text())
                seen.update(len(f["rows"]) for f in found["files"].values())
                assert (tmp_path / "summary.md").read_text().startswith("# A day with a GPU")
            except FileNotFoundError:
                continue
            except Exception as error:
                failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        day(tmp_path, part("writes", writes)).run(minutes=1)
    finally:
        over.set()
        reader.join()
    assert not failures and seen == {20000}
    folder = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert folder == {"day.json", "logs.txt", "summary.md", "state.json", "lock"}


def test_another_machine_goes_on_from_what_is_left(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    parts = part("done", COUNTED + "; record('a', {'rows': []})"), part("next", "", seconds=50)
    day(here, *parts).run(minutes=0.5)
    results.unpack(here / "day.json", there)
    assert recording.read("a", there / "records") == {"rows": []}
    day(there, *parts).run(minutes=1)
    assert ended(there) == {"done": DONE, "next": DONE} and not (there / "count").exists()


ENVIRONMENT = {"gpu": "NVIDIA H200", "cudnn": 91900, "torch": "2.11.0", "date": "2026-11-20"}


def row(both, backward=9.0, **more):
    times = {"forward": 1.0, "backward": backward, "both": 1 + backward}
    plans = {"linear": {"backward": 2.0}, "c32": {"backward": 1.0}}
    sizes = {"cell": "RNN", "B": 16, "T": 1000, "H": 20, "scanned": True, "algorithm": "c32"}
    ratios = {"both": both, "backward": backward}
    return sizes | {"stock": times, "plans": plans, "best": "c32", "ratio_stock": ratios} | more


def found(log="", table=None, **record):
    records = {"nvidia_h200": {"environment": ENVIRONMENT, **record}} if record else {}
    return bars.Found(log, records, {"a": table} if table else {})


SLOWER = row(0.5, T=10)
BACKWARD = bars.backward_over_stock("RNN", 16, 1000, 20)
PASSED = "....\n4 passed, 1 skipped in 3.21s\n==== 5 passed in 61.00s (0:01:01) ====\n"
CUT = "make: *** [Makefile:170: gpu-test/ops/test_x.py] Error 124\n"
MEMORY = [{"cell": "GRU", "ours": 3, "stock": 2}, {"cell": "RNN", "ours": 1, "stock": 2}]


@pytest.mark.parametrize(
    "bar, found, met, told",
    [
        (bars.tests_pass, found(PASSED), True, "9 passed, 0 failed, 0 error, 1 skipped"),
        (bars.tests_pass, found(PASSED + "1 failed in 0.10s\n"), False, "9 passed, 1 failed"),
        (bars.tests_pass, found(PASSED + CUT), False, "out of time: ops/test_x.py"),
        (bars.tests_pass, found("5 skipped in 0.10s"), False, "5 skipped"),
        (bars.no_errors_found, found("====== ERROR SUMMARY: 0 errors"), True, "0 errors"),
        (
            bars.no_errors_found,
            found("= RACECHECK SUMMARY: 2 hazards displayed"),
            False,
            "2 errors",
        ),
        (bars.no_errors_found, found("killed"), False, "no summary"),
        (bars.no_row_slower("rows"), found(rows=[row(2.0), row(0.97)]), True, "0 of 2 slower"),
        (
            bars.no_row_slower("rows"),
            found(rows=[row(2.0), SLOWER]),
            False,
            "RNN (16, 10, 20) 0.50x",
        ),
        (bars.no_row_slower("rows"), found(rows=[row(2.0)], left_out=7), True, "7 sizes left out"),
        (
            bars.no_row_slower("rows"),
            found(rows=[row(2.0)], rows_failed=[{"fails": "CUDA error"}]),
            False,
            "1 failed, as CUDA error",
        ),
        (bars.no_row_slower("rows"), found(), False, "no rows"),
        (bars.worth_scanning("rows"), found(rows=[row(1.0, scan={"both": 5})]), None, "1 of 1"),
        (BACKWARD, found(rows=[row(2.0, 9.0)]), True, "9.0x as attached"),
        (BACKWARD, found(rows=[row(2.0, 1.1)]), False, "1.1x as attached"),
        (BACKWARD, found(rows=[SLOWER]), False, "no such row"),
        (bars.plans_near_best, found(rows=[row(2.0)]), True, "worst 1.00x"),
        (bars.plans_near_best, found(rows=[row(2.0, algorithm="linear")]), False, "worst 2.00x"),
        (bars.plans_near_best, found(rows=[row(2.0, scanned=False)]), False, "no row is scanned"),
        (bars.trainings_faster, found(rows=[row(0, ratio=1.5)]), True, "RNN T=1000 1.50x"),
        (bars.product_faster, found(ratio={"torch": 0.8}), False, "0.8x"),
        (bars.no_more_memory, found(peak_memory=MEMORY), False, "GRU 1.50 of stock's"),
        (bars.verified, found(table={"kernels": {"right": ["a"], "wrong": {}}}), True, "1 right"),
        (
            bars.verified,
            found(table={"kernels": {"right": ["a"], "wrong": {"gru.linear": "hangs"}}}),
            False,
            "1 right, 1 wrong; gru.linear: hangs",
        ),
        (bars.verified, found(table={"machine": {}}), False, "no table"),
    ],
)
def test_bars(bar, found, met, told):
    verdict = bar(found)
    assert verdict.met is met and told in verdict.found, verdict


def test_the_summary_says_what_was_met_and_missed(tmp_path):
    record = json.dumps({"environment": ENVIRONMENT, "rows": [row(2.0), SLOWER]})
    writes = part(
        "grid", f"record('h200', json.loads({record!r}))",
        bars=(bars.no_row_slower("rows"), BACKWARD, bars.worth_scanning("rows")),
    )  # fmt: skip
    strange = part("strange", "record('odd', {'peak_memory': [{}]})", bars=(bars.no_more_memory,))
    day(tmp_path, writes, strange, part("never", "", seconds=99)).run(minutes=0.5)
    lines = (tmp_path / "summary.md").read_text().splitlines()
    assert "NVIDIA H200" in lines[2] and "cudnn 91900" in lines[2]
    assert lines[4] == "2 of 3 parts done; 1 of 3 bars met."
    missed = next(line for line in lines if "none slower than PyTorch" in line)
    assert "1 of 2 slower" in missed and missed.endswith("| **missed** |")
    assert any("backward of RNN" in line and line.endswith("| met |") for line in lines)
    assert any("KeyError" in line and "**missed**" in line for line in lines)


# --- the real parts -------------------------------------------------------------------------------


def test_the_parts_fit_into_calls():
    names = [part.name for part in PARTS]
    assert len(set(names)) == len(names) and names[0] == "build"
    assert all(part.seconds <= 5 * 60 for part in PARTS)
    sanitizers = [any("sanitize" in word for word in part.command) for part in PARTS]
    assert sanitizers == sorted(sanitizers) and sanitizers.count(True) == 4


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_part_s_command_is_understood(part, tmp_path):
    command = [word.replace("{folder}", str(tmp_path)) for word in part.command]
    if command[0] == "make":
        dry = subprocess.run(
            [*command, "-n", "GPU_AT_HAND=90"], capture_output=True, text=True, env=PLAIN
        )
        assert dry.returncode == 0, dry.stderr
        assert str(tmp_path / "build") in dry.stdout and sys.executable in dry.stdout
        if part.name == "build":
            assert "-DBPPSA_CUDA_ARCHITECTURES=90" in dry.stdout and "=native" in dry.stdout
        return
    assert command[0] == sys.executable
    if command[1] == "-c":
        compile(command[2], part.name, "exec")
        return
    asked = importlib.import_module(command[2]).parser().parse_args(command[3:])
    assert command[1] == "-m" and asked.record


def test_a_build_of_another_machine_is_laid_out_and_nothing_compiled(tmp_path):
    built, folder = tmp_path / "built", tmp_path / "day"
    built.mkdir()
    for name in ("_C.so", "_C_cuda.so"):
        (built / name).write_text(name)
    environment = {**PLAIN, "GPU_LIBRARIES": str(built), "PATH": "/usr/bin:/bin"}
    (build,) = (part for part in PARTS if part.name == "build")
    command = [word.replace("{folder}", str(folder)) for word in build.command]
    done = subprocess.run(
        [*command, "GPU_AT_HAND=90"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0 and "cmake" not in done.stdout, done.stderr
    package = (folder / build.makes).parent
    assert (package / "_C_cuda.so").read_text() == "_C_cuda.so"
    assert (package / "_C.so").exists() and (package / "datasets" / "__init__.py").exists()


PLAIN = {name: value for name, value in os.environ.items() if "MAKE" not in name}


def test_make_gpu_day_is_the_command_line():
    goal = ["make", "-n", "gpu-day", "MINUTES=9", "OUT=there", "DAY=--again grid"]
    dry = subprocess.run(goal, cwd=ROOT, capture_output=True, text=True, check=True, env=PLAIN)
    line = dry.stdout.replace("\\\n", " ").split("experiments.benchmarks.gpu_day")[1]
    asked = command_line.parser().parse_args(line.replace('"', "").split())
    assert (asked.minutes, asked.out, asked.again) == (9, Path("there"), ["grid"])


def test_the_command_line(tmp_path, monkeypatch, capsys):
    parts = (part("good", COUNTED), part("fails", "sys.exit(1)", needs="good"))
    monkeypatch.setattr(command_line, "PARTS", parts)
    folder, out = ["--folder", str(tmp_path / "day")], tmp_path / "out"
    assert command_line.main([*folder, "--out", str(out)]) == 1
    assert sorted(path.name for path in out.iterdir()) == ["day.json", "logs.txt", "summary.md"]
    assert "1 of 2 parts done" in capsys.readouterr().out
    assert command_line.main([*folder, "--only", "good"]) == 0
    assert command_line.main([*folder, "--again"]) == 1
    assert (tmp_path / "day" / "count").read_text() == "x"
    assert json.loads((tmp_path / "day" / "state.json").read_text())["fails"]["attempts"] == 2
    elsewhere = ["--folder", str(tmp_path / "elsewhere"), "--continue", str(out / "day.json")]
    assert command_line.main([*elsewhere, "--minutes", "0", "--only", "good"]) == 0
    assert command_line.main(["--list"]) == 0

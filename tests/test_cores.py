"""How many cores a process may use: affinity, and control groups of both versions."""

import os

import pytest

from bppsa_lightning import _cores
from bppsa_lightning.planner import machine

V2 = "30 23 0:26 / {mount} rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "31 23 0:27 {root} {mount} rw,relatime - cgroup cgroup rw,cpu,cpuacct\n"


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Writes what the system tells of a process's groups."""

    def write(cgroup, mounts, files, root="/"):
        mount = tmp_path / "cgroup"
        for name, text in files.items():
            path = mount / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        (tmp_path / "self").write_text(cgroup)
        (tmp_path / "mountinfo").write_text(mounts.format(mount=mount, root=root))
        monkeypatch.setattr(_cores, "_GROUPS", tmp_path / "self")
        monkeypatch.setattr(_cores, "_MOUNTS", tmp_path / "mountinfo")
        monkeypatch.setattr(_cores, "affinity", lambda: tuple(range(64)))

    return write


@pytest.mark.parametrize(
    "files, quota, allowed",
    [
        ({"a/b/cpu.max": "200000 100000"}, 2.0, 2),
        ({"a/b/cpu.max": "150000 100000"}, 1.5, 2),
        ({"a/b/cpu.max": "10000 100000"}, 0.1, 1),
        ({"a/b/cpu.max": "max 100000"}, None, 64),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "400000 100000"}, 4.0, 4),  # around it
        ({"a/b/cpu.max": "900000 100000", "a/cpu.max": "400000 100000"}, 4.0, 4),
        ({"c/cpu.max": "100000 100000"}, None, 64),  # another group's
        ({"a/b/cpu.max": "12800000 100000"}, 128.0, 64),
        ({"a/b/cpu.max": "nonsense"}, None, 64),
        ({}, None, 64),
    ],
)
def test_limits_of_version_2(groups, files, quota, allowed):
    groups("0::/a/b\n", V2, files)
    assert _cores.quota() == quota
    assert _cores.allowed() == allowed


@pytest.mark.parametrize("root, folder", [("/", "docker/x/"), ("/docker/x", ""), ("/other", "")])
def test_limits_of_version_1(groups, root, folder):
    """A container sees its own group at the mount; without a namespace its path is longer."""
    files = {f"{folder}cpu.cfs_quota_us": "300000", f"{folder}cpu.cfs_period_us": "100000"}
    groups("4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n", V1, files, root)
    assert _cores.quota() == 3.0


def test_no_limit_of_version_1(groups):
    groups("3:cpu:/\n", V1, {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"})
    assert _cores.quota() is None


def test_where_nothing_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(_cores, "_GROUPS", tmp_path / "none")
    assert _cores.quota() is None
    assert _cores.allowed() == len(os.sched_getaffinity(0))


def test_a_machine_is_known_by_the_cores_that_it_gives(groups):
    """So that measurements under a limit are not taken for those of the whole machine."""
    groups("0::/a\n", V2, {"a/cpu.max": "300000 100000"})
    machine.this_cpu.cache_clear()
    try:
        assert machine.this_cpu()["cores"] == 3
    finally:
        machine.this_cpu.cache_clear()


def test_more_threads_than_cores_are_told_of(groups, monkeypatch):
    groups("0::/a\n", V2, {"a/cpu.max": "300000 100000"})
    monkeypatch.setattr(machine.torch, "get_num_threads", lambda: 3)
    assert machine.crowded() is None
    monkeypatch.setattr(machine.torch, "get_num_threads", lambda: 8)
    assert machine.crowded() == (
        "torch uses 8 threads, but this process may use 3 cores (the control group's limit is 3): "
        "they wait for each other. torch.set_num_threads(3), or OMP_NUM_THREADS=3, is faster."
    )


def test_others_are_those_who_work_while_this_process_does_not(monkeypatch, tmp_path):
    clock = {"perf_counter": 100.0, "process_time": 7.0}
    stat = tmp_path / "stat"
    monkeypatch.setattr(_cores, "_STAT", stat)
    monkeypatch.setattr(_cores, "affinity", lambda: (0, 1))
    for name in clock:
        monkeypatch.setattr(_cores.time, name, lambda name=name: clock[name])
    stat.write_text("cpu0 0 0 0 0 0 0 0 0\ncpu1 0 0 0 0 0 0 0 0\n")
    others = _cores.OtherLoad()
    assert others.cores() is None  # nothing has passed
    # Ten seconds of two cores, of which both were busy for nine; half of that was this process.
    stat.write_text("cpu0 900 0 0 100 0 0 0 0\ncpu1 500 0 0 100 0 0 0 400\n")
    clock.update(perf_counter=110.0, process_time=16.0)
    assert others.cores() == 0.9
    stat.unlink()
    assert others.cores() is None

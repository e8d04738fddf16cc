"""How many cores this process may use, by its affinity and its control groups' limits; and how
busy others keep them.

Only the standard library is imported here.
"""

import math
import os
import time
from pathlib import Path, PurePosixPath

_GROUPS = Path("/proc/self/cgroup")
_MOUNTS = Path("/proc/self/mountinfo")
_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # the columns "idle" and "iowait"

BUSY = 0.3  # cores; what a machine at rest does is less


def allowed() -> int:
    """Cores that threads of this process can keep busy at the same time; part of one is one."""
    limit = quota()
    cores = len(affinity())
    return cores if limit is None else max(1, min(cores, math.ceil(limit)))


def affinity() -> tuple[int, ...]:
    """The numbers of the cores that the system may put this process on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def quota() -> float | None:
    """The least of its control groups' limits, in cores (containers have one); None without."""
    limits = [limit for folder in _folders() if (limit := _limit(folder)) is not None]
    return min(limits, default=None)


def _limit(folder: Path) -> float | None:
    """Of one group, by the file of cgroup v2 or those of v1."""
    try:
        if (file := folder / "cpu.max").exists():
            most, period = file.read_text().split()
        else:
            most = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        cores = float(most) / float(period)
    except (OSError, ValueError, ZeroDivisionError):  # no limit; "max"
        return None
    return cores if cores > 0 else None  # -1 is none


def _folders() -> list[Path]:
    """Of the groups that limit this process, with all groups around them."""
    try:
        groups = [line.split(":", 2) for line in _GROUPS.read_text().splitlines()]
        mounts = _mounted(_MOUNTS.read_text())
    except (OSError, ValueError):
        return []
    found = []
    for number, controllers, path in groups:
        kind = "" if number == "0" else "cpu"
        if kind and kind not in controllers.split(","):
            continue
        for root, folder in mounts.get(kind, ()):
            found += _upwards(folder, _below(root, path))
    return found


def _mounted(text: str) -> dict[str, list[tuple[str, Path]]]:
    """Where the groups of v2 ("") and those of v1 with CPUs ("cpu") are: the group, the folder."""
    found: dict[str, list[tuple[str, Path]]] = {}
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2" or (kind == "cgroup" and "cpu" in options.split(",")):
            root, folder = before.split(" ")[3:5]
            found.setdefault("" if kind == "cgroup2" else "cpu", []).append((root, Path(folder)))
    return found


def _below(root: str, path: str) -> PurePosixPath:
    """A group's path in the folder where `root` is mounted; a container sees only its own."""
    try:
        return PurePosixPath(path).relative_to(root)
    except ValueError:
        return PurePosixPath()


def _upwards(folder: Path, path: PurePosixPath) -> list[Path]:
    return (
        [folder / path, *(folder / parent for parent in path.parents)] if path.parts else [folder]
    )


def busy_cores(seconds: float = 0.5) -> float | None:
    """How many of the cores that this process may use are kept busy by others meanwhile.

    None where the system does not tell.
    """
    before = _idle_and_all()
    time.sleep(seconds)
    busy = _busy_since(before)
    return None if busy is None else round(busy, 2)


class OtherLoad:
    """How many of this process's cores others have kept busy since it was made."""

    def __init__(self) -> None:
        self._began, self._own = time.perf_counter(), time.process_time()
        self._ticks = _idle_and_all()

    def cores(self) -> float | None:
        """The mean; None if the system does not tell, or after less than a fifth of a second."""
        seconds, busy = time.perf_counter() - self._began, _busy_since(self._ticks)
        if busy is None or seconds < 0.2:
            return None
        own = (time.process_time() - self._own) / seconds
        return round(max(0.0, busy - own), 2)


def _busy_since(before: tuple[int, int] | None) -> float | None:
    """How many of the cores were busy since `_idle_and_all` gave this, whoever it was."""
    after = _idle_and_all()
    if before is None or after is None or after[1] <= before[1]:
        return None
    idle = (after[0] - before[0]) / (after[1] - before[1])
    return max(0.0, 1 - idle) * len(affinity())


def _idle_and_all() -> tuple[int, int] | None:
    """Ticks that the cores of this process were idle, and ticks of all."""
    wanted = {f"cpu{core}" for core in affinity()}
    idle = whole = 0
    try:
        for line in _STAT.read_text().splitlines():
            name, *ticks = line.split()
            if name in wanted:
                counts = [int(tick) for tick in ticks[:8]]  # guests are counted in the first ones
                idle += sum(counts[column] for column in _IDLE)
                whole += sum(counts)
    except (OSError, ValueError, IndexError):
        return None
    return idle, whole

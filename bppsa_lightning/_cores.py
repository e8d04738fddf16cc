"""How many cores this process may use: by its affinity, and by the limits of its control groups.

Only the standard library is imported here.
"""

import math
import os
from pathlib import Path, PurePosixPath

_GROUPS = Path("/proc/self/cgroup")
_MOUNTS = Path("/proc/self/mountinfo")


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

"""Which machine this is, and which table of measurements stands for it."""

import math
import os
import platform
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bppsa_lightning import _cores, _library
from bppsa_lightning.planner import tables
from bppsa_lightning.planner.request import INFERENCE, MODES
from bppsa_lightning.planner.tables import form

TABLE = "BPPSA_TABLE"  # environment variable: the name of the shipped table to take
# What stands for a machine that is like none of those measured.
DEFAULT = "intel_xeon_2"
# The table that has what the nearest one was measured without: inference, and bfloat16.
FULL = "amd_epyc_2"
# Tables of a machine with so many times more or fewer cores are far.
FAR = 2.0

# How often the tables were read anew: who keeps a plan without asking keeps it for one of these.
generation = 0

# Calls that read a table once and keep what they made of it.
_caches: list[Callable[[], None]] = []


def keeps(function: Any) -> Any:
    """Decorates a cached function of what the tables say: `forget` empties its cache."""
    _caches.append(function.cache_clear)
    return function


def keeps_in(cache: dict[Any, Any]) -> None:
    """`forget` empties this cache, too."""
    _caches.append(cache.clear)


def forget() -> None:
    """Reads the tables again: after a calibration, or where the folder of the user's changed."""
    global generation
    generation += 1
    for clear in _caches:
        clear()


@keeps
@lru_cache(maxsize=1)
def cpu() -> Mapping[str, Any]:
    """The table of this CPU: the user's own, or the nearest of those shipped, sections missing in
    the first taken from the second.

    Raises:
        ValueError: the environment variable BPPSA_TABLE names none.
    """
    this, asked = this_cpu(), os.environ.get(TABLE)
    if asked is not None:
        if asked not in shipped_cpus():
            raise ValueError(f"{TABLE}: found {asked!r}, wanted one of {', '.join(shipped_cpus())}")
        return tables.shipped()[asked]
    return tables.shipped()[nearest(this)] | own_cpu()


def ratios(section: str) -> list[dict[str, Any]]:
    """The section "inference" or "bfloat16" of this CPU's table, or, where it has none, of another
    one's."""
    found: list[dict[str, Any]] = cpu().get(section) or tables.shipped()[FULL][section]
    return found


def own_cpu() -> dict[str, Any]:
    """The user's table of this CPU; empty if there is none, or, with a warning, if it is unfit."""
    this = this_cpu()
    near = tables.shipped()[nearest(this)]
    own = tables.read_user(this) or {}
    damage = _damage(near | own, near)
    if damage is None:
        return own
    tables.warn_of(tables.user_path(this), f"it is damaged ({damage})")
    return {}


def _damage(table: Mapping[str, Any], like: Mapping[str, Any]) -> str | None:
    """What makes a table of a CPU unusable; None if nothing does."""
    full = tables.shipped()[FULL]
    like = {name: full[name] for name in ("inference", "bfloat16") if name in table} | dict(like)
    if why := form.difference(table, {**like, "machine": {}, "measured": {}}):
        return why
    packed = table["packed"]["even"], table["packed"]["padded"]
    for part in (*table["hand_over"], *packed):
        for cell, rows in part["least_T"].items():
            if [len(row) for row in rows] != [len(part["B"])] * len(part["H"]):
                return f"the sizes of {cell}"
    for part in table["steps"]:
        for cell, rows in part["seconds"].items():
            if [len(row) for row in rows] != [len(part["samples"])] * len(part["H"]):
                return f"the seconds of steps of {cell}"
        if min(len(part["samples"]), len(part["H"])) < 2 or "LSTM" not in part["seconds"]:
            return "the sizes of steps"
    for section, modes in (("inference", (INFERENCE,)), ("bfloat16", MODES)):
        for part, mode in product(table.get(section, ()), modes):
            of_T = [[len(of_B) for of_B in of_T] for of_T in part[mode]]
            if of_T != [[len(part["H"])] * len(part["B"])] * len(part["T"]):
                return f"the sizes of {section}'s {mode}"
    return None


@lru_cache(maxsize=1)
def this_cpu() -> Mapping[str, object]:
    """What a table must name to hold here: the processor, its cores, the kernels, the versions."""
    return {
        "device": "cpu",
        "name": _cpu_name(),
        "cores": _cores.allowed(),
        "kernels": _library.cpu_kernels(),
        "torch": torch.__version__.split("+")[0],
        "bppsa_lightning": _library.version(),
    }


def nearest(machine: Mapping[str, object]) -> str:
    """The name of the shipped table of the CPU that is most like `machine`."""

    def likeness(name: str) -> tuple[bool, bool, float, bool]:
        other = cpus[name]
        same = other["name"] == machine["name"]
        kernels = other["kernels"] == machine["kernels"]
        return same, kernels, -_cores_apart(machine, other), name == DEFAULT

    cpus = shipped_cpus()
    return max(cpus, key=likeness)


def shipped_cpus() -> dict[str, Mapping[str, Any]]:
    """The machines of the shipped tables of CPUs, by the tables' names."""
    machines = {name: table["machine"] for name, table in tables.shipped().items()}
    return {name: machine for name, machine in machines.items() if machine["device"] == "cpu"}


def suggestion() -> str | None:
    """One line for a user whose machine is far from every table; None where one is near, or was
    chosen by name."""
    if TABLE in os.environ:
        return None
    this, table = this_cpu(), cpu()["machine"]
    known = table["name"] == this["name"] and table["kernels"] == this["kernels"]
    if known and _cores_apart(this, table) <= math.log2(FAR):
        return None
    return (
        f"Plans are those measured on {in_words(table, this)}; this machine is "
        f"{in_words(this, table)}. bl.calibrate() measures it in two to three minutes."
    )


def in_words(one: Mapping[str, Any], beside: Mapping[str, Any]) -> str:
    """A machine beside another one, for people: "AMD EPYC, 2 cores (x86_64_v3 kernels)"."""
    differs = one["name"] == beside["name"] and one["kernels"] != beside["kernels"]
    kernels = f" ({one['kernels']} kernels)" if differs else ""
    return f"{one['name']}, {one['cores']} cores{kernels}"


def crowded() -> str | None:
    """One line for a user whose threads are more than the cores that they may use; else None."""
    threads, cores = torch.get_num_threads(), _cores.allowed()
    if threads <= cores:
        return None
    limit = _cores.quota()
    why = (
        f"the control group's limit is {limit:g}"
        if limit is not None and cores < len(_cores.affinity())
        else "its affinity"
    )
    return (
        f"torch uses {threads} threads, but this process may use {cores} "
        f"core{'s' * (cores != 1)} ({why}): they wait for each other. "
        f"torch.set_num_threads({cores}), or OMP_NUM_THREADS={cores}, is faster."
    )


def _cores_apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    return abs(math.log2(one["cores"] / other["cores"]))


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())

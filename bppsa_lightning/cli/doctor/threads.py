"""Does torch use as many threads as this process may use cores?"""

from __future__ import annotations

import os

from bppsa_lightning import _cores
from bppsa_lightning.cli.doctor.asked import Told
from bppsa_lightning.cli.doctor.finding import NOTE, PROBLEM, Finding

AREA = "threads"
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "OMP_PROC_BIND")


def findings(told: Told) -> list[Finding]:
    """The cores, then torch's threads beside them."""
    cores = _cores.allowed()
    found = [Finding(AREA, _cores_in_words(cores))]
    if "threads" in (torch := told.facts.get("torch", {})):
        found.append(_threads(torch["threads"], cores))
    return found


def _cores_in_words(cores: int) -> str:
    limits = []
    if (here := len(_cores.affinity())) < (os.cpu_count() or here):
        limits.append(f"its affinity has {here} of {os.cpu_count()}")
    if (quota := _cores.quota()) is not None:
        limits.append(f"its control group's limit is {quota:g}")
    what = f"this process may use {_counted(cores, 'core')}"
    return f"{what} ({'; '.join(limits)})" if limits else what


def _threads(threads: int, cores: int) -> Finding:
    asked = ", ".join(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ)
    what = f"torch uses {_counted(threads, 'thread')}{f' ({asked})' if asked else ''}"
    set_it = f"set OMP_NUM_THREADS={cores}, or call torch.set_num_threads({cores})"
    if threads > cores:
        return Finding(AREA, f"{what}: more than cores, they wait for each other", PROBLEM, set_it)
    if threads < cores:
        return Finding(AREA, f"{what}: fewer than cores", NOTE, f"if that is not meant: {set_it}")
    return Finding(AREA, what)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"

"""Is the compiled library there, does it load, is it right, and is it made for this machine?"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bppsa_lightning.cli.doctor import elf, versions
from bppsa_lightning.cli.doctor.asked import Told
from bppsa_lightning.cli.doctor.finding import NOTE, PROBLEM, Finding

AREA = "library"
# The largest relative difference of a small float32 layer's gradients that is rounding.
ROUNDING = 1e-4
# Of each level the flags of /proc/cpuinfo, as csrc/cpu/levels/choose.cpp asks for them.
_V3 = {"avx2", "fma", "bmi1", "bmi2", "f16c", "abm", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


def findings(told: Told) -> list[Finding]:
    """The library, or why the package does not import."""
    if not (torch := told.facts.get("torch")) or versions.older(torch["version"], versions.TORCH):
        return []  # nothing is known before torch is right
    if "package" not in told.facts:
        return [_no_package(told)]
    facts = told.facts.get("library")
    if facts is None:
        return [_no_answer(told)]
    return [
        Finding(AREA, f"operators from {facts['path']}"),
        _level(facts["kernels"], told.said),
        _right(facts["error"]),
    ]


def again() -> str:
    """How this installation's library is built again."""
    source = _source()
    how = (
        f"`make build` in {source}"
        if source
        else f"`{versions.pip()} install --force-reinstall --no-deps .` in the project's folder"
    )
    if compiler() is None:
        return f"install a C++ compiler (on Debian and Ubuntu: apt-get install g++), then {how}"
    return how


def compiler() -> str | None:
    """The path of the C++ compiler that a build would take."""
    return shutil.which(os.environ.get("CXX") or "g++") or shutil.which("c++")


def folders() -> Sequence[str]:
    """The package's; an editable install has several."""
    return tuple(sys.modules["bppsa_lightning"].__path__)


def file() -> Path | None:
    """The library's, where there is one."""
    paths = (Path(folder, "_C.so") for folder in folders())
    return next((path for path in paths if path.is_file() or path.is_symlink()), None)


def _source() -> Path | None:
    """The project's folder, where the package is in it."""
    parents = (Path(folder).parent for folder in folders())
    return next((parent for parent in parents if (parent / "csrc").is_dir()), None)


def _no_package(told: Told) -> Finding:
    error = told.errors.get("package")
    if error is None and told.at == "package":
        return _crash(told)
    if error is None:
        return Finding(AREA, f"nothing was found out: {told.ended}", PROBLEM, again())
    if error["type"] == "PackageNotFoundError":
        what = f"the package is in {folders()[0]}, but nobody has installed it there"
        return Finding(AREA, what, PROBLEM, again())
    if error["missing"] and not error["missing"].startswith("bppsa_lightning"):
        what = f"the package does not import: {error['missing']} is missing"
        return Finding(AREA, what, PROBLEM, versions.install(error["missing"]))
    return Finding(AREA, *_unloadable(error))


def _unloadable(error: dict[str, Any]) -> tuple[str, str, str]:
    """What is wrong with the library, how bad it is, what to do: from the import's error."""
    path, message = file(), error["message"]
    if path is None and "_C was not found" in message:
        missing = "the compiled library _C.so is missing"
        if compiler() is None:
            missing += ", and no C++ compiler was found to build it"
        return missing, PROBLEM, again()
    if path is not None and (damage := elf.damage(path)):
        return f"{path} is damaged: {damage}", PROBLEM, again()
    if symbol := re.search(r"undefined symbol: (\S+)", message):
        what = f"{path} was built for another torch than this one (it lacks {symbol[1]})"
        return what, PROBLEM, again()
    if newer := re.search(r"version `(GLIBC\S*)' not found", message):
        what = f"{path} was built on a newer Linux than this one ({newer[1]} is missing)"
        return what, PROBLEM, again()
    what = f"the package does not import: {error['type']}: {message}"
    return what, PROBLEM, again()


def _crash(told: Told) -> Finding:
    path = file()
    damage = path and elf.damage(path)
    if damage:
        what = f"{path} is damaged: {damage}"
    elif "SIGILL" in (told.ended or ""):
        what = f"{path} was built for another processor ({told.ended})"
    else:
        what = f"the process that imports the package ends: {told.ended}. {told.said}".rstrip(". ")
    return Finding(AREA, what, PROBLEM, again())


def _no_answer(told: Told) -> Finding:
    error = told.errors.get("library")
    if error is None:
        what = f"the library loads, but does not compute: {told.ended}"
    elif "which this machine does not run" in error["message"]:
        built = re.search(r"was built for (\S+?),", error["message"])
        what = f"{file()} was built for {built[1] if built else 'another processor'}, not for this"
    else:
        what = f"the library loads, but fails: {error['type']}: {error['message']}"
    return Finding(AREA, what, PROBLEM, again())


def _level(kernels: str, said: str) -> Finding:
    what = f"instruction set {kernels}"
    if refused := re.search(r"BPPSA_CPU_CAPABILITY: (.+)", said):
        remedy = "unset BPPSA_CPU_CAPABILITY, or set it to x86-64-v2, x86-64-v3 or x86-64-v4"
        return Finding(AREA, f"{what}; BPPSA_CPU_CAPABILITY: {refused[1]}", NOTE, remedy)
    best = _best()
    if best is None or kernels == best:
        return Finding(AREA, f"{what}, the best that this machine runs" if best else what)
    if asked := os.environ.get("BPPSA_CPU_CAPABILITY"):
        remedy = f"unset BPPSA_CPU_CAPABILITY (it is {asked}); this machine runs {best}"
    else:
        remedy = f"this machine runs {best}: {again()}"
    return Finding(AREA, f"{what}, which is slower than {best}", NOTE, remedy)


def _best() -> str | None:
    """The highest level that this machine runs; None where there are none."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return None
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    if not flags:
        return None
    return "x86_64_v4" if flags >= _V4 else "x86_64_v3" if flags >= _V3 else "x86_64_v2"


def _right(error: float) -> Finding:
    if error <= ROUNDING:
        return Finding(AREA, f"gradients of a small GRU are PyTorch's (error {error:.0e})")
    what = f"gradients of a small GRU are not PyTorch's: they differ by {error:.0e}"
    return Finding(AREA, what, PROBLEM, again())

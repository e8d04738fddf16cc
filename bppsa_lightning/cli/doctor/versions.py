"""Are Python, torch and Lightning there, and new enough?"""

from __future__ import annotations

import platform
import re
import sys
from typing import Any

from bppsa_lightning.cli.doctor.asked import Told
from bppsa_lightning.cli.doctor.finding import PROBLEM, Finding

AREA = "versions"
# The oldest that pyproject.toml admits.
PYTHON, TORCH, LIGHTNING = (3, 10), (2, 11), (2, 6)
# Where an installer finds a module that has another name there.
DISTRIBUTIONS = {"sklearn": "scikit-learn", "yaml": "pyyaml"}


def findings(told: Told) -> list[Finding]:
    """Python, torch, Lightning, and the package itself."""
    found = [_python(), _torch(told)]
    if found[-1].level != PROBLEM:
        found += _lightning(told)
    if package := told.facts.get("package"):
        found.append(Finding(AREA, f"bppsa_lightning {package['version']} ({package['path']})"))
    return found


def install(module: str) -> str:
    """The remedy for a module that is missing."""
    package = module.partition(".")[0]
    return f"{pip()} install {DISTRIBUTIONS.get(package, package)}"


def pip() -> str:
    """The pip of this Python."""
    return f"{sys.executable or 'python'} -m pip"


def older(version: str, wanted: tuple[int, int]) -> bool:
    """Whether "2.10.1+cpu" comes before (2, 11)."""
    numbers = re.findall(r"\d+", version)[:2]
    return tuple(map(int, numbers)) < wanted


def _python() -> Finding:
    this = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < PYTHON:
        return Finding(AREA, f"{this} is too old", PROBLEM, "install Python 3.10 or newer")
    if platform.system() != "Linux":
        return Finding(
            AREA,
            f"{this}: bppsa_lightning is built and tested on Linux alone",
            PROBLEM,
            "use Linux; on Windows, WSL 2",
        )
    return Finding(AREA, this)


def _torch(told: Told) -> Finding:
    wanted = f"{TORCH[0]}.{TORCH[1]}"
    upgrade = f'{pip()} install --upgrade "torch>={wanted}"'
    if torch := told.facts.get("torch"):
        named = f"torch {torch['version']}"
        if older(torch["version"], TORCH):
            what = f"{named} is too old: {wanted} or newer is needed ({torch['path']})"
            return Finding(AREA, what, PROBLEM, upgrade)
        return Finding(AREA, f"{named} ({torch['path']})")
    error = told.errors.get("torch")
    if error and error["missing"] == "torch":
        return Finding(AREA, "torch is not installed", PROBLEM, upgrade)
    if error and error["missing"]:
        what = f"torch does not import: {error['missing']} is missing"
        return Finding(AREA, what, PROBLEM, install(error["missing"]))
    why = f"{error['type']}: {error['message']}" if error else f"{told.ended}. {told.said}".strip()
    again = f'{pip()} install --force-reinstall "torch>={wanted}"'
    return Finding(AREA, f"torch does not import: {why}", PROBLEM, again)


def _lightning(told: Told) -> list[Finding]:
    wanted = f"{LIGHTNING[0]}.{LIGHTNING[1]}"
    upgrade = f'{pip()} install --upgrade "%s>={wanted}"'
    if "lightning" not in told.facts:
        if told.at == "lightning":
            what = f"Lightning ends the process that imports it: {told.ended}"
            return [Finding(AREA, what, PROBLEM, upgrade % "lightning")]
        return []
    installed: dict[str, dict[str, Any]] = told.facts["lightning"]
    if not installed:
        what = "Lightning is not installed: Trainers need it (bl.attach alone does not)"
        return [Finding(AREA, what, PROBLEM, upgrade % "lightning")]
    return [_tree(name, found, upgrade) for name, found in installed.items()]


def _tree(name: str, found: dict[str, Any], upgrade: str) -> Finding:
    distribution = name.replace("_", "-")
    if "error" in found:
        missing = found.get("missing")
        remedy = install(missing) if missing else upgrade % distribution
        return Finding(AREA, f"{name}: {found['error']}", PROBLEM, remedy)
    if older(found["version"], LIGHTNING):
        what = f"{name} {found['version']} is too old: {LIGHTNING[0]}.{LIGHTNING[1]} is needed"
        return Finding(AREA, what, PROBLEM, upgrade % distribution)
    return Finding(AREA, f"{name} {found['version']}")

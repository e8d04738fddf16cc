"""Which measurements the planner goes by, how old they are, and whether they fit this machine."""

from __future__ import annotations

from datetime import date
from typing import Any

from bppsa_lightning.cli.doctor.asked import Told
from bppsa_lightning.cli.doctor.finding import NOTE, PROBLEM, Finding

AREA = "calibration"
CALIBRATE = "`bppsa calibrate` measures this machine, in two to three minutes"


def findings(told: Told) -> list[Finding]:
    """Of the tables for the CPU."""
    if "package" not in told.facts or "library" not in told.facts:
        return []
    if error := told.errors.get("calibration"):
        remedy = "unset BPPSA_TABLE" if "BPPSA_TABLE" in error["message"] else CALIBRATE
        return [Finding(AREA, error["message"], PROBLEM, remedy)]
    facts = told.facts.get("calibration")
    if facts is None:
        return []
    found = [_used(facts)]
    found += [Finding(AREA, unfit, PROBLEM, CALIBRATE) for unfit in facts["unfit"]]
    threads = told.facts.get("torch", {}).get("threads")
    if facts["own"] and threads not in facts["threads"]:
        measured = ", ".join(map(str, facts["threads"]))
        what = f"it was measured with {measured} threads, and torch uses {threads}"
        found.append(Finding(AREA, what, NOTE, CALIBRATE))
    return found


def _used(facts: dict[str, Any]) -> Finding:
    when = facts["measured"].get("date")
    age = f", measured {when} ({_age(when)})" if when else ""
    if facts["own"]:
        return Finding(AREA, f"this machine's own table{age}: {facts['path']}")
    what = f"the table of {_in_words(facts['used'], facts['machine'])}{age}"
    if facts["asked"]:
        return Finding(AREA, f"{what}, which BPPSA_TABLE={facts['asked']} asks for")
    if facts["far"]:
        this = _in_words(facts["machine"], facts["used"])
        return Finding(AREA, f"{what}; this machine is {this}", NOTE, CALIBRATE)
    return Finding(AREA, f"{what}; this machine is like it")


def _in_words(one: dict[str, Any], beside: dict[str, Any]) -> str:
    """As `planner.machine.in_words`, which needs torch."""
    differs = one["name"] == beside["name"] and one.get("kernels") != beside.get("kernels")
    kernels = f" ({one.get('kernels')} kernels)" if differs else ""
    return f"{one['name']}, {one['cores']} cores{kernels}"


def _age(when: str) -> str:
    days = (date.today() - date.fromisoformat(when)).days
    return "today" if days <= 0 else f"{days} day{'s' * (days != 1)} ago"

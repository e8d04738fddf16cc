"""Which measurements the planner goes by, how old they are, and whether they fit this machine."""

from __future__ import annotations

from datetime import date
from typing import Any

from bppsa_lightning.cli.doctor.asked import Told
from bppsa_lightning.cli.doctor.finding import NOTE, PROBLEM, Finding

AREA = "calibration"
CALIBRATE = "`bppsa calibrate` measures this machine, in about a minute"


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
    name, cores = facts["used"]["name"], facts["used"]["cores"]
    when = facts["measured"].get("date")
    age = f", measured {when} ({_age(when)})" if when else ""
    if facts["own"]:
        return Finding(AREA, f"this machine's own table{age}: {facts['path']}")
    what = f"the table of {name}, {cores} cores{age}"
    if facts["asked"]:
        return Finding(AREA, f"{what}, which BPPSA_TABLE={facts['asked']} asks for")
    if facts["far"]:
        this = f"{facts['machine']['name']}, {facts['machine']['cores']} cores"
        return Finding(AREA, f"{what}; this machine is {this}", NOTE, CALIBRATE)
    return Finding(AREA, f"{what}; this machine is like it")


def _age(when: str) -> str:
    days = (date.today() - date.fromisoformat(when)).days
    return "today" if days <= 0 else f"{days} day{'s' * (days != 1)} ago"

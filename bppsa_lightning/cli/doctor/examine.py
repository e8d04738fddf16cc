"""Asks, judges area by area, and puts it together."""

from __future__ import annotations

from dataclasses import asdict

from bppsa_lightning._cores import busy_cores
from bppsa_lightning.cli.answer import FINE, PROBLEMS, Answer
from bppsa_lightning.cli.doctor import asked, calibration, cuda, library, load, threads, versions
from bppsa_lightning.cli.doctor.finding import PROBLEM, as_text

AREAS = (versions.findings, library.findings, cuda.findings, threads.findings)


def examine() -> Answer:
    """Looks at all areas.

    Returns:
        JSON {"ok", "findings": [{"area", "what", "level", "remedy"}], "facts"}; status `PROBLEMS`
        if one of the findings is a problem.
    """
    others = busy_cores()  # before there is load of our own
    told = asked.ask()
    found = [finding for judge in AREAS for finding in judge(told)]
    found += load.findings(others)
    found += calibration.findings(told)
    well = all(finding.level != PROBLEM for finding in found)
    data = {
        "ok": well,
        "findings": [finding.data() for finding in found],
        "facts": asdict(told) | {"other_load": others},
    }
    return Answer(data, as_text(found), FINE if well else PROBLEMS)

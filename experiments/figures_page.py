"""The page of the records: each figure and table of the paper beside ours."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from figures_table import Experiment, Records

PAPER = "[BPPSA](https://arxiv.org/abs/1907.10134) (Wang, Bai, Pekhimenko, MLSys 2020)"
MISSING = "not measured"
SHORT = " These are of **short runs**, which show that everything works."


def page(folder: Path, experiments: Sequence[Experiment], full: bool) -> str:
    """The page as Markdown.

    Args:
        folder: of the records and pictures; links are relative to it.
        experiments: its sections.
        full: whether the records are of full runs.
    """
    records = {e.name: read(folder, e) for e in experiments}
    kind = "" if full else SHORT
    head = f"""\
# The paper's figures and ours

Each figure and table of {PAPER}
beside ours, written by `experiments/figures.py` from the records in this folder: do not edit.{kind}
"x" is stock PyTorch's time over ours, measured in the same run; below 1, stock is faster.
Backward is counted with whatever it prepares inside.

| | the paper | ours |
|---|---|---|
"""
    rows = [
        f"| [{e.title}](#{anchor(e.title)}) | {e.claim} | {_glance(e, records[e.name])} |"
        for e in experiments
    ]
    sections = [_section(folder, e, records[e.name], full) for e in experiments]
    return head + "\n".join([*rows, "", *sections])


def read(folder: Path, experiment: Experiment) -> Records | None:
    """The records of an experiment; None if one of them is missing."""
    paths = [folder / f"{name}.json" for name in experiment.records]
    if not all(path.is_file() for path in paths):
        return None
    return {path.stem: json.loads(path.read_text()) for path in paths}


def anchor(title: str) -> str:
    """The link of a heading, as GitHub makes it."""
    kept = (c for c in title.lower() if c.isalnum() or c in " -_")
    return "".join(kept).replace(" ", "-")


def _glance(experiment: Experiment, records: Records | None) -> str:
    if records is None:
        return MISSING
    return experiment.glance(records) if experiment.glance else "see below"


def _section(folder: Path, experiment: Experiment, records: Records | None, full: bool) -> str:
    parts = [f"## {experiment.title}", f"**The paper.** {experiment.paper}"]
    if records is None:
        parts.append(f"**Ours.** {MISSING.capitalize()}.")
    else:
        text = experiment.text(records) if experiment.text else ""
        parts.append("**Ours.**" + (f"\n\n{text}" if text else ""))
    for name in experiment.pictures:
        if (folder / f"{name}.png").is_file():
            parts.append(f"![{name}]({name}.png)")
        elif records is not None:
            parts.append(f"{name}.png: {MISSING}.")
    parts.append("*" + "; ".join([*_measured(records), _made(experiment, records, full)]) + "*")
    return "\n\n".join(parts) + "\n"


def _measured(records: Records | None) -> list[str]:
    """On what and when each record was measured."""
    found = [_environment(record["environment"]) for record in (records or {}).values()]
    return list(dict.fromkeys(found))


def _environment(e: dict[str, Any]) -> str:
    machine = e.get("gpu") or f"{e['cpu']}, {e['cores']} cores ({e['cpu_kernels']} kernels)"
    versions = f"torch {e['torch']}, lightning {e['lightning']}"
    return f"{e['date']}, {machine}, {versions}"


def _made(experiment: Experiment, records: Records | None, full: bool) -> str:
    """The command that makes the records again."""
    command = experiment.command(full)
    if command is None:
        return experiment.elsewhere
    given = command
    script, keep, _ = command.partition(" --record")
    if not keep:
        script = command.split()[0]
    for record in (records or {}).values():
        # As it was run, which may not be the full schedule; or as each row was.
        runs = [r["arguments"] for r in (record, *record.get("rows", [])) if "arguments" in r]
        if runs:
            lines = (" ".join([script + keep, *map(shlex.quote, run)]) for run in runs)
            given = "`; `python experiments/".join(dict.fromkeys(lines))
    text = f"`python experiments/{given}`"
    return text if given == command else f"{text}; in full `python experiments/{command}`"

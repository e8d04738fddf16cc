"""The page of the records: each figure and table of the paper beside ours.

    python -m experiments.paper.page             # experiments/records/README.md, anew
    python -m experiments.paper.page amd_epyc_avx2   # of another machine's records, beside them

Written from the records at hand; what has no record is "not measured". The page of another machine
has the sections that were measured there, without pictures.
"""

import argparse
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from experiments import recording
from experiments.paper.section import Records, Section
from experiments.paper.sections import SECTIONS

PAPER = "[BPPSA](https://arxiv.org/abs/1907.10134) (Wang, Bai, Pekhimenko, MLSys 2020)"
MISSING = "not measured"
MACHINES = {"amd_epyc_avx2": "without AVX-512"}  # folders of a campaign on another machine
SHORT = " These are of **short runs**, which show that everything works."


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("machine", nargs="?", default="", choices=["", *MACHINES],
                        help="a folder of experiments/records")  # fmt: skip
    return parser


def main(arguments: list[str] | None = None) -> None:
    machine = parser().parse_args(arguments).machine
    print(f"page: {write(recording.RECORDS / machine, full=True)}")


def sections_of(folder: Path) -> list[Section]:
    """What the page of a folder shows."""
    if folder.name not in MACHINES:
        return list(SECTIONS)
    measured = [section for section in SECTIONS if section.records and read(folder, section)]
    return [replace(section, pictures=(), text=_one_folder_down(section)) for section in measured]


def _one_folder_down(section: Section) -> Callable[[Records], str]:
    """The section's text, with links from a folder of the records'."""
    return lambda found: re.sub(
        r"\]\((?!https?:|#)", "](../", section.text(found) if section.text else ""
    )


def write(folder: Path, full: bool) -> Path:
    """Writes the page of the records in `folder` beside them."""
    path = folder / "README.md"
    recording.write_text(path, page(folder, sections_of(folder), full))
    return path


def page(folder: Path, sections: Sequence[Section], full: bool) -> str:
    """The page as Markdown.

    Args:
        folder: of the records and pictures; links are relative to it.
        sections: in their order.
        full: whether the records are of full runs.
    """
    records = {section.name: read(folder, section) for section in sections}
    kind = "" if full else SHORT
    title, command = "The paper's figures and ours", "python -m experiments.paper.page"
    if folder.name in MACHINES:
        title, command = f"{title}, {MACHINES[folder.name]}", f"{command} {folder.name}"
    head = f"""\
# {title}

Each figure and table of {PAPER}
beside ours, written from the records in this folder by `{command}`: do not
edit.{kind}
"x" is stock PyTorch's time over ours, measured in the same run; below 1, stock is faster.
Backward is counted with whatever it prepares inside.

| | the paper | ours |
|---|---|---|
"""
    rows = [
        f"| [{s.title}](#{anchor(s.title)}) | {s.claim} | {_glance(s, records[s.name])} |"
        for s in sections
    ]
    bodies = [_section(folder, s, records[s.name], full) for s in sections]
    return head + "\n".join([*rows, "", *bodies])


def read(folder: Path, section: Section) -> Records | None:
    """The records of a section; None if one of them is missing."""
    paths = [folder / f"{name}.json" for name in section.records]
    if not all(path.is_file() for path in paths):
        return None
    return {path.stem: json.loads(path.read_text()) for path in paths}


def anchor(title: str) -> str:
    """The link of a heading, as GitHub makes it."""
    kept = (c for c in title.lower() if c.isalnum() or c in " -_")
    return "".join(kept).replace(" ", "-")


def _glance(section: Section, records: Records | None) -> str:
    if records is None:
        return MISSING
    return section.glance(records) if section.glance else "see below"


def _section(folder: Path, section: Section, records: Records | None, full: bool) -> str:
    parts = [f"## {section.title}", f"**The paper.** {section.paper}"]
    if records is None:
        parts.append(f"**Ours.** {MISSING.capitalize()}.")
    else:
        text = section.text(records) if section.text else ""
        parts.append("**Ours.**" + (f"\n\n{text}" if text else ""))
    for name in section.pictures:
        if (folder / f"{name}.png").is_file():
            picture = f"![{name}]({name}.png)"
            vector = (folder / f"{name}.svg").is_file()
            parts.append(f"[{picture}]({name}.svg)" if vector else picture)
        elif records is not None:
            parts.append(f"{name}.png: {MISSING}.")
    parts.append("*" + "; ".join([*_measured(records), _made(section, records, full)]) + "*")
    return "\n\n".join(parts) + "\n"


def _measured(records: Records | None) -> list[str]:
    """On what and when each record was measured."""
    found = []
    for record in (records or {}).values():
        e = record["environment"]
        versions = f"torch {e['torch']}, lightning {e['lightning']}"
        found.append(f"{e['date']}, {recording.machine(e)}, {versions}")
    return list(dict.fromkeys(found))


def _made(section: Section, records: Records | None, full: bool) -> str:
    """The commands that make the records again: as they were run, and in full."""
    if not section.run:
        return section.elsewhere
    asked = f"`{section.command(full)}`"
    given = []
    for record in (records or {}).values():
        runs = [r["arguments"] for r in (record, *record.get("rows", [])) if "arguments" in r]
        given += [f"`{section.command_with(run)}`" for run in runs]
    given = list(dict.fromkeys(given))
    if given in ([], [asked]):
        return asked
    return f"{'; '.join(given)}; in full {asked}"


if __name__ == "__main__":
    main()

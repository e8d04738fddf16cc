"""What is left of a day, in three files that are whole at any moment.

day.json: how each part ended, every record and table; logs.txt: the end of each part's log;
summary.md: what was met and missed.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import recording
from experiments.benchmarks.gpu_day.bars import Found
from experiments.benchmarks.gpu_day.day import ATTEMPTS, DONE, FAILED, INTERRUPTED, Day
from experiments.benchmarks.gpu_day.parts import Part

END_OF_LOG = 400_000  # characters
SHOWN = 20  # lines of a log that failed, in the summary
MARKS = {True: "met", False: "**missed**", None: ""}


def publish(day: Day, folder: Path) -> None:
    """Writes the three files into a folder."""
    written = {name: _json(day.folder / name) for name in _names(day.folder)}
    logs = {part.name: _log(day, part) for part in day.parts}
    results = json.dumps({"parts": day.state, "files": written}, indent=1)
    recording.write_text(folder / "day.json", results + "\n")
    heads = [f"{'=' * 20} {name}\n{text}\n" for name, text in logs.items() if text]
    recording.write_text(folder / "logs.txt", "\n".join(heads))
    recording.write_text(folder / "summary.md", summary(day, written, logs))


def unpack(path: Path, folder: Path) -> None:
    """The folder of a day as the day.json of another machine, or of an earlier call, left it."""
    results = json.loads(path.read_text())
    for name, contents in results["files"].items():
        recording.write_text(folder / name, json.dumps(contents, indent=1) + "\n")
    recording.write_text(folder / "state.json", json.dumps(results["parts"], indent=1) + "\n")


def summary(day: Day, written: Mapping[str, Any], logs: Mapping[str, str]) -> str:
    """Of each part how it ended, and of each bar whether it was met."""
    parts, judged, failures = [], [], []
    for part in day.parts:
        entry = day.state.get(part.name, {})
        ended = state_of(day, part)
        seconds = f"{entry['seconds']:.0f}" if "seconds" in entry else ""
        parts.append((part.name, part.what, ended, seconds, f"{part.seconds:.0f}"))
        if "state" not in entry:
            continue
        own = {name: written[name] for name in entry.get("wrote", []) if written.get(name)}
        found = Found(logs[part.name], _of(own, "records"), _of(own, "tables"))
        for bar in part.bars:
            try:
                wanted, told, met = bar(found)
            except (KeyError, TypeError, ValueError) as error:  # a record unlike what is expected
                wanted, told, met = "a record that can be judged", f"{error!r}", False
            judged.append((part.name, wanted, told, MARKS[met]))
        if entry["state"] != DONE and logs[part.name]:
            last = "\n".join(logs[part.name].splitlines()[-SHOWN:])
            failures.append(f"### {part.name}: {ended}\n\n```\n{last}\n```\n")
    marks = [mark for *_, mark in judged]
    head = (
        f"# A day with a GPU\n\n{_machine(written)}\n\n"
        f"{sum(ended == DONE for _, _, ended, *_ in parts)} of {len(parts)} parts done; "
        f"{marks.count(MARKS[True])} of {len(marks) - marks.count(MARKS[None])} bars met.\n"
    )
    tables = [
        recording.markdown(("part", "wanted", "found", ""), _escaped(judged)),
        recording.markdown(("part", "what", "", "seconds", "limit"), _escaped(parts)),
    ]
    return "\n".join([head, f"{tables[0]}\n", f"{tables[1]}\n", *failures])


def state_of(day: Day, part: Part) -> str:
    """How a part ended, or why it did not run, for people."""
    ended = day.ended(part)
    if ended == INTERRUPTED and day.state[part.name]["attempts"] >= ATTEMPTS:
        return f"given up: interrupted {day.state[part.name]['attempts']} times"
    if ended == FAILED:
        return f"failed (exit status {day.state[part.name]['status']})"
    if ended is not None:
        return ended
    needs = day.waits_for(part)
    return f"waits for {needs.name}" if needs else "waits"


def _escaped(rows: Iterable[Sequence[str]]) -> list[list[str]]:
    return [[cell.replace("|", "\\|").replace("\n", " ")[:600] for cell in row] for row in rows]


def _machine(written: Mapping[str, Any]) -> str:
    """The machine and versions of the first record that names a GPU, or of any."""
    environments = [f["environment"] for f in written.values() if "environment" in (f or {})]
    environments.sort(key=lambda found: "gpu" not in found)
    if not environments:
        return "No records yet."
    found = environments[0]
    names = ("gpu", "cudnn", "cpu", "cores", "cpu_kernels", "python", "torch", "lightning", "date")
    return ", ".join(f"{name} {found[name]}" for name in names if name in found)


def _names(folder: Path) -> list[str]:
    paths = [path for name in ("records", "tables") for path in (folder / name).glob("*.json")]
    return sorted(str(path.relative_to(folder)) for path in paths)


def _of(written: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return {Path(name).stem: f for name, f in written.items() if name.startswith(kind)}


def _json(path: Path) -> Any:
    """What a file holds; None if it is gone, or no JSON."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _log(day: Day, part: Part) -> str:
    try:
        return day.log(part).read_text(errors="replace")[-END_OF_LOG:]
    except OSError:
        return ""

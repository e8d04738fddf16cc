"""Asks `probe` in a process of its own, which finds modules where this one does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PROBE = Path(__file__).with_name("probe.py")
# Runs the probe; its folder, with modules of any names, is not searched.
_START = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
)
SECONDS = 300.0


@dataclass
class Told:
    """What the probe told.

    Attributes:
        facts: of each stage that ended well. errors: {"type", "message", "missing"} of those that
            raised.
        ended: how the process ended within a stage, for people: "it was killed by SIGBUS"; None if
            it came to its end.
        at: the stage in which it ended so.
        said: what was on stderr, the last lines.
    """

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, dict[str, Any]] = field(default_factory=dict)
    ended: str | None = None
    at: str | None = None
    said: str = ""


def ask(seconds: float = SECONDS) -> Told:
    """Runs the probe to its end, or until it crashes, or for so long."""
    reading, writing = os.pipe()
    path = json.dumps([entry or os.getcwd() for entry in sys.path])
    command = [sys.executable, "-c", _START, path, str(_PROBE), str(writing)]
    with open(reading, encoding="utf-8") as lines:
        try:
            process = subprocess.Popen(
                command,
                pass_fds=[writing],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        finally:
            os.close(writing)
        late = False
        try:
            said = process.communicate(timeout=seconds)[1]
        except subprocess.TimeoutExpired:
            late = True
            process.kill()
            said = process.communicate()[1]
        told = _read(lines.read())
    told.said = "\n".join(said.splitlines()[-20:])
    if late:
        told.ended = f"it did not come to its end in {seconds:g} s"
    elif process.returncode:
        told.ended = _end(process.returncode)
    if told.ended is None:
        told.at = None
    return told


def _read(text: str) -> Told:
    told = Told()
    for line in text.splitlines():
        try:
            said = json.loads(line)
        except ValueError:  # cut off in the middle
            continue
        if "begins" in said:
            told.at = said["begins"]
        elif "error" in said:
            told.errors[said["stage"]] = said["error"]
        else:
            told.facts[said["stage"]] = said["facts"]
    return told


def _end(status: int) -> str:
    if status > 0:
        return f"it ended with status {status}"
    try:
        return f"it was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"it was killed by signal {-status}"

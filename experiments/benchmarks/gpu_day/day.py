"""Runs the parts of a day that are not done yet, as far as the minutes go.

The folder of the day holds what the parts leave behind: records/, tables/, logs/<part>.log; and
state.json, how each part ended. So a later call goes on where one stopped, however it stopped.
"""

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from experiments import recording
from experiments.benchmarks.gpu_day import processes
from experiments.benchmarks.gpu_day.parts import BUILD, Part

RESERVE = 5.0  # seconds of a call in which no part runs
ATTEMPTS = 2  # of a part under which a call was killed: the part may be what killed it
DONE, FAILED, OUT_OF_TIME = "done", "failed", "out of time"
RUNNING, INTERRUPTED = "running", "interrupted"  # not an end: the part is run again
State = dict[str, Any]


@dataclass
class Day:
    """Parts, their folder, and how each ended.

    Args:
        parts: in the order in which they run.
        folder: of everything.
        publish: called when something has changed, and every few seconds while a part runs.
    """

    parts: Sequence[Part]
    folder: Path
    publish: Callable[["Day"], None] = lambda day: None
    state: dict[str, State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()
        for name in ("records", "tables", "logs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._load()

    def _load(self) -> None:
        if self.path.exists():
            self.state = json.loads(self.path.read_text())
        for entry in self.state.values():
            if entry["state"] == RUNNING:
                entry["state"] = INTERRUPTED

    @property
    def path(self) -> Path:
        return self.folder / "state.json"

    def log(self, part: Part) -> Path:
        return self.folder / "logs" / f"{part.name}.log"

    def ended(self, part: Part) -> str | None:
        """How a part ended; None if it never ran, or what it made is gone."""
        found = self.state.get(part.name, {}).get("state")
        gone = part.makes is not None and not (self.folder / part.makes).exists()
        return None if found == DONE and gone else found

    def run(self, minutes: float, only: Iterable[str] = (), again: Iterable[str] = ()) -> None:
        """Runs what is due and fits into the minutes."""
        end = time.monotonic() + minutes * 60 - RESERVE
        asked, anew = set(only), set(again)
        with _alone(self.folder), _terminated_as_interrupted():
            processes.kill(str(self.folder))  # what a call left that was killed
            self._load()
            for part in self.parts:
                if (asked and part.name not in asked) or self.waits_for(part):
                    continue
                if part.name not in anew and not self._due(part):
                    continue
                if part.seconds <= end - time.monotonic():
                    self._run(part)
                else:
                    print(f"{part.name} waits: it may take {part.seconds:.0f} s", flush=True)
            self.publish(self)

    def waits_for(self, part: Part) -> Part | None:
        """The part that must be done first, and is not."""
        needs = next((other for other in self.parts if other.name == part.needs), None)
        return None if needs is None or self.ended(needs) == DONE else needs

    def _due(self, part: Part) -> bool:
        """Whether a part has not ended yet; or, where others need it, not well."""
        ended = self.ended(part)
        if any(other.needs == part.name for other in self.parts):
            return ended != DONE
        if ended == INTERRUPTED:
            return bool(self.state[part.name]["attempts"] < ATTEMPTS)
        return ended is None

    def _run(self, part: Part) -> None:
        attempts = self.state.get(part.name, {}).get("attempts", 0) + 1
        entry: State = {"state": RUNNING, "attempts": attempts, "limit": part.seconds}
        self.state[part.name] = entry
        self._keep()
        print(f"{time.strftime('%H:%M:%S')} {part.name}: {part.what}", flush=True)
        before, start = self._written(), time.monotonic()

        def note() -> None:
            entry["seconds"] = round(time.monotonic() - start, 1)
            entry["wrote"] = [n for n, at in self._written().items() if before.get(n) != at]
            self._keep()

        command = [word.replace("{folder}", str(self.folder)) for word in part.command]
        site = self.folder / BUILD / "site"
        try:
            status = processes.run(
                command, self.log(part), site if site.exists() else self.folder,
                self._environment(part), str(self.folder), part.seconds, note,
            )  # fmt: skip
            ended = {0: DONE, None: OUT_OF_TIME}.get(status, FAILED)
            entry |= {"state": ended, "status": status}
        except KeyboardInterrupt:
            entry["state"] = INTERRUPTED
            raise
        finally:
            note()
            print(f"         {entry['state']} after {entry['seconds']:.0f} s", flush=True)

    def _environment(self, part: Part) -> dict[str, str]:
        """Ours, with the folder's records and tables, and without an outer make's settings."""
        found = {name: value for name, value in os.environ.items() if not _of_make(name)}
        paths = [str(self.folder / BUILD / "site"), os.environ.get("PYTHONPATH")]
        own = [str(Path(sys.executable).parent), os.environ.get("PATH")]
        return {
            **found,
            "PATH": os.pathsep.join(filter(None, own)),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",
            "BPPSA_RECORDS": str(self.folder / "records"),
            "BPPSA_TABLES": str(self.folder / "tables"),
            **part.settings,
        }

    def _written(self) -> dict[str, int]:
        """The records and tables at hand, with the time of their last change."""
        paths = [p for name in ("records", "tables") for p in (self.folder / name).glob("*.json")]
        return {str(p.relative_to(self.folder)): p.stat().st_mtime_ns for p in paths}

    def _keep(self) -> None:
        recording.write_text(self.path, json.dumps(self.state, indent=1) + "\n")
        self.publish(self)


def _of_make(name: str) -> bool:
    return name.startswith("MAKE") or name == "MFLAGS"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """While no other call uses the folder."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"{folder} is in use by another call: wait for its end")
        yield


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, so that a part ends with the call."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

"""What each process did when: tasks, and the delays that can be read off them."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple


class Event(NamedTuple):
    """A task that was done.

    Attributes:
        kind: "F", "D", "G"; "U" is an update of a layer's weights.
        layer: its index in the chain.
        batch: the mini-batch; (mini-batch, part) where it is divided.
        version: the updates that the layer had seen when the task began; -1 where another process
            holds the layer.
        start, end: in seconds of this machine's clock.
    """

    kind: str
    layer: int
    batch: Any
    version: int
    start: float
    end: float


class Trace:
    """The tasks of one process, in their order.

    Args:
        keep: whether they are kept; else nothing is noted.
    """

    def __init__(self, keep: bool) -> None:
        self.keep = keep
        self.events: list[Event] = []

    @contextmanager
    def task(self, kind: str, layer: int, batch: Any, version: int) -> Iterator[None]:
        """Notes what runs in here as a task."""
        if not self.keep:
            yield
            return
        start = time.time()
        yield
        self.events.append(Event(kind, layer, batch, version, start, time.time()))


def observed_delays(events: Sequence[Event]) -> dict[int, int]:
    """The delay of each layer, read off the order of its tasks.

    Args:
        events: of one process, in order.

    Returns:
        {layer: the largest number of mini-batches that had entered the layer before one, and had
        not updated it yet when that one's forward ran}.
    """
    updates: dict[int, int] = {}
    entered: dict[int, set[Any]] = {}
    delays: dict[int, int] = {}
    for event in events:
        if event.kind == "U":
            updates[event.layer] = updates.get(event.layer, 0) + 1
        elif event.kind == "F":
            batches = entered.setdefault(event.layer, set())
            whole = event.batch[0] if isinstance(event.batch, tuple) else event.batch
            batches.discard(whole)
            delay = len(batches) - updates.get(event.layer, 0)
            batches.add(whole)
            delays[event.layer] = max(delays.get(event.layer, 0), delay)
    return delays


def chrome_trace(processes: Sequence[Sequence[Event]]) -> dict[str, Any]:
    """The tasks in Chrome's trace format (open in chrome://tracing or ui.perfetto.dev).

    Args:
        processes: the events of each stage's process, the first stage first.
    """
    colours = {"F": "good", "D": "bad", "G": "terrible", "U": "grey"}
    first = min((e.start for events in processes for e in events), default=0.0)
    rows: list[dict[str, Any]] = []
    for stage, events in enumerate(processes):
        name = {"name": f"stage {stage}"}
        rows.append({"ph": "M", "name": "process_name", "pid": stage, "args": name})
        rows += [
            {
                "ph": "X", "name": f"{e.kind}{e.layer} ({_text(e.batch)})", "cat": e.kind,
                "pid": stage, "tid": 0, "cname": colours[e.kind],
                "ts": (e.start - first) * 1e6, "dur": (e.end - e.start) * 1e6,
                "args": {"layer": e.layer, "mini-batch": _text(e.batch), "updates": e.version},
            }
            for e in events
        ]  # fmt: skip
    return {"traceEvents": rows, "displayTimeUnit": "ms"}


def _text(batch: Any) -> str:
    return ".".join(map(str, batch)) if isinstance(batch, tuple) else str(batch)


def write_chrome_trace(path: str | Path, processes: Sequence[Sequence[Event]]) -> None:
    """Writes `chrome_trace` to a file, whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    beside.write_text(json.dumps(chrome_trace(processes)))
    os.replace(beside, path)

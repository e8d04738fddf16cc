"""Tasks in a process of their own: what hangs is stopped, what dies takes nothing along."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from typing import IO, Any

from bppsa_lightning.calibration.cuda.tasks import Task

START_LIMIT = 180.0  # seconds, to import torch and to set up a GPU
WORKER = "bppsa_lightning.calibration.cuda.worker"


class Lost(Exception):
    """A task did not come to its end.

    Attributes:
        why: for people. at: what it had last said to begin, or "".
    """

    def __init__(self, why: str, at: str = "") -> None:
        super().__init__(why)
        self.why, self.at = why, at


class NoWorker(RuntimeError):
    """No process that can use the device comes up."""


class Isolated:
    """One worker after the other, each until a task is lost. A context manager.

    Args:
        runner: the name of a module like tasks.py.
        device: "cuda:0".
    """

    def __init__(self, runner: str, device: str) -> None:
        self._arguments = runner, device
        self._worker: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: IO[str] | None = None

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def ask(self, task: Task, limit: float) -> dict[str, Any]:
        """The result of a task, within so many seconds.

        Raises:
            Lost: it failed, hung or died; the next task finds a new worker.
            NoWorker: there is none.
        """
        worker = self._worker or self._start()
        assert worker.stdin is not None
        try:
            worker.stdin.write(json.dumps(task | {"limit": limit}) + "\n")
            worker.stdin.flush()
        except BrokenPipeError:
            raise Lost(self._died()) from None
        at, end = "", time.monotonic() + limit
        while True:
            line = self._line(end)
            if line is None:
                raise Lost(self._died(), at)
            if not line:
                self._stop()
                raise Lost(f"hung: no answer in {limit:g} s", at)
            said = json.loads(line)
            if "done" in said:
                return dict(said["done"])
            if "failed" in said:
                self._stop()  # after an error of CUDA nothing works any more
                raise Lost(str(said["failed"]), at)
            at = str(said["at"])

    def _start(self) -> subprocess.Popen[str]:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed in _stop)
        # Not in this process's group: an interrupt is for it alone.
        self._worker = subprocess.Popen(
            [sys.executable, "-m", WORKER, *self._arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )  # fmt: skip
        self._lines = queue.Queue()
        threading.Thread(target=_read, args=(self._worker, self._lines), daemon=True).start()
        if not self._line(time.monotonic() + START_LIMIT):
            raise NoWorker(f"no process can use {self._arguments[1]}: {self._died()}")
        return self._worker

    def _line(self, end: float) -> str | None:
        """The worker's next line; "" if none comes in time, None if none will come."""
        try:
            return self._lines.get(timeout=max(end - time.monotonic(), 0.0))
        except queue.Empty:
            return ""

    def _died(self) -> str:
        """How a worker that says no more ended, which it may be about to."""
        assert self._worker is not None and self._errors is not None
        try:
            status = self._worker.wait(timeout=5)
        except subprocess.TimeoutExpired:
            status = 0
        self._errors.seek(0)
        last = self._errors.read().strip().rpartition("\n")[2]
        self._stop()
        how = f"exited with status {status}"
        if status < 0:
            how = f"died with {signal.Signals(-status).name}"
        return f"{how} ({last})" if last else how

    def _stop(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()
            with suppress(subprocess.TimeoutExpired):  # it waits for a driver that does not answer
                worker.wait(timeout=10)
            assert worker.stdin is not None
            with suppress(BrokenPipeError):  # of what it has not read
                worker.stdin.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None


def _read(worker: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert worker.stdout is not None
    with worker.stdout as stdout:
        for line in stdout:
            lines.put(line)
    lines.put(None)

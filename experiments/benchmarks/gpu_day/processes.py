"""Runs a command with a limit of time, and leaves nothing of it running."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

MARK = "BPPSA_GPU_DAY"  # environment variable: whose processes these are
POLL = 5.0  # seconds


def run(
    command: Sequence[str],
    log: Path,
    folder: Path,
    environment: Mapping[str, str],
    mark: str,
    seconds: float,
    meanwhile: Callable[[], None],
) -> int | None:
    """The exit status of a command; None if it was killed after `seconds`.

    Args:
        command: program and arguments; a program that is not there counts as one that fails.
        log: file of its output.
        folder: where it runs.
        environment: all of it, but `mark`.
        mark: of all processes that it starts.
        meanwhile: called every few seconds.
    """
    end = time.monotonic() + seconds
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                cwd=folder, env={**environment, MARK: mark}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            output.write(f"{error}\n".encode())
            return 127
    try:
        while (left := end - time.monotonic()) > 0:
            try:
                return process.wait(min(POLL, left))
            except subprocess.TimeoutExpired:
                meanwhile()
        return None
    finally:
        kill(mark)
        process.wait()


def kill(mark: str) -> None:
    """Kills every process with the mark, in whatever group or session it is."""
    wanted = f"{MARK}={mark}".encode()
    for _ in range(100):  # what is killed may just have started another
        pids = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {os.getpid()}
        found = [pid for pid in pids if _is(pid, wanted)]
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return
        time.sleep(0.02)


def _is(pid: int, wanted: bytes) -> bool:
    try:
        return wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, or another user's
        return False

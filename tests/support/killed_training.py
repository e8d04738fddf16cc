"""Kills trainings of `resumed_training` at random moments, and resumes them."""

import json
import random
import shutil
import signal
import time

from support import forked
from support.resumed_checks import assert_rest, logged, newest, step_of


def check_kills(tmp_path, name, options, runs, seed=0):
    """Kills so many runs, every other one twice; each has to end as the one that ran through.

    Returns the checkpoint that each kill was followed by, None for a new start.
    """
    random_moments = random.Random(seed)
    whole = tmp_path / "whole"
    seconds = run_through(whole, name, options)
    used, ended = [], 0
    while ended < runs:
        folder = tmp_path / f"run_{len(used)}"
        folder.mkdir()
        moments = [random_moments.uniform(0, seconds) for _ in range(1 + ended % 2)]
        last, checkpoints = kill_and_resume(folder, name, options, moments)
        if checkpoints:  # otherwise it ended before its moment
            assert_rest(last, whole)
            used += checkpoints
            ended += 1
        shutil.rmtree(folder)
    return used


def kill_and_resume(folder, name, options, moments):
    """Kills a training at each moment (seconds after a start), and lets it end.

    Returns the folder of the last process, and the steps at which the others' checkpoints were.
    """
    checkpoint, used = None, []
    for number, seconds in enumerate(moments):
        part = folder / str(number)
        if not killed(part, name, options, checkpoint, seconds):
            return part, used
        checkpoint = newest(part) or checkpoint
        used.append(step(checkpoint))
    last = folder / str(len(moments))
    run_through(last, name, options, checkpoint)
    return last, used


def step(checkpoint):
    return 0 if checkpoint is None else step_of(checkpoint)


def killed(*arguments):
    """Whether a training was killed so many seconds after its first line; it may have ended."""
    *arguments, seconds = arguments
    process = started(*arguments)
    process.join(seconds)
    forked.kill(process)  # its workers too
    assert process.exitcode in (0, -signal.SIGKILL), said(arguments[0])
    return process.exitcode != 0


def run_through(*arguments):
    """Trains in another process; returns the seconds between the first line logged and the end."""
    process = started(*arguments)
    began = time.monotonic()
    process.join()
    assert process.exitcode == 0, said(arguments[0])
    return time.monotonic() - began


def started(folder, *arguments):
    """A process whose training has begun."""
    process = start(folder, *arguments)
    end = time.monotonic() + 120
    while process.is_alive() and not logged(folder):
        if time.monotonic() > end:
            forked.kill(process)
            raise AssertionError(said(folder))
        time.sleep(0.005)
    return process


def start(folder, name, options, checkpoint=None, **variables):
    """A process that trains into a folder, and says what it says beside it."""
    folder.parent.mkdir(exist_ok=True)
    arguments = [folder, name, json.dumps(options, default=str), *filter(None, [checkpoint])]
    script = forked.TESTS / "support" / "resumed_training.py"
    return forked.start(folder.with_suffix(".out"), script, *arguments, **variables)


def said(folder):
    path = folder.with_suffix(".out")
    return path.read_text()[-4000:] if path.exists() else "it has not begun"

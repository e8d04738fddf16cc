"""Processes that fork: torch's threads stay with the parent.

A child of `os.fork` has the thread that forked and no other. The OpenMP library of torch does not
know it: in a child of a parent whose threads have worked, the first region for several of them
waits forever, be it torch's or ours. One thread works. DataLoader's workers use one for the same
reason.
"""

import os
import threading

import torch

_TASKS = "/proc/self/task"
_before: frozenset[int] = frozenset()  # threads that were there when this was set up
_may_have_worked = False


def work_alone_after_fork() -> None:
    """From now on a child of `os.fork` has one thread of torch, where torch's may have worked.

    Children of a parent that has computed nothing yet keep their number, and so do processes that
    are spawned.
    """
    global _before
    if not os.path.isdir(_TASKS) or _before:
        return
    _before = _tasks()
    os.register_at_fork(before=_look, after_in_child=_work_alone)


def _tasks() -> frozenset[int]:
    return frozenset(map(int, os.listdir(_TASKS)))


def _look() -> None:
    """Whether there are threads of which Python knows nothing, and which came later."""
    global _may_have_worked
    pythons = {thread.native_id for thread in threading.enumerate()}
    _may_have_worked = bool(_tasks() - _before - pythons)


def _work_alone() -> None:
    global _before
    _before = _tasks()
    if _may_have_worked and torch.get_num_threads() > 1:
        torch.set_num_threads(1)

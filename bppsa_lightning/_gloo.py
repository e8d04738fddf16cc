"""Gloo's threads, where processes have no core to spare.

A process that talks by gloo has a thread that waits for sockets, and others that send. The first
takes events only while it holds a connection's lock, and asks for it again and again: if it woke up
on the core of the thread that holds the lock, and took that core, it spins there for its whole time
slice, some milliseconds, until the other is let on and gives the lock back. Threads of the class
SCHED_BATCH do not take the core from others when they wake up; their share of it is the same.

Such a thread waits for a time slice, though, while whoever has the core goes on computing. That may
be another process: Linux wakes the thread up on the core that sent to it, though its own process'
core has nothing to do. So a sender yields its core for a moment, before and after.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from weakref import WeakSet

import torch.distributed as dist

_THREADS = {"gloo_tcp_loop", "pt_gloo_runloop"}

# Lets threads that wait for this core have it, if there are any.
give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: None)

_known: WeakSet[dist.ProcessGroup] = WeakSet()


def let_threads_wait(group: dist.ProcessGroup) -> int:
    """Makes the threads of a process group's gloo SCHED_BATCH, on Linux, once.

    Those of other groups of the process, too: they cannot be told apart. Nothing is done for
    other backends, and where the system does not allow it.

    Returns:
        How many threads were changed.
    """
    if group in _known:
        return 0
    _known.add(group)
    if not hasattr(os, "SCHED_BATCH") or "gloo" not in str(dist.get_backend_config(group)):
        return 0
    found = 0
    for thread in Path("/proc/self/task").glob("[0-9]*"):
        try:
            if (thread / "comm").read_text().strip() in _THREADS:
                os.sched_setscheduler(int(thread.name), os.SCHED_BATCH, os.sched_param(0))
                found += 1
        except OSError:  # it has ended, or may not be changed
            continue
    return found

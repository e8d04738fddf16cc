"""Freed memory stays with the process for the time of a run, where the C library is glibc.

What a training step frees the next one wants again. At the end of its heap glibc gives more than
some megabytes back to the system, which hands them out again page by page, each cleared when it is
first written to: in steps with large embeddings, or optimizers that make copies, that is a sixth of
the time. Nothing changes for a process whose environment says what glibc is to do.
"""

import ctypes
import os
import sys
from functools import cache
from threading import Lock

# mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# glibc raises its thresholds by itself up to these; by mallopt it takes no higher one for mmap.
_MOST_MMAP, _MOST_TRIM = 32 << 20, 64 << 20
_NEVER = 2**31 - 1

_CHOSEN = (
    "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_",
)  # fmt: skip

_lock, _runs = Lock(), 0


def keep() -> bool:
    """A run begins: False if nothing can be done about its memory. Each needs its `give_back`."""
    global _runs
    libc = _glibc()
    if libc is None or _is_chosen():
        return False
    with _lock:
        _runs += 1
        if _runs == 1:
            libc.mallopt(_MMAP_THRESHOLD, _MOST_MMAP)
            libc.mallopt(_TRIM_THRESHOLD, _NEVER)
    return True


def give_back() -> None:
    """A run has ended: with the last one of the process all that is free goes to the system."""
    global _runs
    libc = _glibc()
    with _lock:
        _runs -= 1
        if _runs == 0 and libc is not None:
            libc.mallopt(_TRIM_THRESHOLD, _MOST_TRIM)
            libc.malloc_trim(ctypes.c_size_t(0))


@cache
def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") and hasattr(libc, "mallopt") else None


def _is_chosen() -> bool:
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "glibc.malloc." in tunables or any(os.environ.get(name) for name in _CHOSEN)

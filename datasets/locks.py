"""One process at a time, of those that share a folder."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits until no other process is in the block of the same path.

    The system releases the lock when its holder dies, so nothing stale can block. Where a lock
    cannot be had (a folder that cannot be written, a file system without locks) the block runs
    without: what it writes has to be whole in any case, and says itself what is wrong with the
        folder.

    Args:
        path: what the block makes; the lock is an empty file beside it.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, NotImplementedError):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = path.with_name(f".{path.name}.lock")
            lock.touch()  # where that fails, some versions of filelock try for ever
            stack.enter_context(FileLock(lock))
        yield

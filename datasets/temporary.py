"""Names beside a file or folder, for what is not whole yet."""

import contextlib
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

_SUFFIX = ".tmp"
_STALE_SECONDS = 24 * 60 * 60


@contextlib.contextmanager
def beside(path: Path, family: str) -> Iterator[Path]:
    """A new name beside a file or folder, which takes its place (`os.replace`) when it is whole.

    What is left under the name is removed at the end, and so is what killed processes left behind
    more than a day ago, when no process can still be writing it.

    Args:
        path: the file or folder; its parent is made.
        family: how the names start whose remains are removed.

    Raises:
        OSError: if the parent cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for stale in path.parent.glob(f".{family}*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            if time.time() - stale.stat().st_mtime > _STALE_SECONDS:
                _remove(stale)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_SUFFIX}")
    try:
        yield temporary
    finally:
        _remove(temporary)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

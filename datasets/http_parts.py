"""The rest of a file that has arrived in part: one question to one server (HTTP Range, RFC 9110,
section 14), and how far its answer is believed.

Whatever the server says or does, the part only grows, and never beyond what was expected.
"""

import errno
import http.client
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

_BLOCK = 1 << 20
_TIMEOUT = 60.0  # seconds without a byte, and those over which a speed is taken
_SLOWEST = 1000  # bytes a second
_HEADERS = {"User-Agent": "bppsa-lightning", "Accept-Encoding": "identity"}


class Refused(OSError):
    """The server has another file: to ask it again would not help."""


class NotWritten(OSError):
    """The file cannot be written: no server can help."""


def fetch_rest(
    url: str,
    part: Path,
    size: int | None,
    most: int,
    progress: Callable[[int, int | None], None] = lambda have, total: None,
) -> bool:
    """Appends to `part` what the server has beyond it.

    A server that ignores Range sends all again: what is there already is passed over.

    Args:
        url: the address; ``http``, ``https`` or ``file``.
        part: what has arrived so far; need not exist.
        size: bytes of the whole file, None where nobody has said.
        most: the most bytes that the whole file may have.
        progress: called with the bytes that are there and those of the whole, as they arrive.

    Returns:
        Whether `part` is whole, as far as the server says; False if the connection was closed
        before.

    Raises:
        Refused: if the server has a file of another size.
        NotWritten: if there is no room for the file, or it cannot be written.
        OSError, http.client.HTTPException: if the connection breaks, stalls or is slower than
            `_SLOWEST`.
    """
    have = part.stat().st_size if part.exists() else 0
    if have == size:
        return True
    asked = {"Range": f"bytes={have}-"} if have else {}
    try:
        response = urllib.request.urlopen(
            urllib.request.Request(url, headers={**_HEADERS, **asked}), timeout=_TIMEOUT
        )
    except urllib.error.HTTPError as error:
        error.close()  # it is a response, with a socket of its own
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            # Nothing beyond; the checksum tells whether it is the file.
            return size is None or have >= size
        raise
    with response:
        start, total = _range(response)
        if start not in (0, have):
            raise Refused(f"the server sent bytes from {start} on; asked for {have}")
        if total is not None and total != (size or total):
            raise Refused(f"the server has a file of {total} bytes; wanted {size}")
        if total is not None and total > most:
            raise Refused(f"the server has a file of {total} bytes; wanted at most {most}")
        total = size or total
        _check_room(part, (total or have) - have)
        with _opened(part) as file:
            for block in _blocks(response, skip=have - start):
                have += len(block)
                if have > (total or most):
                    raise Refused(f"the server sends more than {total or most} bytes")
                _write(file, block)
                progress(have, total)
    return total is None or have >= total


def _range(response: Any) -> tuple[int, int | None]:
    """The first byte that a response brings, and the size of the whole, where it is said."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers["Content-Range"] or "")
        if not found:
            raise Refused("the server sent a part of the file without saying which")
        return int(found[1]), None if found[2] == "*" else int(found[2])
    length = response.headers["Content-Length"]
    if length and not re.fullmatch(r"\d+", length):
        raise Refused(f"the server says that the file has {length!r} bytes")
    return 0, int(length) if length else None


def _blocks(response: Any, skip: int) -> Iterator[bytes]:
    """What arrives, as it arrives, without the first `skip` bytes."""
    since, arrived = time.monotonic(), 0
    while block := response.read1(_BLOCK):
        arrived += len(block)
        seconds = time.monotonic() - since
        if seconds > _TIMEOUT:
            if arrived < _SLOWEST * seconds:
                raise TimeoutError(f"only {arrived} bytes in {seconds:.0f} seconds")
            since, arrived = time.monotonic(), 0
        if len(block) > skip:
            yield block[skip:]
        skip = max(skip - len(block), 0)


def _check_room(part: Path, wanted: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if free < wanted:
        raise NotWritten(errno.ENOSPC, f"{free} bytes are free, {wanted} more are needed")


def _opened(part: Path) -> IO[bytes]:
    try:  # without a buffer: what has arrived is in the file, even if the process is killed
        return open(part, "ab", buffering=0)
    except OSError as error:
        raise NotWritten(error.errno, error.strerror) from error


def _write(file: IO[bytes], block: bytes) -> None:
    try:
        rest = memoryview(block)
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        raise NotWritten(error.errno, error.strerror) from error

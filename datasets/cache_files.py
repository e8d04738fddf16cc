"""Cache files that are whole or not there: written beside, renamed when on disk, verified when
read.

A file is one line of settings (JSON), the content, and a SHA-256 of both. Nothing in it is executed
when it is read: no pickles. Its name starts with the name of the data set and a hyphen.
"""

import errno
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .temporary import beside

DIGEST_BYTES = hashlib.sha256().digest_size


def header(**settings: Any) -> bytes:
    """First line of a cache file: every setting, as JSON."""
    return json.dumps(settings, sort_keys=True).encode() + b"\n"


def short_digest(data: bytes) -> str:
    """Ten characters that tell settings apart in a file's name."""
    return hashlib.sha256(data).hexdigest()[:10]


def read(path: Path, header: bytes, file_bytes: int | None = None) -> memoryview:
    """Reads and verifies a cache file.

    Args:
        path: the file.
        header: the settings line that it has to start with.
        file_bytes: its size, where the settings decide that.

    Returns:
        What lies between the settings line and the checksum.

    Raises:
        ValueError: if it is not a whole file of these settings.
        OSError: if it cannot be read.
    """
    found = path.stat().st_size
    if file_bytes is not None and found != file_bytes:
        raise ValueError(f"it holds {found} bytes; wanted {file_bytes}")
    data = path.read_bytes()
    if not data.startswith(header):
        raise ValueError("it does not start with these settings, so something else wrote it")
    content = memoryview(data)[:-DIGEST_BYTES]
    if hashlib.sha256(content).digest() != data[-DIGEST_BYTES:]:
        raise ValueError("its content does not match the checksum at its end")
    return content[len(header) :]


def read_if_whole(read: Callable[[], memoryview], path: Path, stacklevel: int) -> memoryview | None:
    """What `read` returns; None if the file is not there or, with a warning, if it is damaged.

    Raises:
        IsADirectoryError: if a directory is there, which no file can replace.
    """
    if path.is_dir():
        raise IsADirectoryError(
            errno.EISDIR,
            f"{path} is a directory; wanted a cache file, or nothing, which is then made; remove "
            "or rename the directory, or pass another folder for the cache",
        )
    try:
        return read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        warnings.warn(
            f"the cache file {path} cannot be used and is made again: {error}",
            stacklevel=stacklevel + 1,
        )
        return None


def write(
    path: Path, header: bytes, parts: Iterable[bytes], file_bytes: int, argument: str = "data_dir"
) -> None:
    """Writes a cache file of these parts.

    The file grows under a name of its own and takes the final one when it is whole and on disk, so
    neither a process that dies nor a second one that writes the same file leaves half a file.

    Args:
        path: the file; its folder is made.
        header: the settings line.
        parts: the content.
        file_bytes: the size it will have, for the error.
        argument: the argument that named the folder, for the error.

    Raises:
        OSError: if the folder cannot be written.
    """
    data_set = path.name.partition("-")[0]
    try:
        with beside(path, f"{data_set}-") as temporary:
            with open(temporary, "xb") as file:
                digest = hashlib.sha256(header)
                file.write(header)
                for part in parts:
                    digest.update(part)
                    file.write(part)
                file.write(digest.digest())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{argument} is {str(path.parent)!r}, and the {file_bytes} bytes of {path.name} "
            f"cannot be written there ({error.strerror or error}); make room there, give write "
            f"permission, or pass the {argument} of a folder that can be written",
        ) from error

"""Downloads that go on where they were cut off, with a checksum.

`torch.hub`, torchvision and pooch begin anew when a download is interrupted, which is long for
gigabytes; this asks the server for the rest (HTTP Range, RFC 9110, section 14).
"""

import contextlib
import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tqdm import tqdm

_BLOCK = 1 << 20
_TIMEOUT = 60  # seconds without a byte
_ATTEMPTS = 5  # in a row that bring nothing


def download(url: str, path: Path, md5: str) -> None:
    """Downloads a file, unless it is there.

    What has arrived lies in ``<path>.part`` until it is whole and has the checksum; a later call,
    or another attempt of this one, asks for the rest only.

    Args:
        url: its address.
        path: where it goes; the folder is made.
        md5: its MD5 sum, hexadecimal.

    Raises:
        OSError: if the server cannot be reached or refuses, or the connection breaks again and
            again; what has arrived is kept.
        ValueError: if the checksum is another; what has arrived is removed, but no file that was
            there before.
    """
    if path.exists():
        _verify(path, url, md5, "remove it to download it again")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    failures = 0
    while True:
        before = _size(part)
        try:
            if _fetch_rest(url, part):
                break
            error: Exception = ConnectionError("the connection was closed before the end")
        except urllib.error.HTTPError as refused:
            if refused.code < 500:
                raise _failed(url, part, refused) from refused
            error = refused
        except (OSError, http.client.HTTPException) as broken:
            error = broken
        failures = 0 if _size(part) > before else failures + 1
        if failures == _ATTEMPTS:
            raise _failed(url, part, error) from error
    try:
        _verify(part, url, md5, "it was removed: try again")
    except ValueError:
        part.unlink()
        raise
    os.replace(part, path)


def _fetch_rest(url: str, part: Path) -> bool:
    """Appends what the server has beyond `part`; returns whether the file is then whole."""
    have = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        error.close()  # it is a response, with a socket of its own
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            return True  # nothing beyond; the checksum tells whether it is the file
        raise
    with response:
        start, total = _range(response)
        if start not in (0, have):
            raise OSError(f"the server sent bytes from {start} on; asked for {have}")
        with open(part, "r+b" if part.exists() else "xb") as file:
            file.truncate(start)
            file.seek(start)
            _copy(response, file, start, total)
    return total is None or _size(part) >= total


def _range(response: Any) -> tuple[int, int | None]:
    """The first byte that a response brings, and the size of the whole, where it is said."""
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers["Content-Range"] or "")
        if not found:
            raise OSError("the server sent a part of the file without saying which")
        return int(found[1]), None if found[2] == "*" else int(found[2])
    length = response.headers["Content-Length"]
    return 0, int(length) if length else None


def _copy(response: Any, file: Any, start: int, total: int | None) -> None:
    title = os.path.basename(file.name).removesuffix(".part")
    with tqdm(
        desc=title, total=total, initial=start, unit="B", unit_scale=True, disable=None
    ) as bar:
        while block := response.read(_BLOCK):
            file.write(block)
            bar.update(len(block))


def _verify(path: Path, url: str, md5: str, advice: str) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    if digest.hexdigest() != md5:
        raise ValueError(
            f"{path} ({_size(path)} bytes, of {url}) has the MD5 sum {digest.hexdigest()}; wanted "
            f"{md5}: it was damaged on its way or is another file; {advice}"
        )


def _failed(url: str, part: Path, error: Exception) -> OSError:
    return OSError(
        f"{url} could not be downloaded ({error}); {_size(part)} bytes have arrived in {part}, "
        "and another call asks for the rest only"
    )


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0

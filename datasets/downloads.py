"""Downloads that go on where they were cut off, from the first of several servers that serves.

`torch.hub`, torchvision and pooch begin anew when a download is interrupted, which is long for
gigabytes; this asks for the rest.
"""

import contextlib
import hashlib
import http.client
import os
import socket
import urllib.error
from dataclasses import dataclass
from pathlib import Path
from time import sleep

from tqdm import tqdm

from .http_parts import NotWritten, Refused, fetch_rest

_ATTEMPTS = 5  # in a row that bring next to nothing
_ATTEMPTS_UNREACHED = 2  # where no server answers
_NEXT_TO_NOTHING = 1 << 16  # bytes
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds
_AGAIN = (408, 425, 429)  # of the statuses below 500, those that may pass
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Published:
    """A file as its publisher describes it.

    Attributes:
        name: the file's name.
        urls: where it is: servers that are tried in this order.
        checksum: ``"md5:..."`` or ``"sha256:..."``, hexadecimal.
        size: bytes, where that is known.
        most: the most bytes that it may have, where it is not.
    """

    name: str
    urls: tuple[str, ...]
    checksum: str
    size: int | None = None
    most: int = 1 << 40

    def addresses(self) -> list[str]:
        """The user's own mirrors (folders in ``BPPSA_MIRRORS``, apart by blanks), then `urls`."""
        own = os.environ.get("BPPSA_MIRRORS", "").split()
        return [*(f"{folder.rstrip('/')}/{self.name}" for folder in own), *self.urls]


class _Damaged(ValueError):
    """What arrived is not the file."""


def download(file: Published, folder: Path) -> Path:
    """Downloads a file, unless it is there.

    What has arrived lies in ``<name>.part`` until it is whole and has the checksum; a later call,
    another attempt of this one, or another server goes on from there.

    Args:
        file: what to download.
        folder: where it goes; it is made.

    Returns:
        Its path.

    Raises:
        OSError: if no server serves it (the message says how to go on by hand), or the folder
            cannot be written; what has arrived is kept.
        ValueError: if each server has another file (it is removed, but not what arrived in earlier
            calls), or the file that is there already is another one (it is kept).
    """
    path = folder / file.name
    if path.exists():
        if wrong := _wrong(path, file.checksum):
            raise ValueError(f"{path} {wrong}; remove it to download it again")
        return path
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    _keep_longer(_before(part), part)  # of a process that was killed
    errors: dict[str, Exception] = {}
    for url in file.addresses():
        try:
            _download_from(url, part, file)
        except NotWritten as error:
            raise OSError(
                error.errno,
                f"{path} cannot be written ({error.strerror}); make room there, give write "
                "permission, or pass another folder; what has arrived is kept",
            ) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            errors[url] = error
        else:
            os.replace(part, path)
            return path
    damaged = all(isinstance(error, _Damaged) for error in errors.values())
    kind = ValueError if damaged else OSError
    raise kind(_what_to_do(file, path, part, errors)) from [*errors.values()][-1]


def _download_from(url: str, part: Path, file: Published) -> None:
    """Makes `part` the whole file."""
    resumed = _size(part)
    _until_whole(url, part, file)
    if not (wrong := _wrong(part, file.checksum)):
        return
    if resumed:  # the damage may be in what was there before, or in this server's answer
        wrong = _anew(url, part, resumed, file)
    else:
        part.unlink()
    if wrong:
        raise _Damaged(
            f"what arrived {wrong}: it was damaged on its way or is another file; removed"
        )


def _anew(url: str, part: Path, resumed: int, file: Published) -> str | None:
    """Makes `part` the whole file, by this server alone; what is wrong with that, or None.

    What had arrived before, `resumed` bytes, is kept until it is known that it was no good: a
    login page, which the network sends for any file, would cost gigabytes.
    """
    before = _before(part)
    os.truncate(part, resumed)
    os.replace(part, before)
    try:
        _until_whole(url, part, file)
    except BaseException:
        _keep_longer(before, part)
        raise
    if wrong := _wrong(part, file.checksum):
        os.replace(before, part)
    else:
        before.unlink()
    return wrong


def _before(part: Path) -> Path:
    return part.with_name(f"{part.name}.before")


def _keep_longer(before: Path, part: Path) -> None:
    if _size(before) > _size(part):
        os.replace(before, part)
    else:
        before.unlink(missing_ok=True)


def _until_whole(url: str, part: Path, file: Published) -> None:
    failures = 0
    with tqdm(
        desc=file.name,
        total=file.size,
        initial=_size(part),
        unit="B",
        unit_scale=True,
        disable=None,  # where nobody looks
    ) as bar:

        def progress(have: int, total: int | None) -> None:
            bar.total = total
            bar.update(have - bar.n)

        while True:
            before = _size(part)
            try:
                if fetch_rest(url, part, file.size, file.size or file.most, progress):
                    return
                error: Exception = ConnectionError("the connection was closed before the end")
            except (OSError, http.client.HTTPException) as found:
                if not _may_pass(url, found):
                    raise
                error = found
            failures = 0 if _size(part) >= before + _NEXT_TO_NOTHING else failures + 1
            if failures == (_ATTEMPTS_UNREACHED if _nobody_answers(error) else _ATTEMPTS):
                raise error
            sleep(_pause(error, failures))


def _may_pass(url: str, error: Exception) -> bool:
    if isinstance(error, urllib.error.HTTPError):
        return error.code >= 500 or error.code in _AGAIN
    lasting = isinstance(error, Refused | NotWritten | http.client.InvalidURL)
    return not lasting and not url.startswith("file:")


def _nobody_answers(error: Exception) -> bool:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return isinstance(reason, socket.gaierror | ConnectionRefusedError)


def _pause(error: Exception, failures: int) -> float:
    """Seconds: what the server asks for, or twice as long after each failure."""
    if isinstance(error, urllib.error.HTTPError):
        with contextlib.suppress(TypeError, ValueError):  # absent, or a date
            return min(max(float(error.headers["Retry-After"]), 0.0), _LONGEST_PAUSE)
    return min(_FIRST_PAUSE * 2 ** (failures - 1), _LONGEST_PAUSE) if failures else 0.0


def _wrong(path: Path, checksum: str) -> str | None:
    """What is wrong with a file's checksum; None if nothing."""
    kind, _, wanted = checksum.partition(":")
    with open(path, "rb") as file:
        digest = hashlib.new(kind, usedforsecurity=False)
        while block := file.read(_BLOCK):
            digest.update(block)
    if digest.hexdigest() == wanted.lower():
        return None
    return f"({_size(path)} bytes) has the {kind.upper()} sum {digest.hexdigest()}; wanted {wanted}"


def _what_to_do(file: Published, path: Path, part: Path, errors: dict[str, Exception]) -> str:
    kind, _, wanted = file.checksum.partition(":")
    lines = [
        f"{file.name} could not be downloaded:",
        *(f"  {url}: {_in_words(error)}" for url, error in errors.items()),
    ]
    if have := _size(part):
        lines.append(f"{have} bytes have arrived in {part}; another call asks for the rest only.")
    lines.append(
        "Without a connection here: download one of these elsewhere, check that its "
        f"{kind.upper()} sum is {wanted}, put it at {path.absolute()}, and call again. "
        "BPPSA_MIRRORS names folders that are asked first, such as file:///data."
    )
    return "\n".join(lines)


def _in_words(error: Exception) -> str:
    if _nobody_answers(error):
        return f"no server answers, is this machine offline? ({error})"
    return str(error) or type(error).__name__


def _size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0

"""Extracts zip archives that nobody vouches for: all of it into one folder, or nothing.

Every entry is checked before the first is written; what is written goes into a new folder of its
own, which takes the final name when it is whole.
"""

import os
import shutil
import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from .temporary import beside

_MOST_ENTRIES = 100_000
_ENCRYPTED = 0x1


def extract_zip(archive: Path, folder: Path, most_bytes: int) -> None:
    """Extracts the archive's folder of the same name as `folder`.

    Args:
        archive: a zip file.
        folder: where its content goes; must not exist. What the archive holds beside a folder of
            this name is left out.
        most_bytes: the most that all files may take.

    Raises:
        ValueError: if the archive is damaged, larger than `most_bytes`, or holds a path that is
            absolute or leaves its folder, a link or another special file, an encrypted file, or
            two entries of one name. Nothing is then left behind.
        OSError: if the folder cannot be written.
    """
    try:
        with zipfile.ZipFile(archive) as file:
            entries = _checked(file, folder.name, most_bytes)
            with beside(folder, f"{folder.name}.") as temporary:
                temporary.mkdir()
                for name, entry in entries.items():
                    _write(file, entry, temporary.joinpath(*name.parts[1:]))
                os.replace(temporary, folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise ValueError(f"{archive} is no whole zip archive: {error}") from error
    except _Refused as error:
        raise ValueError(f"{archive} is not extracted: {error}") from error


class _Refused(Exception):
    pass


def _checked(
    file: zipfile.ZipFile, folder: str, most_bytes: int
) -> dict[PurePosixPath, zipfile.ZipInfo]:
    """The entries by path, each harmless."""
    entries: dict[PurePosixPath, zipfile.ZipInfo] = {}
    listed = file.infolist()
    if len(listed) > _MOST_ENTRIES:
        raise _Refused(f"it holds {len(listed)} entries; wanted at most {_MOST_ENTRIES}")
    for entry in listed:
        path = _checked_path(entry)
        if path.parts[0] != folder:
            continue
        if path in entries:
            raise _Refused(f"it holds two entries of the name {entry.filename!r}")
        entries[path] = entry
    for path, entry in entries.items():
        if not all(_is_folder(entries, above) for above in path.parents):
            raise _Refused(f"its entry {entry.filename!r} lies in a file")
    size = sum(entry.file_size for entry in entries.values())
    if size > most_bytes:
        raise _Refused(f"its files take {size} bytes; wanted at most {most_bytes}")
    if not entries or not _is_folder(entries, PurePosixPath(folder)):
        raise _Refused(f"it does not hold the folder {folder!r}")
    return entries


def _is_folder(entries: dict[PurePosixPath, zipfile.ZipInfo], path: PurePosixPath) -> bool:
    return path not in entries or entries[path].is_dir()


def _checked_path(entry: zipfile.ZipInfo) -> PurePosixPath:
    # orig_filename is what the archive says: zipfile cuts filename at a zero byte, and on Windows
    # turns backslashes.
    name = entry.orig_filename
    path = PurePosixPath(name)
    if path.is_absolute() or "\\" in name or "\0" in name or ":" in name:
        raise _Refused(f"its entry {name!r} is no relative path")
    if ".." in path.parts or not path.parts:
        raise _Refused(f"its entry {name!r} leaves its folder")
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _Refused(f"its entry {name!r} is a link or another special file")
    if entry.flag_bits & _ENCRYPTED:
        raise _Refused(f"its entry {name!r} is encrypted")
    return path


def _write(file: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> None:
    """Writes one entry: zipfile gives no more than the size counted, and checks the CRC."""
    if entry.is_dir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with file.open(entry) as source, open(path, "xb") as target:
        shutil.copyfileobj(source, target)

"""Archives that mean harm, or are damaged."""

import os
import stat
import struct
import time
import zipfile
from pathlib import Path

import pytest

from bppsa_lightning.datasets.archives import extract_zip


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def link(name):
    entry = zipfile.ZipInfo(name)
    entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return entry


def archive(path, entries):
    """A zip of (name or ZipInfo, content); names go in as they are, whatever they say."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for entry, content in entries:
            if isinstance(entry, str):
                info = zipfile.ZipInfo("x")
                info.filename = entry
                entry = info
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, content)
    return path


GOOD = [("data/", b""), ("data/a.txt", b"a"), ("data/b/c.txt", b"c")]
HOSTILE = {
    "absolute": ([("/tmp/bppsa-evil", b"x")], "no relative path"),
    "absolute in the folder": ([("//data/a", b"x")], "no relative path"),
    "drive": ([("C:/evil", b"x")], "no relative path"),
    "stream": ([("data/a:evil", b"x")], "no relative path"),
    "backslashes": ([("data\\..\\..\\evil", b"x")], "no relative path"),
    "dots": ([("../evil", b"x")], "leaves its folder"),
    "dots below": ([("data/../../evil", b"x")], "leaves its folder"),
    "dots at the end": ([("data/b/..", b"x")], "leaves its folder"),
    "link": ([(link("data/evil"), b"/etc/passwd")], "a link or another special file"),
    "through a link": (
        [(link("data/out"), b".."), ("data/out/evil", b"x")],
        "a link or another special file",
    ),
    "twice": ([("data/a", b"x"), ("data/a", b"y")], "two entries of the name"),
    "twice in other words": ([("data/a", b"x"), ("data/./a", b"y")], "two entries of the name"),
    "below a file": ([("data/a.txt/b/evil", b"x")], "lies in a file"),
    "too large": ([("data/a", bytes(2_000_000))], "take 2000002 bytes; wanted at most 1000000"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("place", ["first", "last"])
def test_hostile_archives_write_nothing(tmp_path, kind, place):
    entries, reason = HOSTILE[kind]
    home = tmp_path / "home"
    home.mkdir()
    entries = [*entries, *GOOD] if place == "first" else [*GOOD, *entries]
    path = archive(home / "data.zip", entries)
    with pytest.raises(ValueError, match=f"data.zip is not extracted: .*{reason}"):
        extract_zip(path, home / "data", 1_000_000)
    assert names(tmp_path) == ["home"] and names(home) == ["data.zip"]
    assert not Path("/tmp/bppsa-evil").exists()


def damaged(path, damage):
    path.write_bytes(damage(bytearray(path.read_bytes())))
    return path


def lie_about_the_size(content):
    """The entry claims ten bytes, in both places where a zip file says it."""
    for magic, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        place = content.index(magic) + offset
        content[place : place + 4] = struct.pack("<I", 10)
    return content


def flag_as_encrypted(content):
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(magic) + offset] |= 1
    return content


def flip_data(content):
    content[40] ^= 255
    return content


@pytest.mark.parametrize(
    "damage, reason",
    [
        (lambda content: b"", "no whole zip archive"),
        (lambda content: b"no archive", "no whole zip archive"),
        (lambda content: content[:-30], "no whole zip archive"),
        (lie_about_the_size, "no whole zip archive"),
        (flip_data, "no whole zip archive"),
        (flag_as_encrypted, "is encrypted"),
    ],
    ids=["empty", "text", "cut off", "bomb that lies", "damaged", "encrypted"],
)
def test_damaged_archives_leave_nothing(tmp_path, damage, reason):
    path = archive(tmp_path / "data.zip", [("data/a", bytes(100_000)), *GOOD])
    with pytest.raises(ValueError, match=reason):
        extract_zip(damaged(path, damage), tmp_path / "data", 1_000_000)
    assert names(tmp_path) == ["data.zip"]


def test_good_archives_are_extracted_without_what_lies_beside(tmp_path):
    extra = [("__MACOSX/._a", b"x"), ("readme", b"x"), ("data/empty/", b"")]
    path = archive(tmp_path / "data.zip", [*GOOD, *extra])
    extract_zip(path, tmp_path / "data", 1_000_000)
    assert names(tmp_path) == ["data", "data.zip"]
    assert names(tmp_path / "data") == ["a.txt", "b", "empty"]
    assert (tmp_path / "data" / "b" / "c.txt").read_bytes() == b"c"


def test_archives_without_the_folder_and_folders_in_the_way(tmp_path):
    path = archive(tmp_path / "data.zip", [("other/a", b"x")])
    with pytest.raises(ValueError, match="does not hold the folder 'data'"):
        extract_zip(path, tmp_path / "data", 1_000_000)
    archive(path, [("data", b"a file")])
    with pytest.raises(ValueError, match="does not hold the folder 'data'"):
        extract_zip(path, tmp_path / "data", 1_000_000)
    archive(path, GOOD)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").write_text("mine")
    with pytest.raises(OSError):
        extract_zip(path, tmp_path / "data", 1_000_000)
    assert names(tmp_path) == ["data", "data.zip"] and names(tmp_path / "data") == ["mine"]


def test_what_a_killed_extraction_left_is_removed_after_a_day(tmp_path):
    path = archive(tmp_path / "data.zip", GOOD)
    for age in (0, 2 * 86400):
        left = tmp_path / f".data.{age}.tmp"
        (left / "b").mkdir(parents=True)
        os.utime(left, (time.time() - age,) * 2)
    extract_zip(path, tmp_path / "data", 1_000_000)
    assert names(tmp_path) == [".data.0.tmp", "data", "data.zip"]

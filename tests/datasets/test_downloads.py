"""Downloads from a server of this machine, cut off and resumed; archives that mean harm."""

import hashlib
import http.server
import io
import os
import re
import stat
import struct
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bppsa_lightning.datasets import IRMASDataModule, downloads, irmas_archive
from bppsa_lightning.datasets.archives import extract_zip
from bppsa_lightning.datasets.downloads import download

CONTENT = np.random.default_rng(0).bytes(300_000)


class Handler(http.server.BaseHTTPRequestHandler):
    """Sends `server.content`, at most `server.cuts.pop(0)` bytes of it before the line is dead."""

    def do_GET(self):
        asked = self.headers["Range"]
        self.server.asked.append(asked)
        content, start = self.server.content, 0
        if self.server.status:
            return self.send_error(self.server.status)
        if asked and self.server.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
            if start >= len(content):
                return self.send_error(416)
            self.send_response(206)
            start += self.server.shift
            last = len(content) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        cut = self.server.cuts.pop(0) if self.server.cuts else len(content)
        self.wfile.write(content[start:][:cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.content, server.asked, server.cuts = CONTENT, [], []
        server.ranges, server.status, server.shift = True, None, 0
        server.url = f"http://127.0.0.1:{server.server_port}/data.zip?download=1"
        server.md5 = hashlib.md5(CONTENT).hexdigest()
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# Downloads


def test_download_and_no_second_one(server, tmp_path):
    path = tmp_path / "below" / "data.zip"
    for _ in range(2):
        download(server.url, path, server.md5)
        assert path.read_bytes() == CONTENT and names(path.parent) == ["data.zip"]
    assert server.asked == [None]


def test_a_connection_that_breaks_is_taken_up_again(server, tmp_path):
    server.cuts = [100_000, 1, 0, 150_000]
    download(server.url, tmp_path / "data.zip", server.md5)
    assert (tmp_path / "data.zip").read_bytes() == CONTENT
    starts = [None, "bytes=100000-", "bytes=100001-", "bytes=100001-", "bytes=250001-"]
    assert server.asked == starts


def test_a_download_that_was_given_up_is_resumed_by_the_next_call(server, tmp_path):
    server.cuts = [70_000] + [0] * downloads._ATTEMPTS
    with pytest.raises(OSError, match="70000 bytes have arrived in .*data.zip.part.*rest only"):
        download(server.url, tmp_path / "data.zip", server.md5)
    assert names(tmp_path) == ["data.zip.part"]
    server.asked.clear()
    download(server.url, tmp_path / "data.zip", server.md5)
    assert server.asked == ["bytes=70000-"] and names(tmp_path) == ["data.zip"]
    assert (tmp_path / "data.zip").read_bytes() == CONTENT


def test_a_server_without_ranges_sends_all_again(server, tmp_path):
    server.ranges, server.cuts = False, [100_000]
    download(server.url, tmp_path / "data.zip", server.md5)
    assert (tmp_path / "data.zip").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-"]


def test_a_part_that_is_whole_takes_its_place(server, tmp_path):
    (tmp_path / "data.zip.part").write_bytes(CONTENT)
    download(server.url, tmp_path / "data.zip", server.md5)
    assert (tmp_path / "data.zip").read_bytes() == CONTENT


@pytest.mark.parametrize("part", [b"x" * 1000, b"x" * 300_000, CONTENT + b"x"])
def test_a_part_of_something_else_is_removed_and_the_next_call_succeeds(server, tmp_path, part):
    (tmp_path / "data.zip.part").write_bytes(part)
    with pytest.raises(ValueError, match=f"has the MD5 sum .*wanted {server.md5}.*try again"):
        download(server.url, tmp_path / "data.zip", server.md5)
    assert names(tmp_path) == []
    download(server.url, tmp_path / "data.zip", server.md5)
    assert names(tmp_path) == ["data.zip"]


def test_another_file_on_the_server_is_refused(server, tmp_path):
    server.content = CONTENT[::-1]
    with pytest.raises(ValueError, match=f"300000 bytes, of {re.escape(server.url)}.*MD5"):
        download(server.url, tmp_path / "data.zip", server.md5)
    assert names(tmp_path) == []


def test_a_file_of_the_users_is_not_removed(server, tmp_path):
    (tmp_path / "data.zip").write_bytes(b"mine")
    with pytest.raises(ValueError, match="has the MD5 sum .*remove it to download it again"):
        download(server.url, tmp_path / "data.zip", server.md5)
    assert (tmp_path / "data.zip").read_bytes() == b"mine" and server.asked == []


@pytest.mark.parametrize("status, tries", [(404, 1), (403, 1), (503, downloads._ATTEMPTS)])
def test_a_server_that_refuses(server, tmp_path, status, tries):
    server.status = status
    with pytest.raises(OSError, match=f"could not be downloaded .HTTP Error {status}.*0 bytes"):
        download(server.url, tmp_path / "data.zip", server.md5)
    assert len(server.asked) == tries and names(tmp_path) == []


def test_a_server_that_sends_another_part_than_asked(server, tmp_path):
    server.cuts, server.shift = [1000], 7
    with pytest.raises(OSError, match="the server sent bytes from 1007 on; asked for 1000"):
        download(server.url, tmp_path / "data.zip", server.md5)
    assert (tmp_path / "data.zip.part").read_bytes() == CONTENT[:1000]


def test_no_server(tmp_path):
    with pytest.raises(OSError, match="http://127.0.0.1:9/a could not be downloaded.*refused"):
        download("http://127.0.0.1:9/a", tmp_path / "a", "0" * 32)


# Archives


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


# IRMAS


def published(server, monkeypatch, tmp_path):
    """Serves an archive of the published layout in the place of the published one."""
    from support.irmas_corpus import write_corpus

    root = tmp_path / "published" / "IRMAS-TrainingData"
    write_corpus(root, ("cel", "org"), recordings=2)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for path in sorted(root.rglob("*")):
            file.write(path, path.relative_to(root.parent))
    server.content = buffer.getvalue()
    monkeypatch.setattr(irmas_archive, "URL", server.url)
    monkeypatch.setattr(irmas_archive, "MD5", hashlib.md5(server.content).hexdigest())


def test_irmas_is_downloaded_if_asked_for_and_once(server, tmp_path, monkeypatch):
    pytest.importorskip("librosa", reason="the audio extra brings librosa")
    published(server, monkeypatch, tmp_path)
    settings = {"val_split": 0.25, "test_split": 0.25, "prepare_workers": 1}
    folder = tmp_path / "data"
    with pytest.raises(FileNotFoundError, match="download=True"):
        IRMASDataModule(folder, **settings).prepare_data()
    assert server.asked == []
    server.cuts = [50_000]
    for _ in range(2):
        data = IRMASDataModule(folder, download=True, **settings)
        data.prepare_data()
        data.setup()
        assert [len(data._datasets[name]) for name in ("train", "val", "test")] == [2, 1, 1]
    assert server.asked == [None, "bytes=50000-"]
    left = [name for name in names(folder) if not name.endswith((".lock", ".mfcc"))]
    assert left == ["IRMAS-TrainingData"]


def test_the_published_archive():
    assert re.fullmatch(r"https://zenodo.org/record/1290750/.*download=1", irmas_archive.URL)
    assert irmas_archive.MD5 == "4fd9f5ed5a18d8e2687e6360b5f60afe"
    assert irmas_archive.MOST_BYTES > 6705 * 529_244

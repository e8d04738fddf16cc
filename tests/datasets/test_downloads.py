"""Downloads from servers of this machine that break, stall, lie or refuse; and runs that are
killed."""

import errno
import hashlib
import os
import re
import signal
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from support import forked
from support.broken_server import BrokenServer

from bppsa_lightning.datasets import downloads, http_parts
from bppsa_lightning.datasets.downloads import Published, download

CONTENT = np.random.default_rng(0).bytes(300_000)


@pytest.fixture
def server():
    with BrokenServer(CONTENT).running() as server:
        yield server


@pytest.fixture
def mirror():
    with BrokenServer(CONTENT).running() as server:
        yield server


@pytest.fixture(autouse=True)
def pauses(monkeypatch):
    """The seconds that a download would have waited."""
    waited = []
    monkeypatch.setattr(downloads, "sleep", waited.append)
    return waited


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(http_parts, "_TIMEOUT", 0.2)


def published(*servers, **settings):
    checksum = f"md5:{hashlib.md5(CONTENT).hexdigest()}"
    return Published("data.zip", tuple(s.url() for s in servers), checksum, **settings)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def arrived(file, folder):
    path = download(file, folder)
    return path.read_bytes() == CONTENT and names(folder) == ["data.zip"]


# --- one server ----------------------------------------------------------------------------------


def test_download_and_no_second_one(server, tmp_path):
    for _ in range(2):
        assert arrived(published(server), tmp_path / "below")
    assert server.asked == [None]


def test_a_connection_that_breaks_is_taken_up_again(server, tmp_path, pauses):
    server.cuts = [100_000, 1, 0, 150_000]
    assert arrived(published(server), tmp_path)
    starts = [None, "bytes=100000-", "bytes=100001-", "bytes=100001-", "bytes=250001-"]
    assert server.asked == starts
    assert pauses == [0, 1, 2, 0]  # seconds; none after one that brought much


def test_a_download_that_was_given_up_is_resumed_by_the_next_call(server, tmp_path):
    server.cuts = [70_000] + [0] * downloads._ATTEMPTS
    with pytest.raises(OSError, match="70000 bytes have arrived in .*data.zip.part.*rest only"):
        download(published(server), tmp_path)
    assert names(tmp_path) == ["data.zip.part"]
    server.asked.clear()
    assert arrived(published(server), tmp_path)
    assert server.asked == ["bytes=70000-"]


def test_a_server_that_stalls_is_asked_for_the_rest(server, tmp_path, impatient):
    server.stalls = [150_000]
    assert arrived(published(server), tmp_path)
    assert server.asked == [None, "bytes=150000-"]


def test_a_server_that_trickles_is_left_for_the_next(
    server, mirror, tmp_path, impatient, monkeypatch
):
    monkeypatch.setattr(http_parts, "_SLOWEST", 100_000)
    server.trickle = 0.05  # 20,000 bytes a second, and never a pause as long as the time-out
    assert arrived(published(server, mirror), tmp_path)
    assert len(server.asked) == downloads._ATTEMPTS
    assert len(mirror.asked) == 1 and int(re.search(r"\d+", mirror.asked[0])[0]) > 10_000


def test_a_server_without_ranges_sends_all_again_and_nothing_is_lost(server, tmp_path):
    server.ranges, server.cuts = False, [100_000, 50_000, 200_000]
    sizes = []
    fetch = http_parts.fetch_rest

    def fetch_and_look(url, part, *rest):
        whole = fetch(url, part, *rest)
        sizes.append(part.stat().st_size)
        return whole

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(downloads, "fetch_rest", fetch_and_look)
        assert arrived(published(server), tmp_path)
    assert sizes == [100_000, 100_000, 200_000, 300_000]


def test_a_part_that_is_whole_takes_its_place(server, tmp_path):
    for size in (None, len(CONTENT)):
        (tmp_path / "data.zip").unlink(missing_ok=True)
        (tmp_path / "data.zip.part").write_bytes(CONTENT)
        assert arrived(published(server, size=size), tmp_path)
    assert server.asked == ["bytes=300000-"]  # who knows the size need not ask


@pytest.mark.parametrize("part", [b"x" * 1000, b"x" * 300_000, CONTENT + b"x"])
@pytest.mark.parametrize("size", [None, len(CONTENT)])
def test_a_part_of_something_else_is_downloaded_anew(server, tmp_path, part, size):
    (tmp_path / "data.zip.part").write_bytes(part)
    assert arrived(published(server, size=size), tmp_path)


def test_another_file_on_the_server_is_refused(server, tmp_path):
    server.content = CONTENT[::-1]
    reason = f"{re.escape(server.url())}: what arrived .300000 bytes. has the MD5 sum"
    with pytest.raises(ValueError, match=reason):
        download(published(server), tmp_path)
    assert names(tmp_path) == [] and server.asked == [None]


def test_a_file_of_the_users_is_not_removed(server, tmp_path):
    (tmp_path / "data.zip").write_bytes(b"mine")
    with pytest.raises(ValueError, match="has the MD5 sum .*remove it to download it again"):
        download(published(server), tmp_path)
    assert (tmp_path / "data.zip").read_bytes() == b"mine" and server.asked == []


@pytest.mark.parametrize(
    "status, tries", [(404, 1), (403, 1), (500, downloads._ATTEMPTS), (429, downloads._ATTEMPTS)]
)
def test_a_server_that_refuses(server, tmp_path, status, tries):
    server.statuses = [status] * 20
    with pytest.raises(OSError, match=f"could not be downloaded:.*\n.*HTTP Error {status}"):
        download(published(server), tmp_path)
    assert len(server.asked) == tries and names(tmp_path) == []


def test_pauses_grow_or_are_what_the_server_asks_for(server, tmp_path, pauses):
    server.statuses = [503] * 4
    assert arrived(published(server), tmp_path)
    assert pauses == [1, 2, 4, 8]
    (tmp_path / "data.zip").unlink()
    pauses.clear()
    for server.retry_after in ("7", "100000", "Wed, 21 Oct 2026 07:28:00 GMT", "-3"):
        server.statuses = [503]
        assert arrived(published(server), tmp_path)
        (tmp_path / "data.zip").unlink()
    assert pauses == [7, 60, 1, 0]


def test_a_server_that_sends_another_part_than_asked(server, tmp_path):
    server.cuts, server.shift = [1000], 7
    with pytest.raises(OSError, match="the server sent bytes from 1007 on; asked for 1000"):
        download(published(server), tmp_path)
    assert (tmp_path / "data.zip.part").read_bytes() == CONTENT[:1000]


def test_who_knows_the_size_is_not_told_that_there_is_no_more(server, mirror, tmp_path):
    server.cuts, server.statuses = [200_000], [None] + [416] * 20
    assert arrived(published(server, mirror, size=len(CONTENT)), tmp_path)
    assert mirror.asked == ["bytes=200000-"]


@pytest.mark.parametrize("claims", [1000, 299_999, 300_001, 10**15])
def test_who_knows_the_size_believes_no_other(server, mirror, tmp_path, claims):
    server.claims = claims
    with pytest.raises(OSError, match=f"a file of {claims} bytes; wanted 300000"):
        download(published(server, size=len(CONTENT)), tmp_path)
    assert names(tmp_path) == []
    assert arrived(published(server, mirror, size=len(CONTENT)), tmp_path)


@pytest.mark.parametrize("claims", [1000, 299_999, 300_001, "", 10**6])
def test_lengths_that_are_lies_do_not_make_a_file(server, mirror, tmp_path, claims):
    """Without a known size the checksum decides; where all arrived, a lie does no harm."""
    server.claims = claims
    assert arrived(published(server, mirror), tmp_path)
    assert len(mirror.asked) == (claims in (1000, 299_999))


@pytest.mark.parametrize("claims", ["", 10**9])
def test_no_more_is_taken_than_the_file_may_have(server, tmp_path, claims):
    server.content, server.claims = bytes(10_000_000), claims
    with pytest.raises(OSError, match="more than 400000 bytes|wanted at most 400000"):
        download(published(server, most=400_000), tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 400_000


# --- several servers -----------------------------------------------------------------------------


def test_mirrors_are_tried_in_order_and_go_on_where_the_one_before_stopped(
    server, mirror, tmp_path
):
    server.cuts = [120_000] + [0] * 20
    assert arrived(published(server, mirror), tmp_path)
    assert mirror.asked == ["bytes=120000-"]


@pytest.mark.parametrize("size", [None, len(CONTENT)])
def test_a_mirror_with_another_file_spoils_nothing(server, mirror, tmp_path, size):
    server.content = CONTENT[::-1]
    assert arrived(published(server, mirror, size=size), tmp_path)
    assert mirror.asked == [None]


def test_half_of_another_file_is_not_blamed_on_the_next_mirror(server, mirror, tmp_path):
    server.content, server.cuts = CONTENT[::-1], [150_000] + [0] * 20
    assert arrived(published(server, mirror), tmp_path)
    assert mirror.asked == ["bytes=150000-", None]


def test_each_server_and_its_reason_is_named(server, mirror, tmp_path):
    server.statuses, mirror.content = [404], b"x" * 300_000
    with pytest.raises(OSError) as error:
        download(published(server, mirror), tmp_path)
    lines = str(error.value).splitlines()
    assert re.search(f"{re.escape(server.url())}: .*404", lines[1])
    assert re.search(f"{re.escape(mirror.url())}: .*MD5", lines[2])


def test_the_users_own_mirrors_come_first(server, mirror, tmp_path, monkeypatch):
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "data.zip").write_bytes(CONTENT)
    own = f"http://127.0.0.1:{mirror.server_port}/copies/"
    monkeypatch.setenv("BPPSA_MIRRORS", f"file:///nowhere {own} http://127.0.0.1:9")
    assert arrived(published(server), tmp_path / "first")
    assert server.asked == [] and mirror.paths == {"/copies/data.zip": 1}
    monkeypatch.setenv("BPPSA_MIRRORS", folder.as_uri())
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "data.zip.part").write_bytes(CONTENT[:1000])
    assert arrived(published(server), tmp_path / "second")
    assert server.asked == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/a", "http://does-not-exist.invalid/a"])
def test_offline_the_message_says_how_to_go_on_by_hand(tmp_path, url, pauses):
    file = Published("a", (url,), "sha256:" + "0" * 64)
    with pytest.raises(OSError) as error:
        download(file, tmp_path)
    message = str(error.value)
    assert "is this machine offline?" in message and url in message
    assert f"SHA256 sum is {'0' * 64}" in message and str(tmp_path / "a") in message
    assert len(pauses) == 1  # it does not keep anyone waiting


@pytest.mark.parametrize("url", ["nonsense", "http://127.0.0.1:x/a", "ftp2://x/a", "http://a b/c"])
def test_addresses_that_are_none(tmp_path, server, url, monkeypatch):
    monkeypatch.setenv("BPPSA_MIRRORS", url)
    assert arrived(published(server), tmp_path)


# --- the folder ----------------------------------------------------------------------------------


def test_a_folder_without_room_is_named_at_once(server, tmp_path, monkeypatch):
    monkeypatch.setattr(http_parts.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(OSError, match="data.zip cannot be written .1000 bytes are free, 300000"):
        download(published(server), tmp_path)
    assert len(server.asked) == 1


def test_a_disk_that_fills_up_is_not_blamed_on_the_server(server, mirror, tmp_path, monkeypatch):
    class Full:
        def write(self, block):
            raise OSError(errno.ENOSPC, "No space left on device")

    class Opened:
        __enter__ = lambda self: Full()  # noqa: E731
        __exit__ = lambda self, *_: None  # noqa: E731

    monkeypatch.setattr(http_parts, "_opened", lambda part: Opened())
    with pytest.raises(OSError, match="cannot be written .No space left.*pass another") as error:
        download(published(server, mirror), tmp_path)
    assert error.value.errno == errno.ENOSPC and len(server.asked + mirror.asked) == 1


def test_a_part_that_is_a_folder(server, tmp_path):
    (tmp_path / "data.zip.part").mkdir()
    with pytest.raises(OSError, match="cannot be written .Is a directory"):
        download(published(server, size=len(CONTENT)), tmp_path)


def test_progress_is_shown_where_someone_looks(server, tmp_path, monkeypatch):
    seen = []

    class Bar(downloads.tqdm):
        def __init__(self, *args, **settings):
            assert settings["disable"] is None  # silent without a terminal
            super().__init__(*args, **{**settings, "disable": False})

        def update(self, n):
            super().update(n)
            seen.append((self.n, self.total))

    monkeypatch.setattr(downloads, "tqdm", Bar)
    server.cuts = [100_000]
    assert arrived(published(server), tmp_path)
    assert seen == sorted(seen) and seen[-1] == (300_000, 300_000)


# --- processes -----------------------------------------------------------------------------------

SCRIPT = """
import sys
from pathlib import Path
from bppsa_lightning.datasets.downloads import Published, download

url, checksum, folder = sys.argv[1:]
download(Published("data.zip", (url,), checksum), Path(folder))
"""


@pytest.mark.slow
def test_a_process_that_is_killed_in_the_middle_is_resumed(server, tmp_path):
    script, part = tmp_path / "script.py", tmp_path / "data" / "data.zip.part"
    script.write_text(SCRIPT)
    server.trickle = 0.002
    process = forked.start(
        tmp_path / "out", script, server.url(), server.checksum(), tmp_path / "data"
    )
    try:
        end = time.monotonic() + 60
        while not (part.exists() and part.stat().st_size > 50_000):
            assert process.exitcode is None and time.monotonic() < end
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    finally:
        forked.kill(process)
    have = part.stat().st_size
    assert 50_000 < have < 300_000 and CONTENT.startswith(part.read_bytes())
    server.trickle = None
    assert arrived(published(server), tmp_path / "data")
    assert server.asked == [None, f"bytes={have}-"]


def test_of_several_at_once_all_get_the_file(server, tmp_path):
    """Who calls for the same folder at once takes a lock (`locked`); without, other folders."""
    server.cuts = [100_000] * 3
    failed = []

    def one(number):
        try:
            assert arrived(published(server), tmp_path / str(number))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed

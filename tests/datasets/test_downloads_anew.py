"""What had arrived, where the rest that a server sends does not belong to it."""

import hashlib

import numpy as np
import pytest
from support.broken_server import BrokenServer

from bppsa_lightning.datasets import downloads
from bppsa_lightning.datasets.downloads import Published, download

CONTENT = np.random.default_rng(0).bytes(300_000)
PAGE = b"<html>please log in</html>"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(downloads, "sleep", lambda seconds: None)
    with BrokenServer(CONTENT).running() as server:
        yield server


def published(server):
    return Published("data.zip", (server.url(),), f"md5:{hashlib.md5(CONTENT).hexdigest()}")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def arrived(file, folder):
    return download(file, folder).read_bytes() == CONTENT and names(folder) == ["data.zip"]


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("page", [PAGE, PAGE.ljust(len(CONTENT))])
def test_a_login_page_does_not_cost_what_had_arrived(server, tmp_path, ranges, page):
    server.content, server.ranges = page, ranges
    part = tmp_path / "data.zip.part"
    part.write_bytes(CONTENT[:200_000])
    with pytest.raises(ValueError, match="200000 bytes have arrived"):
        download(published(server), tmp_path)
    assert part.read_bytes() == CONTENT[:200_000] and names(tmp_path) == [part.name]
    server.content, server.ranges, server.asked = CONTENT, True, []
    assert arrived(published(server), tmp_path)
    assert server.asked == ["bytes=200000-"]


def test_a_second_answer_that_breaks_off_leaves_the_longer_part(server, tmp_path):
    part = tmp_path / "data.zip.part"
    for bytes_of_it, kept in ((50_000, b"x" * 100_000), (150_000, CONTENT[:150_000])):
        part.write_bytes(b"x" * 100_000)
        server.cuts = [300_000, bytes_of_it] + [0] * 20
        with pytest.raises(OSError, match="could not be downloaded"):
            download(published(server), tmp_path)
        assert part.read_bytes() == kept and names(tmp_path) == [part.name]


def test_a_process_that_was_killed_in_a_second_answer_leaves_the_longer_part(server, tmp_path):
    (tmp_path / "data.zip.part.before").write_bytes(CONTENT[:200_000])
    (tmp_path / "data.zip.part").write_bytes(b"x")
    assert arrived(published(server), tmp_path)
    assert server.asked == ["bytes=200000-"]

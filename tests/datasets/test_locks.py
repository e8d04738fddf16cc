"""Locks: where none can be had, the block runs without."""

import pytest

from bppsa_lightning.datasets import locks


def test_a_folder_in_which_no_file_can_be_made(tmp_path, monkeypatch):
    """/proc says that the file is not there, which filelock takes for another's doing."""

    class Waits:
        def __init__(self, path):
            pytest.fail("it would wait for ever")

    def refuses(self, *_, **__):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(locks, "FileLock", Waits)
    monkeypatch.setattr(locks.Path, "touch", refuses)
    with locks.locked(tmp_path / "x"):
        pass

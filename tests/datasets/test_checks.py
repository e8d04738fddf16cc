"""Arguments that name folders: what is taken, as which path."""

import os
from pathlib import Path

import numpy as np
import pytest

from bppsa_lightning.datasets import BitstreamDataModule
from bppsa_lightning.datasets.checks import check_folder


class Place:
    """A path without a text of its own, as fsspec, py.path and others have them."""

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return self.path


def test_folders_are_what_they_say_the_path_is(tmp_path):
    home = os.path.expanduser("~")
    for given, wanted in (
        ("a/b", "a/b"),
        (Path("a/b"), "a/b"),
        (Place("a/b"), "a/b"),
        (Place("~/b"), f"{home}/b"),
        (np.str_("a"), "a"),
    ):
        found = check_folder("data_dir", given)
        assert found == wanted and type(found) is str
    assert BitstreamDataModule(data_dir=Place(str(tmp_path))).data_dir == str(tmp_path)


@pytest.mark.parametrize("given", [b"a", Place(b"a"), None, 3])
def test_what_is_no_folder(given):
    with pytest.raises(TypeError, match="cache_dir is .*; wanted a str or a Path"):
        check_folder("cache_dir", given)

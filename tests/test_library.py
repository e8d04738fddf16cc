"""What an import says where the operators' library is not beside the sources that Python found."""

from importlib.metadata import PackageNotFoundError, PackagePath
from types import SimpleNamespace

import pytest

import bppsa_lightning
from bppsa_lightning import _library


@pytest.fixture
def not_built(monkeypatch):
    monkeypatch.setattr(_library, "_find", lambda name: None)
    monkeypatch.setattr("torch._C._dispatch_has_kernel", lambda name: False)


def test_sources_that_hide_an_installed_package_are_named(not_built, monkeypatch, tmp_path):
    there = tmp_path / "bppsa_lightning"
    there.mkdir()
    (there / "_C.so").touch()
    path = PackagePath("bppsa_lightning", "_C.so")
    path.dist = SimpleNamespace(locate_file=lambda file: tmp_path / file)
    monkeypatch.setattr(_library, "_files", lambda name: [path])
    with pytest.raises(ImportError) as found:
        _library._load()
    said = str(found.value)
    assert f"found the sources in {bppsa_lightning.__path__[0]} before" in said
    assert f"installed in {there}; start Python in another folder" in said


@pytest.mark.parametrize("files", [None, []])
def test_without_an_installed_one_it_says_how_to_build(not_built, monkeypatch, files):
    def found(name):
        if files is None:
            raise PackageNotFoundError(name)
        return files

    monkeypatch.setattr(_library, "_files", found)
    with pytest.raises(ImportError, match="_C was not found in .*; build it with `make build`"):
        _library._load()

"""Libraries that are missing, or installed and broken: each is told as what it is."""

import pytest

from bppsa_lightning.datasets.extras import import_extra

BROKEN = {
    "import nowhere_at_all": "No module named 'nowhere_at_all'",
    "from os import nothing_of_the_kind": "cannot import name 'nothing_of_the_kind'",
    "raise OSError('sound.so: cannot open shared object file')": "sound.so: cannot open shared",
}


@pytest.mark.parametrize("source", BROKEN)
@pytest.mark.parametrize("module", ["broken_extra", "broken_extra.part"])
def test_a_broken_library_is_not_to_be_installed(tmp_path, monkeypatch, source, module):
    (tmp_path / "broken_extra").mkdir()
    (tmp_path / "broken_extra" / "__init__.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError) as raised:
        import_extra(module, "This reads sounds")
    assert str(raised.value).startswith(
        f"This reads sounds; broken_extra is installed, but does not import: {BROKEN[source]}"
    )


def test_a_part_that_is_missing(tmp_path, monkeypatch):
    (tmp_path / "partial_extra.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ImportError, match="partial_extra is installed, but does not import: No mod"
    ):
        import_extra("partial_extra.part", "This reads sounds")


@pytest.mark.parametrize("module", ["nowhere_at_all", "nowhere_at_all.part"])
def test_a_missing_library_is_to_be_installed(module):
    with pytest.raises(ImportError, match="^This reads sounds; pip install nowhere_at_all$"):
        import_extra(module, "This reads sounds")

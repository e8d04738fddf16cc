"""IRMASDataModule in scripts as people write them, and without the libraries of audio."""

import subprocess
import sys

import numpy as np
import pytest
from support.irmas_corpus import write_corpus
from support.irmas_data import HALF, make, write_fake

from bppsa_lightning.datasets import IRMASDataModule

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


# Scripts as people write them: no guard, several processes, libraries missing
SCRIPT = """
import sys
from bppsa_lightning.datasets import IRMASDataModule, irmas_extract
irmas_extract._FILES_A_WORKER = 2
data = IRMASDataModule(sys.argv[1], val_split=0.25, test_split=0.25, prepare_workers=2)
data.prepare_data()
data.setup("fit")
print("ran", next(iter(data.train_dataloader()))[0].shape[1:])
"""


@pytest.mark.slow
def test_a_script_without_a_guard_computes_in_processes_what_one_process_does(tmp_path):
    pytest.importorskip("librosa", reason="the audio extra brings librosa")
    write_corpus(tmp_path / "data", ("cel", "org"), recordings=2)
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "data")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0 and ran.stdout.startswith("ran torch.Size([259, 38])"), ran.stderr
    (cache,) = (tmp_path / "data").glob("*.mfcc")
    assert not list((tmp_path / "data").glob(".*.tmp"))
    make(tmp_path / "data", cache_dir=tmp_path, prepare_workers=1, **HALF)
    several, one = ((folder / cache.name).read_bytes() for folder in (cache.parent, tmp_path))
    start, size = several.index(b"\n") + 1, 4 * 259 * 38 * 4
    assert several[:start] == one[:start] and several[start + size : -32] == b"{}"
    a, b = (np.frombuffer(content[start : start + size], "<f4") for content in (several, one))
    np.testing.assert_allclose(a, b, atol=1e-5)


BARE = """
import sys
import lightning.pytorch  # brings some of them where they are installed
for name in ("joblib", "librosa", "soundfile", "soxr", "torchaudio"):
    sys.modules[name] = None
from bppsa_lightning.datasets import IRMASDataModule
assert IRMASDataModule("data").num_features == 38
"""


@pytest.mark.slow
def test_the_import_needs_none_of_the_libraries_of_audio(tmp_path):
    command = [sys.executable, "-c", BARE]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "missing, settings, wanted",
    [
        ("soundfile", {}, "reads WAV files through soundfile; pip install soundfile"),
        ("librosa", {}, "computes its features with librosa; pip install librosa"),
        ("torchaudio", {"backend": "torchaudio"}, "with torchaudio; pip install torchaudio"),
    ],
)
def test_missing_libraries_are_named_when_they_are_needed(
    tmp_path, monkeypatch, missing, settings, wanted
):
    if missing != "soundfile":
        write_corpus(tmp_path, ("cel",), recordings=1)
    else:
        write_corpus(tmp_path, ("cel",), recordings=1, write=write_fake)
    for name in [*sys.modules]:
        if name.startswith(f"{missing}."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    data = IRMASDataModule(tmp_path, **settings)
    with pytest.raises(ImportError, match=wanted):
        data.prepare_data()
    assert not list(tmp_path.glob("*.mfcc"))

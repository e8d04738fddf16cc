"""The published archives, from a server of this machine in the publisher's place."""

import hashlib
import io
import pickle
import re
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.broken_server import BrokenServer

from bppsa_lightning.datasets import CIFAR10DataModule, IRMASDataModule, cifar10, irmas_archive


@pytest.fixture
def server():
    with BrokenServer(b"").running() as server:
        yield server


def publish(server, monkeypatch, module, content):
    """Serves an archive in the place of the module's."""
    server.content = content
    name = module.ARCHIVE.name
    served = replace(
        module.ARCHIVE,
        urls=(server.url(name),),
        checksum=f"sha256:{hashlib.sha256(content).hexdigest()}",
        size=len(content),
    )
    monkeypatch.setattr(module, "ARCHIVE", served)


def irmas_zip(folder):
    from support.irmas_corpus import write_corpus

    root = folder / "IRMAS-TrainingData"
    write_corpus(root, ("cel", "org"), recordings=2)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for path in sorted(root.rglob("*")):
            file.write(path, path.relative_to(root.parent))
    return buffer.getvalue()


def test_irmas_is_downloaded_if_asked_for_and_once(server, tmp_path, monkeypatch):
    pytest.importorskip("librosa", reason="the audio extra brings librosa")
    publish(server, monkeypatch, irmas_archive, irmas_zip(tmp_path / "published"))
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
    left = [path.name for path in folder.iterdir() if path.suffix not in (".lock", ".mfcc")]
    assert left == ["IRMAS-TrainingData"]


def test_an_archive_put_there_by_hand_is_taken(server, tmp_path, monkeypatch):
    publish(server, monkeypatch, irmas_archive, irmas_zip(tmp_path / "published"))
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "IRMAS-TrainingData.zip").write_bytes(server.content)
    root = irmas_archive.download_irmas(folder)
    assert server.asked == [] and len(list(root.rglob("*.wav"))) == 4


@pytest.mark.parametrize("empty", ["cel", "IRMAS-TrainingData"])
def test_an_empty_folder_is_no_irmas(server, tmp_path, monkeypatch, empty):
    pytest.importorskip("librosa", reason="the audio extra brings librosa")
    publish(server, monkeypatch, irmas_archive, irmas_zip(tmp_path / "published"))
    (tmp_path / "data" / empty).mkdir(parents=True)
    data = IRMASDataModule(tmp_path / "data", download=True, val_split=0.25, test_split=0.25)
    data.prepare_data()
    data.setup()
    assert [len(data._datasets[name]) for name in ("train", "val", "test")] == [2, 1, 1]


@pytest.mark.parametrize("other", ["cel/notes.txt", "cel/"])
def test_what_is_in_irmas_place_is_named_before_anything_is_downloaded(
    server, tmp_path, monkeypatch, other
):
    publish(server, monkeypatch, irmas_archive, b"")
    folder = tmp_path / "IRMAS-TrainingData"
    (folder / "cel").mkdir(parents=True)
    if not other.endswith("/"):
        (folder / other).write_text("mine")
    with pytest.raises(FileExistsError, match=f"{folder} is there, and holds no WAV.*remove or"):
        IRMASDataModule(tmp_path, download=True).prepare_data()
    assert server.asked == [] and (folder / other).exists()


def batches(count):
    """CIFAR-10's files in small: {name: content}."""
    generator = np.random.default_rng(0)
    files = {}
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        pixels = generator.integers(0, 256, (count, 3072), dtype=np.uint8)
        files[name] = pickle.dumps({"data": pixels, "labels": [i % 10 for i in range(count)]})
    files["batches.meta"] = pickle.dumps({"label_names": list("abcdefghij")})
    return files


@pytest.fixture
def cifar(server, monkeypatch):
    """A published archive of 600 images, and torchvision's list of its files."""
    torchvision = pytest.importorskip("torchvision", reason="the vision extra brings torchvision")
    files, buffer = batches(100), io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    publish(server, monkeypatch, cifar10, buffer.getvalue())
    sums = {name: hashlib.md5(content).hexdigest() for name, content in files.items()}
    sets = torchvision.datasets.CIFAR10
    names = [*sums][:6]
    monkeypatch.setattr(sets, "train_list", [[name, sums[name]] for name in names[:5]])
    monkeypatch.setattr(sets, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setattr(sets, "meta", {**sets.meta, "md5": sums["batches.meta"]})
    monkeypatch.setattr(sets, "tgz_md5", hashlib.md5(buffer.getvalue()).hexdigest())
    monkeypatch.setattr(sets, "url", "http://127.0.0.1:9/torchvision-does-not-download")
    return files


def images(data):
    data.setup()
    return [len(data._datasets[name]) for name in ("train", "val", "test")]


def test_cifar10_is_downloaded_if_asked_for_resumed_and_once(server, cifar, tmp_path):
    CIFAR10DataModule(tmp_path).prepare_data()
    with pytest.raises(FileNotFoundError, match="download=True"):
        CIFAR10DataModule(tmp_path).setup()
    assert server.asked == []
    server.cuts = [100_000]
    for _ in range(2):
        data = CIFAR10DataModule(tmp_path, download=True)
        data.prepare_data()
        assert images(data) == [450, 50, 100]
    assert server.asked == [None, "bytes=100000-"]


def test_cifar10_with_a_damaged_file_is_mended_without_a_download(server, cifar, tmp_path):
    data = CIFAR10DataModule(tmp_path, download=True)
    data.prepare_data()
    (tmp_path / "cifar-10-batches-py" / "data_batch_2").write_bytes(b"damaged")
    data.prepare_data()
    assert images(data) == [450, 50, 100] and server.asked == [None]


def test_the_published_archives():
    irmas, cifar = irmas_archive.ARCHIVE, cifar10.ARCHIVE
    assert all(re.match("https://zenodo.org/.*/1290750/files/", url) for url in irmas.urls)
    assert irmas.checksum == "md5:4fd9f5ed5a18d8e2687e6360b5f60afe"
    assert irmas_archive.MOST_BYTES > irmas.most > 6705 * 529_244
    assert all(url.endswith("/cifar-10-python.tar.gz") for url in cifar.urls)
    assert (len(irmas.urls), len(cifar.urls)) == (2, 2) and cifar.size == 170_498_071
    assert len(cifar.checksum.removeprefix("sha256:")) == 64
    page = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text()
    for archive in (irmas, cifar):
        assert archive.name in page and archive.checksum.partition(":")[2] in page
    assert f"{cifar.size:,}" in page

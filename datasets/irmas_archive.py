"""IRMAS's published training data: where it is, and how it comes into a folder."""

from pathlib import Path

from .archives import extract_zip
from .downloads import download
from .irmas_layout import ARCHIVE_FOLDER
from .locks import locked

# Zenodo record 1290750 (DOI 10.5281/zenodo.1290750). Zenodo publishes MD5 alone; the address and
# the sum are also those of mirdata's loader (mirdata/datasets/irmas.py).
URL = "https://zenodo.org/record/1290750/files/IRMAS-TrainingData.zip?download=1"
MD5 = "4fd9f5ed5a18d8e2687e6360b5f60afe"
# 6,705 excerpts of 529,200 bytes and headers are 3.6 GB.
MOST_BYTES = 8 * 10**9


def download_irmas(data_dir: Path) -> Path:
    """Brings IRMAS's training data into ``data_dir / "IRMAS-TrainingData"``.

    The archive is removed once its files are in place; of several processes one downloads while
    the others wait.

    Returns:
        The folder of the instruments' folders.

    Raises:
        OSError: if the download fails (what has arrived is kept and resumed), or the folder cannot
            be written.
        ValueError: if the archive is not the published one, or not safe to extract.
    """
    folder = data_dir / ARCHIVE_FOLDER
    archive = data_dir / f"{ARCHIVE_FOLDER}.zip"
    with locked(archive):
        if not folder.exists():
            download(URL, archive, MD5)
            extract_zip(archive, folder, MOST_BYTES)
            archive.unlink()
    return folder

"""IRMAS's published training data: where it is, and how it comes into a folder."""

import os
from pathlib import Path

from .archives import extract_zip
from .downloads import Published, download
from .irmas_layout import ARCHIVE_FOLDER, list_excerpts
from .locks import locked

# Zenodo record 1290750 (DOI 10.5281/zenodo.1290750). Zenodo publishes MD5 alone; the address and
# the sum are also those of mirdata's loader (mirdata/datasets/irmas.py). The second address is the
# same file by Zenodo's programming interface.
ARCHIVE = Published(
    f"{ARCHIVE_FOLDER}.zip",
    (
        f"https://zenodo.org/record/1290750/files/{ARCHIVE_FOLDER}.zip?download=1",
        f"https://zenodo.org/api/records/1290750/files/{ARCHIVE_FOLDER}.zip/content",
    ),
    "md5:4fd9f5ed5a18d8e2687e6360b5f60afe",
    most=4 * 10**9,
)
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
        FileExistsError: if something else is in the folder's place.
        ValueError: if the archive is not the published one, or not safe to extract.
    """
    folder = data_dir / ARCHIVE_FOLDER
    with locked(data_dir / ARCHIVE.name):
        if not list_excerpts(folder):
            _make_way(folder)
            archive = download(ARCHIVE, data_dir)
            extract_zip(archive, folder, MOST_BYTES)
            archive.unlink()
    return folder


def _make_way(folder: Path) -> None:
    """Removes an empty folder, such as a failed attempt leaves; raises for anything else."""
    if not os.path.lexists(folder):
        return
    try:
        folder.rmdir()
    except OSError as error:
        raise FileExistsError(
            f"{folder} is there, and holds no WAV file of an instrument, but cannot be replaced "
            f"({error.strerror}); remove or rename it, and IRMAS is downloaded into its place"
        ) from error

"""The layout of IRMAS on disk: which excerpt lies where, of which instrument and recording.

IRMAS (Bosch, Janer, Fuhrmann, Herrera: a comparison of sound segregation techniques for predominant
instrument recognition in musical audio signals, ISMIR 2012) holds excerpts of three seconds as
``<instrument>/<tags><recording>__<excerpt>.wav``, such as ``cel/008__[cel][nod][cla]0058__1.wav``.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

INSTRUMENTS = ("cel", "cla", "flu", "gac", "gel", "org", "pia", "sax", "tru", "vio", "voi")
ARCHIVE_FOLDER = "IRMAS-TrainingData"
_RECORDING = re.compile(r"(\d+)__\d+$")


@dataclass(frozen=True)
class Excerpt:
    """One WAV file, and what of it tells whether it has changed.

    Attributes:
        path: where it lies.
        name: the same, from the folder of the instruments on.
        label: index of its instrument in `INSTRUMENTS`.
        size: bytes.
        modified: nanoseconds.
        mode: kind of file and permissions.
    """

    path: Path
    name: str
    label: int
    size: int
    modified: int
    mode: int

    @property
    def printable(self) -> str:
        """The name for messages: bytes that are no UTF-8 as in ``caf\\xe9.wav``."""
        return os.fsencode(self.name).decode("utf-8", "backslashreplace")

    @property
    def recording(self) -> str:
        """The recording that it was cut from.

        IRMAS numbers its recordings, and a number means the same one in each instrument's folder
        (some recordings are in two). A file named otherwise is a recording of its own.
        """
        stem = self.path.stem
        found = _RECORDING.search(stem)
        return found[1] if found else self.name


def find_excerpts(data_dir: str) -> list[Excerpt]:
    """Those of `data_dir`, or where it holds none, of its IRMAS-TrainingData."""
    return list_excerpts(Path(data_dir)) or list_excerpts(Path(data_dir, ARCHIVE_FOLDER))


def list_excerpts(root: Path) -> list[Excerpt]:
    """Every WAV file by instrument and name; none is opened."""
    excerpts = []
    for label, instrument in enumerate(INSTRUMENTS):
        folder = root / instrument
        names = os.listdir(folder) if folder.is_dir() else []
        for name in sorted(names):
            if name.lower().endswith(".wav") and not name.startswith("."):
                excerpts.append(_excerpt(folder / name, f"{instrument}/{name}", label))
    return excerpts


def _excerpt(path: Path, name: str, label: int) -> Excerpt:
    try:
        found = path.stat()
    except OSError:  # a dangling link: reading it says so
        return Excerpt(path, name, label, 0, 0, 0)
    return Excerpt(path, name, label, found.st_size, found.st_mtime_ns, found.st_mode)

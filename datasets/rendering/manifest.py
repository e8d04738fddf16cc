"""The manifest of a rendered corpus: what was asked for, and a checksum of every file.

It is written last, so a folder that has one was rendered whole.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FORMAT = "bppsa-rendered-instruments"
FORMAT_VERSION = 1  # counts up when the same settings give other music
NAME = "manifest.json"


@dataclass(frozen=True)
class Settings:
    """What decides the corpus.

    Args:
        per_class: files of each instrument.
        seed: of all music.
        synthesiser: its name.
        soundfont: SHA-256 of the file; None where any will do.
    """

    per_class: int
    seed: int
    synthesiser: str
    soundfont: str | None

    def differences(self, found: dict[str, Any]) -> list[str]:
        """Where a manifest's settings are others than these, in words."""
        wanted = {"format": FORMAT, "version": FORMAT_VERSION, **asdict(self)}
        return [
            f"{name} {found.get(name)!r}, wanted {value!r}"
            for name, value in wanted.items()
            if value is not None and found.get(name) != value
        ]


def read(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder; None if it has none that can be read."""
    try:
        found = json.loads((folder / NAME).read_text())
    except (OSError, ValueError):
        return None
    ours = isinstance(found, dict) and found.get("format") == FORMAT
    return found if ours and isinstance(found.get("files"), dict) else None


def write(folder: Path, settings: Settings, facts: dict[str, str], files: dict[str, Any]) -> None:
    """Writes the manifest; `facts` are kept, but not compared."""
    content = {"format": FORMAT, "version": FORMAT_VERSION, **asdict(settings), **facts}
    content["files"] = dict(sorted(files.items()))
    (folder / NAME).write_text(json.dumps(content, indent=1) + "\n")


def entry(path: Path) -> dict[str, Any]:
    """What a manifest says of one file."""
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def first_damaged(folder: Path, files: dict[str, Any], checksums: bool) -> str | None:
    """The first file that is missing or not as written; None if all are whole.

    Sizes are always compared, content only with `checksums`.
    """
    for name, wanted in files.items():
        path = folder / name
        try:
            whole = path.stat().st_size == wanted["bytes"]
            whole = whole and (not checksums or sha256(path) == wanted["sha256"])
        except OSError:
            whole = False
        if not whole:
            return name
    return None


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

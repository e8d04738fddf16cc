"""What was measured on which machine: a JSON file each, shipped here or made by `calibrate`.

A table is {"format": …, "machine": {…}, "measured": {…}, …}. "machine" says where it holds, and
"measured" when and with what, and the records that it was fitted to. The files beside this one are
shipped. The user's are in `user_folder`, one a machine; they are for exactly the machine and the
versions that they name.
"""

import hashlib
import json
import os
import re
import uuid
import warnings
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

Table = dict[str, Any]
Machine = Mapping[str, object]

FORMAT = 1
FOLDER = "BPPSA_TABLES"  # environment variable: the user's tables are there instead
# Of a machine's fields, those that a new version changes; the others are the hardware.
VERSIONS = ("torch", "bppsa_lightning", "driver", "build")
_HERE = Path(__file__).parent


@lru_cache(maxsize=1)
def shipped() -> dict[str, Table]:
    """The tables of this package by name, "nvidia_h200" for nvidia_h200.json."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(_HERE.glob("*.json"))}


def user_folder() -> Path:
    """Where `calibrate` keeps what it measures."""
    if own := os.environ.get(FOLDER):
        return Path(own)
    from platformdirs import user_cache_path  # late: where FOLDER is set, it need not be installed

    return user_cache_path("bppsa_lightning") / "tables"


def user_path(machine: Machine) -> Path:
    """The file of a machine's table: one for its hardware, whatever the versions."""
    hardware = {name: value for name, value in machine.items() if name not in VERSIONS}
    digest = hashlib.sha256(json.dumps(hardware, sort_keys=True).encode()).hexdigest()[:8]
    name = re.sub(r"[^a-z0-9]+", "_", str(machine["name"]).lower()).strip("_")
    return user_folder() / f"{name}-{digest}.json"


def read_user(machine: Machine) -> Table | None:
    """The user's table of a machine; None, with a warning that names the file, if it is unfit."""
    path = user_path(machine)
    try:
        table = json.loads(path.read_text())
        unfit = why_unfit(table, machine)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # UnicodeDecodeError and JSONDecodeError too
        unfit = f"it cannot be read ({error})"
    if unfit is None:
        return dict(table)
    warn_of(path, unfit)
    return None


def warn_of(path: Path, unfit: str) -> None:
    """Warns that a table is ignored."""
    warnings.warn(
        f"bppsa_lightning ignores the calibration {path}: {unfit}. Run bl.calibrate() again, or "
        "delete the file.",
        stacklevel=3,
    )


def why_unfit(table: object, machine: Machine) -> str | None:
    """Why a table, whatever it is, does not hold for a machine; None if it does."""
    if not isinstance(table, dict) or not isinstance(table.get("machine"), dict):
        return "it is no table of a machine"
    if table.get("format") != FORMAT:
        return f"its format is {table.get('format')!r}, wanted {FORMAT}"
    found = table["machine"]
    for name, wanted in machine.items():
        if found.get(name) != wanted:
            which = "an older or newer version's" if name in VERSIONS else "another machine's"
            return f"it is {which} ({name} {found.get(name)!r}, here {wanted!r})"
    return None


def write(path: Path, table: Mapping[str, Any]) -> None:
    """Writes a table by rename: whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        beside.write_text(json.dumps(table, indent=1) + "\n")
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)

"""What a calibration has found so far, kept as it comes: the next one goes on from there."""

import json
import time
from collections.abc import Mapping
from pathlib import Path

from bppsa_lightning.calibration.cuda.fit import Row
from bppsa_lightning.calibration.cuda.verify import Verdicts
from bppsa_lightning.planner import tables

EVERY = 1.0  # seconds between two writings; what is lost is measured again


class Kept:
    """Verdicts and rows of one machine, in a file beside its table.

    Args:
        machine: the table's. What another machine, or another version of it, has left is not read.

    Attributes:
        verdicts, rows: found so far.
    """

    def __init__(self, machine: Mapping[str, object]) -> None:
        self._machine, self._path = dict(machine), path_of(machine)
        self._written = time.monotonic()
        found = self._read()
        of = found.get("verdicts", {})
        self.verdicts = Verdicts(set(of.get("right", ())), of.get("wrong", {}), of.get("cases", {}))
        self.rows: list[Row] = found.get("rows", [])

    def _read(self) -> Row:
        try:
            found = json.loads(self._path.read_text())
        except (OSError, ValueError):
            return {}
        return dict(found) if tables.why_unfit(found, self._machine) is None else {}

    def write(self, at_once: bool = True) -> None:
        """Writes all of it, by rename; unless `at_once`, EVERY so many seconds at most."""
        if not at_once and time.monotonic() < self._written + EVERY:
            return
        verdicts = vars(self.verdicts) | {"right": sorted(self.verdicts.right)}
        found = {"format": tables.FORMAT, "machine": self._machine, "verdicts": verdicts}
        tables.write(self._path, found | {"rows": self.rows})
        self._written = time.monotonic()

    def remove(self) -> None:
        """Once it is in the table."""
        self._path.unlink(missing_ok=True)


def path_of(machine: Mapping[str, object]) -> Path:
    """The file of an unfinished calibration."""
    return tables.user_path(machine).with_suffix(".unfinished")

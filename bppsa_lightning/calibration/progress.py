"""What a calibration has measured so far: kept as it comes, and what a later call goes on with."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bppsa_lightning.planner import tables


class Progress:
    """Measured values by name, in a file beside the table that they are for.

    What is no such file, or another machine's or version's, counts as nothing measured.

    Args:
        machine: as in the table.
        what: of the calibration, as its values depend on it.

    Raises:
        OSError: the tables' folder cannot be written, so that measuring would be in vain.
    """

    def __init__(self, machine: tables.Machine, what: str) -> None:
        self._table = tables.user_path(machine)
        self.path: Path = self._table.with_name(f"{self._table.stem}.{what}.partial")
        _check_folder(self.path.parent)
        self._kept: dict[str, Any] = {
            "format": tables.FORMAT, "machine": dict(machine), "values": {}
        }  # fmt: skip
        try:
            found = json.loads(self.path.read_text())
        except (OSError, ValueError):
            found = None
        if tables.why_unfit(found, machine) is None and isinstance(found.get("values"), dict):
            self._kept = found
        self.resumed = len(self.values)

    @property
    def values(self) -> dict[str, Any]:
        """What was measured, by name."""
        values: dict[str, Any] = self._kept["values"]
        return values

    def measured(self, name: str, measure: Callable[[], Any]) -> Any:
        """The value of a name: of an earlier call, or measured now and kept."""
        if name not in self.values:
            self.values[name] = measure()
            self.write()
        return self.values[name]

    def write(self) -> None:
        """Keeps the values as they are now."""
        tables.write(self.path, self._kept)

    def finish(self) -> None:
        """Forgets it all, the table is written; and what a killed one was writing."""
        self.path.unlink(missing_ok=True)
        for rest in self.path.parent.glob(f"{self._table.stem}*.tmp"):
            rest.unlink(missing_ok=True)


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OSError(
            error.errno,
            f"what is measured cannot be kept in {folder} ({error.strerror}); set the environment "
            f"variable {tables.FOLDER} to a folder that can be written",
        ) from error

"""What a calibration has found so far, kept as it comes: the next one goes on from there."""

import time
from collections.abc import Mapping

from bppsa_lightning.calibration.cuda.fit import Row
from bppsa_lightning.calibration.cuda.verify import Verdicts
from bppsa_lightning.calibration.progress import Progress

EVERY = 1.0  # seconds between two writings; what is lost is measured again


class Kept:
    """Verdicts and rows of one machine, in a file beside its table.

    Args:
        machine: the table's. What another machine, or another version of it, has left is not read.

    Attributes:
        path: the file.
        verdicts, rows: found so far.
    """

    def __init__(self, machine: Mapping[str, object]) -> None:
        self._progress = Progress(machine, "kernels")
        self.path, self._written = self._progress.path, time.monotonic()
        of = self._progress.values.get("verdicts", {})
        self.verdicts = Verdicts(set(of.get("right", ())), of.get("wrong", {}), of.get("cases", {}))
        self.rows: list[Row] = self._progress.values.get("rows", [])

    def write(self, at_once: bool = True) -> None:
        """Writes all of it, by rename; unless `at_once`, EVERY so many seconds at most."""
        if not at_once and time.monotonic() < self._written + EVERY:
            return
        verdicts = vars(self.verdicts) | {"right": sorted(self.verdicts.right)}
        self._progress.values.update(verdicts=verdicts, rows=self.rows)
        self._progress.write()
        self._written = time.monotonic()

    def finish(self) -> None:
        """Forgets it all: it is in the table."""
        self._progress.finish()

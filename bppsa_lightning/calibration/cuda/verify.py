"""Tests every kernel in a process of its own, and keeps which are right."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bppsa_lightning.calibration.cuda.cases import Case
from bppsa_lightning.calibration.cuda.isolated import Isolated, Lost
from bppsa_lightning.calibration.cuda.scans import ScanCase

Cases = Mapping[str, Sequence[Case | ScanCase]]  # of each kernel, what they need before them
LIMIT = 20.0  # seconds for a case; each takes some milliseconds


@dataclass
class Verdicts:
    """What is known of the kernels of a GPU.

    Attributes:
        right: kernels that gave right results in all cases.
        wrong: for each that did not, what it gave.
        cases: for each that did not, the case.
    """

    right: set[str] = field(default_factory=set)
    wrong: dict[str, str] = field(default_factory=dict)
    cases: dict[str, str] = field(default_factory=dict)

    def fail(self, kernel: str, case: str, why: str) -> None:
        """Notes that a kernel is not to be used."""
        self.right.discard(kernel)
        self.wrong[kernel], self.cases[kernel] = f"{why} ({case})", case


def verify(
    kernels: Cases,
    verdicts: Verdicts,
    worker: Isolated,
    done: Callable[[str], None],
    limit: float = LIMIT,
) -> None:
    """Tests each kernel that there is no verdict on.

    A case that needs a kernel that is not right is left out. A kernel all of whose cases are, is
    neither right nor wrong.

    Args:
        kernels: the cases of each.
        verdicts: are added to.
        worker: where the cases run.
        done: is called with each kernel after its verdict.
        limit: seconds for a case.

    Raises:
        NoWorker: as `Isolated.ask`.
    """
    for kernel, cases in kernels.items():
        if kernel not in verdicts.right and kernel not in verdicts.wrong:
            _verify_one(kernel, cases, verdicts, worker, limit)
        done(kernel)


def _verify_one(
    kernel: str,
    cases: Sequence[Case | ScanCase],
    verdicts: Verdicts,
    worker: Isolated,
    limit: float,
) -> None:
    able = [case for case in cases if verdicts.right.issuperset(case.needs)]
    for case in able:
        try:
            wrong = worker.ask(case.task, limit)["wrong"]
        except Lost as lost:
            wrong = lost.why
        if wrong is not None:
            verdicts.fail(kernel, str(case), wrong)
            return
    if able:
        verdicts.right.add(kernel)

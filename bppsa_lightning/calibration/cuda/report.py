"""What a calibration of a GPU has found, for people; of a kernel that failed, to be sent on."""

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from statistics import median

import torch

from bppsa_lightning.calibration.cuda.fit import OPERATORS, Row
from bppsa_lightning.calibration.cuda.timing import STOCK, name_of
from bppsa_lightning.calibration.cuda.verify import Verdicts
from bppsa_lightning.planner import Request, choose
from bppsa_lightning.planner.fallback_cuda import reason_of_auto
from bppsa_lightning.planner.gpu_tables import GpuTable

_ISSUE = """\
### CUDA kernel {kernel} fails on {machine[name]}

| | |
|---|---|
| GPU | {machine[name]}, compute capability {machine[capability]}, {machine[processors]} multiprocessors |
| driver | {machine[driver]} |
| torch | {machine[torch]}, CUDA {cuda}, cuDNN {cudnn} |
| bppsa_lightning | {version}, build {machine[build]} |
| case | {case} |
| found | {why} |

Found by `bl.calibrate(device="cuda")`.
"""  # noqa: E501  (a row of a table is a line)


def issues(verdicts: Verdicts, machine: Mapping[str, object]) -> list[str]:
    """A ready-made report, in markdown, of each kernel that failed."""
    try:
        own = version("bppsa-lightning")
    except PackageNotFoundError:
        own = "unknown"
    versions = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return [
        _ISSUE.format(
            kernel=kernel,
            machine=machine,
            case=verdicts.cases.get(kernel, ""),
            why=why.removesuffix(f" ({verdicts.cases.get(kernel)})"),
            version=own,
            **versions,
        )
        for kernel, why in sorted(verdicts.wrong.items())
    ]


def summary(
    kernels: Sequence[str],
    verdicts: Verdicts,
    rows: Sequence[Row],
    before: GpuTable | None,
    after: GpuTable,
    device: torch.device,
) -> str:
    """Some lines: which kernels are right, and what "auto" does now with the sizes that were timed.

    Args:
        kernels: all that were to be tested. verdicts, rows: as found.
        before, after: the tables of the GPU. device: the GPU.
    """
    wrong = sorted(verdicts.wrong)
    untested = [name for name in kernels if name not in verdicts.right and name not in wrong]
    lines = [f"{after.gpu}: {len(verdicts.right)} of {len(kernels)} CUDA kernels are right."]
    if wrong:
        lines.append(f"{len(wrong)} failed and will not be used: {', '.join(wrong)}.")
    if untested:
        lines.append(
            f"{len(untested)} could not be tested without them and will not be used either: "
            f"{', '.join(untested)}."
        )
    gains, scanned = _gains(rows, after, device), len(_gains(rows, before, device))
    lines.append(
        f"Of {len(rows)} sizes timed beside cuDNN, {len(gains)} now run on these kernels; before "
        f"it was {scanned}. PyTorch keeps the others."
    )
    if gains:
        lines.append(
            f"They are {median(gains):.1f}x as fast as cuDNN in the median, {min(gains):.1f}x at "
            f"worst, {max(gains):.1f}x at best (forward and backward)."
        )
    return "\n".join(lines)


def _gains(rows: Sequence[Row], table: GpuTable | None, device: torch.device) -> list[float]:
    """cuDNN's time over ours, of the sizes that "auto" scans under a table."""
    gains = []
    for row in rows:
        request = Request(OPERATORS[row["cell"]], row["T"], row["B"], row["H"], device)
        where = choose.gpu(device)
        if table is None or reason_of_auto(request, table, *where) is not None:
            continue
        name = name_of(choose.plan_on_cuda(request, *where, table))
        if name in row["plans"]:
            gains.append(row[STOCK]["both"] / row["plans"][name]["both"])
    return gains

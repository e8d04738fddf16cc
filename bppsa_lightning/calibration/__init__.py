"""Measures the machine at hand, so that the planner chooses by its figures."""

import torch
from torch.distributed import ProcessGroup

from bppsa_lightning.calibration.cpu import calibrate_cpu
from bppsa_lightning.calibration.cuda import calibrate_cuda
from bppsa_lightning.ranks import Exchange


def calibrate(
    device: torch.device | str | None = None,
    *,
    seconds: float = 150.0,
    progress: bool = True,
    group: ProcessGroup | None = None,
) -> str:
    """Measures this machine for the planner, in two to three minutes.

    Recurrent layers of many sizes are computed here and by PyTorch, in turns; from then on, also in
    later processes, `algorithm="auto"` chooses by what was found. Leave the machine alone
    meanwhile. It can be stopped at any time: what was measured is kept, and the next call goes on
    from there. Nothing else calls it.

    A GPU's kernels are tested first, in a process of their own: those that are wrong, hang or crash
    are named, and never used by "auto".

    Args:
        device: "cpu" (also None), or "cuda".
        seconds: how long it may take, roughly. Half of that scatters more. (On a GPU it takes what
            it takes, about a minute.)
        progress: whether to show a progress bar, and to print what was found.
        group: a process group: then what messages between its ranks take is measured, on `device`,
            and nothing else; all ranks call alike. It holds for this process; without it, what is
            usual between processes of one machine is taken.

    Returns:
        What was found, for people: the number of sizes, which of them are computed elsewhere from
        now on, what that gains, and the file of the table. It lies in the user's cache directory,
        or in the folder that the environment variable ``BPPSA_TABLES`` names, and holds for this
        processor, number of cores and these versions of torch and bppsa_lightning.

    Raises:
        ValueError: `device` is none that can be measured; `seconds` is not positive.
        RuntimeError: the CUDA kernels are not built, or no process can use the GPU.
        OSError: the table's folder cannot be written; the message names ``BPPSA_TABLES``.
    """
    found = measurable(device, seconds)
    if group is not None:
        return messages(group, found, progress)
    report = measured(found, seconds, progress)
    if progress:
        print(report)
    return report


def measurable(device: torch.device | str | None, seconds: float) -> torch.device:
    """The device that is asked for.

    Raises:
        ValueError: as of `calibrate`.
    """
    found = torch.device("cpu" if device is None else device)
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"device: found {found}, wanted 'cpu' or 'cuda'")
    if not seconds > 0:
        raise ValueError(f"seconds: found {seconds}, wanted a positive number")
    return found


def measured(device: torch.device, seconds: float, progress: bool) -> str:
    """Measures, with a progress bar on stderr if that is wanted; prints nothing."""
    if device.type == "cuda":
        return str(calibrate_cuda(device, progress))
    return calibrate_cpu(seconds, progress)


def messages(group: ProcessGroup, device: torch.device, progress: bool) -> str:
    """What a round of messages between the ranks of a group takes."""
    latency, of_byte = Exchange(group).calibrate(device)
    rate = f"{1e-9 / of_byte:.1f} GB/s" if of_byte else "any rate"
    report = f"{latency * 1e6:.0f} us a message between {group.size()} ranks, {rate}"
    if progress and group.rank() == 0:
        print(report)
    return report

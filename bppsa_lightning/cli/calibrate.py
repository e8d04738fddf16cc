"""`bppsa calibrate`: what `bl.calibrate` does, with progress."""

from __future__ import annotations

import argparse
import time

from bppsa_lightning.cli.answer import Answer, Failed, WrongUsage, load_package

HELP = "measure this machine, so that the planner chooses by its figures"
ABOUT = """\
Computes recurrent layers of many sizes here and by PyTorch, in turns, in two to three minutes. From
then on, `algorithm="auto"` chooses by what was found, in later processes too. Leave the machine
alone meanwhile. It can be stopped at any time (Ctrl-C): what was measured is kept, and the next
call goes on from there."""
EXAMPLES = """\
examples:
  bppsa calibrate
  bppsa calibrate --device cuda     # tests the CUDA kernels first, then times them
  OMP_NUM_THREADS=4 bppsa calibrate # for trainings with four threads"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The device, and how long."""
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument(
        "--seconds", type=float, default=150.0,
        help="how long it may take, roughly (default: 150; half of that scatters more); for cuda "
        "it takes what it takes",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def run(asked: argparse.Namespace) -> Answer:
    """Measures; says what was found, and where it is kept."""
    load_package()
    from bppsa_lightning import calibration  # imports torch

    try:
        device = calibration.measurable(asked.device, asked.seconds)
    except ValueError as error:
        raise WrongUsage(f"--{error}") from None
    except RuntimeError:  # torch's
        raise WrongUsage(f"--device: found {asked.device!r}, wanted 'cpu' or 'cuda'") from None
    start = time.perf_counter()
    try:
        report = calibration.measured(device, asked.seconds, not asked.quiet)
    except (RuntimeError, OSError) as error:
        raise Failed(f"{error} (`bppsa doctor` looks at this machine)") from error
    except KeyboardInterrupt:
        raise Failed(
            "stopped; what was measured is kept, and the next call goes on from there"
        ) from None
    took = time.perf_counter() - start
    return Answer({"device": str(device), "seconds": round(took, 1), "report": report}, report)

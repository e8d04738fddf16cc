"""`bppsa bench`: what a model of yours gains, layer by layer and whole.

The same model twice, one of them attached, takes turns (`clock`): so what disturbs a machine
disturbs both. Results are compared before anything is timed.
"""

from __future__ import annotations

import argparse

from bppsa_lightning.cli.answer import Answer, WrongUsage, load_package

HELP = "time a model of yours, as PyTorch runs it and with bppsa"
ABOUT = """\
Times forward and backward of a model of yours, as PyTorch runs it and with bppsa: each layer that
bppsa attaches, and the whole model. Checks that both compute the same, and measures memory.
Without optimizer and without data loading."""
EXAMPLES = """\
examples:
  bppsa bench my_package.models:Tagger --args '{"hidden": 20}' --input 16,1000,38
  bppsa bench models.py:Tagger --input 16,1000,38 --picture gains.png
  bppsa bench models.py:Reader --input 8,512:int64:1000        # whole numbers below 1,000
  bppsa bench models.py:Tagger --training-step --input 16,1000,38 --input 16:int64:11
  bppsa bench my_package.models:Tagger --checkpoint last.ckpt --input 16,1000,38"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is timed, on which input, how."""
    model = parser.add_argument_group("the model")
    model.add_argument(
        "target", metavar="TARGET", nargs="?",
        help="package.module:NAME or file.py:NAME; NAME is a class (nn.Module, LightningModule), "
        "or a function that returns a module",
    )  # fmt: skip
    model.add_argument(
        "--args", metavar="JSON", default="{}", help="arguments for NAME, as a JSON object"
    )
    model.add_argument(
        "--checkpoint", metavar="FILE",
        help="load a LightningModule from FILE; TARGET may be left out if LightningCLI wrote it",
    )  # fmt: skip
    model.add_argument(
        "--trust-checkpoint", action="store_true",
        help="run code that the checkpoint may hold (only if you know where it comes from)",
    )  # fmt: skip
    model.add_argument("--algorithm", default="auto", help="as for bl.attach (default: auto)")
    step = parser.add_argument_group("the step")
    step.add_argument(
        "--input", metavar="SIZES", action="append", dest="inputs", default=[],
        help="an input's sizes: 16,1000,20 (random, float32), or with a dtype: 16,1000:float64, or "
        "with a limit for whole numbers: 16:int64:10; give one for each argument of forward",
    )  # fmt: skip
    step.add_argument(
        "--training-step", action="store_true",
        help="time training_step, the inputs as its batch, instead of forward and a backward of "
        "every output",
    )  # fmt: skip
    step.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    step.add_argument("--threads", type=int, help="threads of torch (default: as it chooses)")
    step.add_argument("--seconds", type=float, default=10.0, help="for all timing (default: 10)")
    parser.add_argument("--picture", metavar="FILE", help="draw the table too: .png, .svg or .pdf")
    parser.add_argument("--memory-of", choices=["stock", "bppsa"], help=argparse.SUPPRESS)


def run(asked: argparse.Namespace) -> Answer:
    """Measures, and draws if that is asked for."""
    if not asked.seconds > 0:
        raise WrongUsage(f"--seconds: found {asked.seconds:g}, wanted a positive number")
    if asked.threads is not None and asked.threads < 1:
        raise WrongUsage(f"--threads: found {asked.threads}, wanted at least 1")
    load_package()
    from bppsa_lightning.cli.bench import measure  # imports torch

    return measure.measure(asked)

"""`bppsa doctor`: is everything in place, and what to do about what is not.

What torch and the package say of themselves is asked of a process of its own (`probe`), so that a
library which crashes on loading is one finding among others.
"""

import argparse

from bppsa_lightning.cli.answer import Answer
from bppsa_lightning.cli.doctor import examine

HELP = "say whether everything is in place, and what to do about what is not"
ABOUT = """\
Looks at versions, the compiled library, the instruction set, CUDA, threads, other load on this
machine and the planner's tables. Each problem comes with its remedy. It works where
`import bppsa_lightning` does not."""
EXAMPLES = """\
examples:
  bppsa doctor
  bppsa doctor --json | jq '.findings[] | select(.level == "problem")'
  python -m bppsa_lightning doctor      # where the script `bppsa` is not on PATH"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`doctor` takes none."""


def run(asked: argparse.Namespace) -> Answer:
    """Examines this machine."""
    return examine.examine()

"""The commands: which there are, what they take, and how they end.

Nothing but the standard library is imported before a command is chosen: `--help` is quick, and
`doctor` works where nothing else does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TextIO

from bppsa_lightning.cli import answer, bench, calibrate, doctor, report
from bppsa_lightning.cli.answer import Answer, Failed

ABOUT = """\
bppsa_lightning trains RNNs, GRUs and LSTMs faster, by a parallel scan in the backward pass.

Start with `bppsa doctor`: it says whether everything is in place, and what to do if not.
Then `bppsa bench` shows what a model of yours gains."""
ENDS = """\
exit codes: 0 all is well; 1 problems were found; 2 the command was used wrongly.
`bppsa COMMAND --help` explains one command. `python -m bppsa_lightning` is the same as `bppsa`."""

# As shells have it: 128 and the number of the signal.
STOPPED, UNREAD = 130, 141


def parser() -> argparse.ArgumentParser:
    """Of all commands."""
    whole = argparse.ArgumentParser(
        "bppsa",
        description=ABOUT,
        epilog=ENDS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=_version())
    commands = whole.add_subparsers(metavar="COMMAND", required=True)
    for command in (doctor, bench, calibrate, report):
        name = command.__name__.rpartition(".")[2]
        one = commands.add_parser(
            name,
            help=command.HELP,
            description=command.ABOUT,
            epilog=command.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(one)
        one.add_argument(
            "--json", action="store_true", help="print one JSON object, and nothing else, to stdout"
        )
        one.set_defaults(command=name, run=command.run)
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: of the command line; None for those of this process.

    Returns:
        The exit code: 0 fine, 1 problems found.

    Raises:
        SystemExit: after `--help`, with 0; where the command was used wrongly, with 2.
    """
    asked = parser().parse_args(arguments)
    try:
        with answer.answers_alone() as out:
            return _run(asked, out)
    except KeyboardInterrupt:
        print(f"bppsa {asked.command}: stopped", file=sys.stderr)
        return STOPPED
    except BrokenPipeError:  # `bppsa doctor | head -1`
        return UNREAD


def _run(asked: argparse.Namespace, out: TextIO) -> int:
    run: Callable[[argparse.Namespace], Answer] = asked.run
    try:
        found = run(asked)
    except Failed as failed:
        return answer.fail(failed, asked.command, asked.json, out)
    answer.print_answer(found, asked.json, out)
    return found.status


def _version() -> str:
    try:
        return f"bppsa_lightning {version('bppsa-lightning')}"
    except PackageNotFoundError:
        return "bppsa_lightning (not installed)"

"""What a command answers: text for people, or one JSON object; and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TextIO

from bppsa_lightning import _command

FINE, PROBLEMS, WRONG_USAGE = 0, 1, 2


@dataclass(frozen=True)
class Answer:
    """Of a command that ran to its end.

    Attributes:
        data: for `--json`. text: the same for people.
        status: `FINE` or `PROBLEMS`.
    """

    data: dict[str, Any]
    text: str
    status: int = FINE


class Failed(Exception):
    """A command could not do what it was asked to: one message for people."""

    status = PROBLEMS


class WrongUsage(Failed):
    """What was asked for makes no sense: the message names the argument."""

    status = WRONG_USAGE


def load_package() -> None:
    """Imports the package, or sends the reader to `doctor`."""
    try:
        _command.load()
    except Exception as error:
        raise Failed(
            f"bppsa_lightning does not load ({type(error).__name__}: {error}). "
            "`python -m bppsa_lightning doctor` says what to do."
        ) from None


def print_answer(answer: Answer, as_json: bool, out: TextIO) -> None:
    """Prints the one or the other."""
    print(json.dumps(answer.data, indent=1) if as_json else answer.text, file=out, flush=True)


def fail(error: Failed, command: str, as_json: bool, out: TextIO) -> int:
    """Says what failed, on stderr and, if JSON is wanted, as an object with "error"."""
    if as_json:
        print(json.dumps({"error": str(error)}, indent=1), file=out, flush=True)
    print(f"bppsa {command}: error: {error}", file=sys.stderr)
    return error.status


@contextlib.contextmanager
def answers_alone() -> Iterator[TextIO]:
    """Sends to stderr whatever is printed to stdout, by C++ too; yields the real stdout."""
    sys.stdout.flush()
    try:
        real = os.dup(1)
    except OSError:  # closed
        yield sys.stdout
        return
    try:
        os.dup2(2, 1)
        with (
            open(
                os.dup(real),
                "w",
                encoding=sys.stdout.encoding or "utf-8",
                errors="backslashreplace",  # names of layers may be in any script
            ) as out,
            contextlib.redirect_stdout(sys.stderr),
        ):
            yield out
    finally:
        os.dup2(real, 1)
        os.close(real)

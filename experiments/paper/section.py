"""What a section of the records' page is made of.

The paper is BPPSA (arXiv:1907.10134); its numbers stand in the sections only where they are known.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Records = dict[str, Any]  # of one section, by file name without suffix


@dataclass(frozen=True)
class Section:
    """One figure or table, and how ours is made.

    Attributes:
        name: short, for command lines.
        title: of the section.
        paper: what the paper shows, and its numbers where known.
        claim: its numbers alone.
        run: the module that measures, and its positional arguments; "" if `elsewhere` does.
        quick: the other arguments of a short run.
        full: those of the run that is kept; "{images}" becomes the arguments for CIFAR-10 where it
            is at hand.
        records: names of its JSON files.
        pictures: names of its PNG files, and of the SVG files that they lead to.
        text: what the records say, as Markdown.
        glance: the same in a few words.
        elsewhere: where there is no command: how the record is made.
        minutes: of the full run on two cores; of a training, its steps times those measured.
        resumes: the module goes on with what was interrupted, given `--resume`.
    """

    name: str
    title: str
    paper: str
    run: str = ""
    quick: str = ""
    full: str = ""
    records: tuple[str, ...] = ()
    pictures: tuple[str, ...] = ()
    text: Callable[[Records], str] | None = None
    glance: Callable[[Records], str] | None = None
    elsewhere: str = ""
    claim: str = ""
    minutes: int = 0
    resumes: bool = False

    def arguments(self, full: bool, images: str = "", resume: bool = False) -> list[str]:
        """What follows ``python -m``; none where there is no command."""
        if not self.run:
            return []
        rest = (self.full if full else self.quick).format(images=images)
        going_on = "--resume" if resume and self.resumes else ""
        return shlex.split(f"{self.run} --record {going_on} {rest}")

    def command(self, full: bool) -> str:
        """The command of a run, as typed."""
        return shlex.join(["python", "-m", *self.arguments(full)])

    def command_with(self, arguments: list[str]) -> str:
        """The command that gave a record its `arguments`."""
        rest = [argument for argument in arguments if argument != "--record"]
        return shlex.join(["python", "-m", *shlex.split(self.run), "--record", *rest])

"""Writes the numbers that README.md and docs/*.md quote, straight from the committed records.

    python -m experiments.numbers            # rewrites every marked block
    python -m experiments.numbers --check    # fails, naming the blocks, if one is out of date
    python -m experiments.numbers --show     # prints every block, by name

A block stands between two comments; what is between them is replaced, the comments stay:

    <!-- numbers: cpu_table -->
    …
    <!-- end -->

or, within a line, ``up to <!-- numbers: gru_speed_up -->85x<!-- end --> faster``. An unknown name
is an error. A new block is one more row of BLOCKS. Links to records are relative to the file that
quotes them. Needs neither torch nor matplotlib.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from experiments import recording
from experiments.paper.quotes import (
    chosen,
    command_line,
    cpu,
    evaluation,
    examples,
    front_page,
    gpu,
    layers,
    loops,
    newton,
    pruned,
    scan_dtypes,
    scan_memory,
    sparse,
    training,
    windows_auto,
    windows_trained,
)

ROOT = Path(__file__).parents[1]
MARKED = re.compile(r"(<!-- numbers: (\w+) -->)(.*?)(<!-- end -->)", re.DOTALL)
# Each gives Markdown; its argument is the path from the quoting file to the records.
BLOCKS: dict[str, Callable[[str], str]] = {
    **cpu.BLOCKS,
    **gpu.BLOCKS,
    **training.BLOCKS,
    **pruned.BLOCKS,
    **sparse.BLOCKS,
    **front_page.BLOCKS,
    **newton.BLOCKS,
    **scan_dtypes.BLOCKS,
    **chosen.BLOCKS,
    **scan_memory.BLOCKS,
    **windows_auto.BLOCKS,
    **windows_trained.BLOCKS,
    **loops.BLOCKS,
    **layers.BLOCKS,
    **evaluation.BLOCKS,
    **examples.BLOCKS,
    **command_line.BLOCKS,
}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="write nothing, fail if one differs")
    what.add_argument("--show", action="store_true", help="print every block")
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    if asked.show:
        for name, block in BLOCKS.items():
            print(f"<!-- numbers: {name} -->\n{block('experiments/records')}\n<!-- end -->\n")
        return
    stale = [line for path in pages() for line in update(path, write=not asked.check)]
    for line in stale:
        print(line)
    if asked.check and stale:
        sys.exit("out of date: run `python -m experiments.numbers`")


def pages() -> list[Path]:
    """The files that may hold blocks."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def update(path: Path, write: bool) -> list[str]:
    """The blocks of a file that differ from the records, one line each; brings them up to date.

    Raises:
        ValueError: a block's name is unknown.
    """
    text = path.read_text()
    stale: list[str] = []

    def renewed(match: re.Match[str]) -> str:
        start, name, old, end = match.groups()
        new = between(name, path, inline="\n" not in old)
        if new != old:
            stale.append(f"{path.relative_to(ROOT)}: {name}")
        return start + new + end

    new_text = MARKED.sub(renewed, text)
    if write and stale:
        recording.write_text(path, new_text)
    return stale


def between(name: str, path: Path, inline: bool) -> str:
    """What stands between the two comments of the block `name` in a file."""
    if name not in BLOCKS:
        raise ValueError(f"{path}: found the block {name!r}, wanted one of {', '.join(BLOCKS)}")
    text = BLOCKS[name](os.path.relpath(recording.RECORDS, path.parent))
    return text if inline else f"\n{text}\n"


if __name__ == "__main__":
    main()

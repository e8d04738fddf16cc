"""A day with a GPU that is yours for 25 minutes: builds, verifies, tests, measures; one command.

    python -m experiments.benchmarks.gpu_day                                # make gpu-day
    python -m experiments.benchmarks.gpu_day --minutes 9 --out results      # in calls; goes on
    python -m experiments.benchmarks.gpu_day --again grid trainer
    python -m experiments.benchmarks.gpu_day --list

Runs the parts of parts.py, in their order, each in a process and for a time of its own: what fails
or hangs stops no other. A part starts if its whole time is left; where it is not, a shorter one
does. What is done is not done again, so the same command goes on where the last one stopped, also
after one that was killed. summary.md says what was met and missed, day.json holds every record,
logs.txt the ends of the logs; they are written anew every few seconds.

On a machine that has nothing of the calls before, --continue takes their day.json. Afterwards, on
any machine, `--continue day.json --minutes 0` lays the records out as files, in <folder>/records.
"""

import argparse
from pathlib import Path

from experiments.benchmarks.gpu_day import results
from experiments.benchmarks.gpu_day.day import DONE, Day
from experiments.benchmarks.gpu_day.parts import PARTS, ROOT


def parser() -> argparse.ArgumentParser:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=25.0, help="of this call (default 25)")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / "build" / "gpu-day",
        help="of builds, records and logs, kept from call to call (default build/gpu-day)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, help="where the three files of results go (default: the folder)"
    )
    parser.add_argument("--only", nargs="+", default=[], choices=names, help="these parts")
    parser.add_argument(
        "--again", nargs="*", choices=names, help="these parts, done or not; alone: all that failed"
    )
    parser.add_argument(
        "--continue", dest="day", type=Path, help="a day.json to go on from, where there is none"
    )
    parser.add_argument("--list", action="store_true", help="the parts, and what they run")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """0 if every part that was asked for is done."""
    asked = parser().parse_args(arguments)
    if asked.list:
        for part in PARTS:
            print(f"{part.name:<11} at most {part.seconds:.0f} s: {part.what}")
            print(f"            {' '.join(part.command)}")
        return 0
    if asked.day and not (asked.folder / "state.json").exists():
        results.unpack(asked.day, asked.folder)
    out = asked.out or asked.folder
    day = Day(PARTS, asked.folder, lambda day: results.publish(day, out))
    again = asked.again or []
    if asked.again == []:
        again = [part.name for part in PARTS if day.ended(part) not in (DONE, None)]
    day.run(asked.minutes, asked.only, again)
    print(f"\n{(out / 'summary.md').read_text()}\nresults: {out}")
    mine = [part for part in PARTS if not asked.only or part.name in asked.only]
    return 0 if all(day.ended(part) == DONE for part in mine) else 1


if __name__ == "__main__":
    raise SystemExit(main())

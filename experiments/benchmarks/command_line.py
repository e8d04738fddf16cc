"""What the commands print on this machine, for the page about them.

    python -m experiments.benchmarks.command_line --record

The model is the first snippet of docs/command_line.md. Paths of this machine are named as a reader
would have them.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments import recording

NAME = "command_line"
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "command_line.md"
BENCH = ("bench", "models.py:Tagger", "--input", "16,1000,38", "--threads", "1")


def model() -> str:
    """The source of the page's model."""
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def printed(folder: Path, *command: str) -> str:
    """What a command prints in a folder, paths renamed; raises if it finds problems."""
    done = subprocess.run(
        [sys.executable, "-m", "bppsa_lightning", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{ROOT}".strip(":")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return renamed(done.stdout, folder)


def renamed(text: str, folder: Path) -> str:
    """The text without the places where this machine keeps things."""
    for place, name in {
        str(folder): "/home/me",
        str(Path(sys.prefix)): "/home/me/.venv",
        str(ROOT / ".venv"): "/home/me/.venv",
        str(ROOT): "/home/me/bppsa_lightning",
    }.items():
        text = text.replace(place, name)
    return text


def results(seconds: float, picture: Path) -> dict[str, Any]:
    """{"doctor": text, "bench": text, "bench_json": the same as data}."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "models.py").write_text(model())
        found: dict[str, Any] = {"doctor": printed(folder, "doctor")}
        asked = (*BENCH, "--seconds", str(seconds))
        found["bench"] = printed(folder, *asked, "--picture", "gains.png")
        found["bench_json"] = json.loads(printed(folder, *asked, "--json"))
        picture.parent.mkdir(parents=True, exist_ok=True)
        picture.write_bytes((folder / "gains.png").read_bytes())
    return found


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="of timing")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    folder = recording.folder(asked.record)
    found = results(asked.seconds, folder / f"{NAME}.png")
    recording.write(folder / f"{NAME}.json", found)
    print(found["doctor"], found["bench"], sep="\n")


if __name__ == "__main__":
    main()

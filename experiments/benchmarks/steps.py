"""What a step of a recurrent layer takes, by its hidden size and number of samples, on this CPU.

    python -m experiments.benchmarks.steps

The planner chooses windows of time by this. Measured as `bl.calibrate` does. Writes steps_cpu.json.
"""

import argparse
from tempfile import TemporaryDirectory
from unittest.mock import patch

from bppsa_lightning.calibration import steps
from bppsa_lightning.calibration.cpu import CELLS
from bppsa_lightning.calibration.progress import Progress
from bppsa_lightning.planner import machine, tables
from experiments import recording


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="for each size")
    parser.add_argument("--passes", type=int, default=4, help="of which the least counts")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    with TemporaryDirectory() as own, patch.dict("os.environ", {tables.FOLDER: own}):
        kept = Progress(machine.this_cpu(), "steps")
        found = {}
        for cell in CELLS:
            found |= steps.measured(cell, kept, asked.seconds, asked.passes)
    path = recording.folder(asked.record) / "steps_cpu.json"
    rows = [
        {"cell": cell, "H": H, "samples": samples, "seconds": seconds}
        for (cell, H, samples), seconds in found.items()
    ]
    recording.write(path, {"rows": rows})
    head = ("cell", "H", *(f"{n} samples" for n in steps.SAMPLES))
    table = [
        (cell, str(H), *(f"{found[cell, H, n] * 1e6:.2f} us" for n in steps.SAMPLES))
        for cell in CELLS
        for H in steps.SIZES
    ]
    print(recording.markdown(head, table))
    print(f"record: {path}")


if __name__ == "__main__":
    main()

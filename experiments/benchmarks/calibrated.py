"""What `bl.calibrate` makes of this machine, for a table that the package ships.

    python -m experiments.benchmarks.calibrated amd_epyc_avx2/calibrated --record

Calibrates into a folder of its own, and keeps the table as the record that is named. `tables`
derives a shipped table from it.
"""

import argparse
import os
import tempfile

import torch

import bppsa_lightning as bl
from bppsa_lightning.planner import machine, tables
from experiments import recording


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", help="of the record")
    parser.add_argument("--threads", type=int, nargs="+", help="(default: torch's)")
    parser.add_argument("--seconds", type=float, default=150.0, help="for each number of threads")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        os.environ[tables.FOLDER] = folder
        machine.forget()
        for threads in asked.threads or [torch.get_num_threads()]:
            torch.set_num_threads(threads)
            print(bl.calibrate(seconds=asked.seconds, progress=False))
        table = tables.read_user(machine.this_cpu())
    assert table is not None
    path = recording.folder(asked.record) / f"{asked.name}.json"
    recording.write(path, table)
    print(f"record: {path}")


if __name__ == "__main__":
    main()

"""Fits a GPU's table for the planner to a record, and compares the planner's choices with it.

    python -m experiments.benchmarks.fit_planner                     # prints the comparison
    python -m experiments.benchmarks.fit_planner experiments/records/h200_recurrent.json --write

The fit is that of bppsa_lightning.calibration.cuda.fit.py. --write puts it into the table of
the GPU in bppsa_lightning/planner/tables/; the rest of that is kept. "kernels", which have passed
the GPU's tests, is edited by hand.

A record has to be of a gradient of every output (recurrent_gpu --loss every): from the last state
alone a walk has passed over the steps that no gradient reaches any more since PASSED_OVER, and the
planner would take it for as fast under every loss.

Letters: T steps, B batch, H state.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bppsa_lightning.calibration.cuda.fit import OPERATORS, Row, fit
from bppsa_lightning.planner import cost_cuda, tables
from experiments import recording


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("record", nargs="?", default=recording.RECORDS / "h200_recurrent.json")
    parser.add_argument("--processors", type=int, default=132, help="of that GPU (H200: 132)")
    parser.add_argument("--capability", default="9.0", help="of that GPU (H200: 9.0)")
    parser.add_argument("--write", action="store_true", help="into planner/tables")
    return parser


PASSED_OVER = "2026-11-24"


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    path = Path(asked.record).resolve()
    record = json.loads(path.read_text())
    others = {row["loss"] for row in record["rows"]} - {"every"}
    if others and record["environment"]["date"] >= PASSED_OVER:
        sys.exit(f"record: {path.name} is of the loss {others.pop()!r}, wanted 'every'")
    if not asked.write:
        compare(record["rows"])
        return
    table = table_of(record, path.name, asked.processors, asked.capability)
    name = str(table["machine"]["name"]).lower().replace(" ", "_")
    to = Path(tables.__file__).parent / f"{name}.json"
    untested = table | {"kernels": {"right": [], "wrong": {}}}
    tables.write(to, json.loads(to.read_text()) | table if to.exists() else untested)
    print(f"written: {to}; run again to compare")


def table_of(record: dict[str, Any], file: str, processors: int, capability: str) -> dict[str, Any]:
    """What a GPU's record says of its table."""
    of = record["environment"]
    return {
        "format": tables.FORMAT,
        "machine": {
            "device": "cuda",
            "name": of["gpu"],
            "processors": processors,
            "capability": capability,
        },
        "measured": {
            "date": of["date"],
            "torch": of["torch"],
            "records": [f"experiments/records/{file}"],
        },
        "recurrent": {"cells": fit(record["rows"], processors)},
    }


def compare(rows: list[Row]) -> None:
    def ms(seconds: float) -> str:
        return f"{seconds * 1e3:7.3f}"

    print("milliseconds; cost: of the chosen plan's backward, over the best one's")
    for row in rows:
        layer = cost_cuda.CudaLayerSize(OPERATORS[row["cell"]], row["T"], row["B"], row["H"])
        plan = cost_cuda.choose(layer, "auto")
        name = f"c{plan.chunk}" if plan.chunk else "linear"
        found, best = row["plans"][name], row["plans"][row["best"]]
        stock, cost = row["stock"], found["backward"] / best["backward"]
        left = " LEFT TO CUDNN" if cost_cuda.fallback_reason(layer) else ""
        print(
            f"{row['cell']:>9} B={row['B']:<4} T={row['T']:<6} H={row['H']:<4}{name:>7} "
            f"{ms(found['backward'])} (estimate {ms(plan.seconds)}), best {row['best']:>6} "
            f"{ms(best['backward'])}, cost {cost:.2f}, cuDNN {ms(stock['backward'])} (estimate "
            f"{ms(layer.stock('backward'))}), both {stock['both'] / found['both']:5.2f}x"
            f"{left}"
        )


if __name__ == "__main__":
    main()

"""Derives the planner's tables of CPUs from records.

    python -m experiments.benchmarks.tables            # what would change
    python -m experiments.benchmarks.tables --write    # into bppsa_lightning/planner/tables

"hand_over", "packed", "scan" and "steps" are fitted to the records that SOURCES names, by the
functions that `bl.calibrate` uses. (In these records a call that PyTorch kept was not measured
here: of it only the choice is known.) Tables of CALIBRATED are what `bl.calibrate` made of a
machine (`calibrated`). "bfloat16", "inference" and amd_epyc_2's "hand_over" are a record's as they
are. "dense", "diagonal"
and "pruned" were fitted by hand and stay as they are; tests hold them against their records.

T steps, B batch, H hidden.
"""

import argparse
import json
from typing import Any

import torch

import bppsa_lightning as bl
from bppsa_lightning import planner
from bppsa_lightning.calibration import fit_cpu
from bppsa_lightning.calibration.fit_cpu import Point, Scanned, Size
from bppsa_lightning.planner import cost_dense, tables
from experiments import recording

# Of each table: the machine's record, and those of its sections.
SOURCES = {
    "intel_xeon_2": {
        "hand_over": "grid_recurrent_cpu",
        "packed": "packed_recurrent_cpu",
        "scan": "planner_recurrent_cpu",
        "steps": "grid_recurrent_cpu",
        "pruned": "planner_sparse_cpu",
    },
    "amd_epyc_2": {
        "hand_over": "hand_over_table_cpu",
        "packed": "packed_recurrent_cpu",
        "scan": "amd_epyc/planner_recurrent_cpu",
        "steps": "amd_epyc/steps_cpu",
        "pruned": "planner_sparse_cpu",
        "bfloat16": "layers_bfloat16_table",
        "inference": "hand_over_table_cpu",
    },
}
# Of each table: the record of what `bl.calibrate` wrote.
CALIBRATED = {"amd_epyc_2_avx2": "amd_epyc_avx2/calibrated"}
# Calls left to PyTorch though two threads were faster here: a single step of an LSTM took 1.14
# times PyTorch's time on one thread of an AMD EPYC.
OVERRULED = [Size("LSTM", 1, 256, 64)]
KINDS = {"rnn_tanh": "RNN", "gru": "GRU", "lstm": "LSTM"}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write what is derived")
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    folder = tables.__path__[0]
    for name in (*SOURCES, *CALIBRATED):
        before, found = tables.shipped()[name], derived(name)
        changed = [key for key in found if before.get(key) != found[key]]
        print(f"{name}: {', '.join(changed) or 'nothing'} changed")
        if asked.write:
            recording.write_text(recording.Path(folder) / f"{name}.json", text(before | found))


def text(table: dict[str, Any]) -> str:
    """JSON with a list of numbers in a line."""
    return json.dumps(table, indent=1) + "\n"


def derived(name: str) -> dict[str, Any]:
    """The machine of a table, and the sections that are fitted to records."""
    if name in CALIBRATED:
        return calibrated(CALIBRATED[name])
    sources = SOURCES[name]
    records = {section: recording.read(source) for section, source in sources.items()}
    environment = records["hand_over"]["environment"]
    threads, grid = environment["torch_threads"], records["hand_over"].get("rows")
    scanned = records["scan"]
    as_recorded = {s: records[s][s] for s in ("hand_over", "inference") if s in records.get(s, ())}
    if "bfloat16" in records:
        as_recorded["bfloat16"] = records["bfloat16"]["table"]
    return {
        "format": tables.FORMAT,
        "machine": {
            "device": "cpu",
            "name": environment["cpu"],
            "cores": environment["cores"],
            "kernels": environment["cpu_kernels"],
        },
        "measured": {
            "date": environment["date"],
            "torch": environment["torch"],
            "bppsa_lightning": environment["bppsa_lightning"],
            "records": {s: f"experiments/records/{record}.json" for s, record in sources.items()},
        },
        **({"hand_over": [fit_cpu.hand_over(choices(grid), threads)]} if grid else {}),
        "packed": fit_cpu.packed(spread_choices(records["packed"]["rows"])),
        "scan": fit_cpu.scan(
            (backward for row in scanned["rows"] for backward in backwards(row)),
            scanned["environment"]["torch_threads"],
        ),
        "steps": [fit_cpu.steps(steps_of(records["steps"]), threads)],
        **as_recorded,
    }


def calibrated(source: str) -> dict[str, Any]:
    """What a calibration wrote, as a table that is shipped: for any versions.

    But "scan", of which a calibration times little: that is amd_epyc_2's.
    """
    table = recording.read(source)
    machine, measured = table["machine"], table["measured"]
    return {
        **{key: table[key] for key in ("format", "hand_over", "inference", "packed", "steps")},
        "machine": {k: v for k, v in machine.items() if k not in tables.VERSIONS},
        "measured": {
            "date": measured["date"],
            **{version: machine[version] for version in ("torch", "bppsa_lightning")},
            "records": {"all": f"experiments/records/{source}.json"},
        },
    }


def steps_of(record: dict[str, Any]) -> dict[tuple[str, int, int], float]:
    """Seconds of a step: as recorded, or of a grid by the difference of 1,000 and 100."""
    rows = record["rows"]
    if "seconds" in rows[0]:
        return {(row["cell"], row["H"], row["samples"]): row["seconds"] for row in rows}
    best = {
        (row["cell"], row["H"], row["B"], row["T"]): min(row["ours"]["both"], row["stock"]["both"])
        for row in rows
    }
    steps = {
        (cell, H, B): (seconds - best[cell, H, B, 100]) / 900
        for (cell, H, B, T), seconds in best.items()
        if T == 1000 and H >= 8
    }
    # The grid's inputs have H numbers: half of what a sample takes where there are many.
    most = max(B for _, _, B in steps)
    return {
        (cell, H, B): max(seconds - B * steps[cell, H, most] / most / 2, seconds / 4)
        for (cell, H, B), seconds in steps.items()
    }


def choices(rows: list[dict[str, Any]]) -> dict[Size, Point]:
    """Which sizes of a grid were computed here."""
    found = {}
    for row in rows:
        size = Size(row["cell"], row["T"], row["B"], row["H"])
        pays = row["scanned"] and size not in OVERRULED
        found[size] = Point(size.T, pays, row["ratio_stock"]["both"] if pays else None)
    return found


def spread_choices(rows: list[dict[str, Any]]) -> dict[tuple[Size, bool], Point]:
    """Likewise of samples of different lengths; of several rows of a size the worst counts."""
    found: dict[tuple[Size, bool], Point] = {}
    for row in rows:
        size = Size(row["cell"], row["T"], row["B"], row["H"])
        padded = 2 * row["N"] < size.T * size.B
        point = Point(size.T, row["scanned"], row["ratio"] if row["scanned"] else None)
        worst = found.setdefault((size, padded), point)
        if (point.pays, point.ratio or 0.0) < (worst.pays, worst.ratio or 0.0):
            found[size, padded] = point
    return found


def backwards(row: dict[str, Any]) -> list[Scanned]:
    """A backward by each fixed algorithm."""
    T, B, H = row["T"], row["B"], row["H"]
    chunk = row["chunk"] if "chunk" in row else _chunk_of_old(T, B, H)
    plans = [
        bl.Plan("linear"),
        bl.Plan("chunked", chunk=chunk),
        bl.Plan("blelloch", levels=planner.max_levels(T)),
    ]
    size = Size(KINDS[row["cell"]], T, B, H)
    return [Scanned(size, plan, row["seconds"][plan.algorithm]) for plan in plans]


def _chunk_of_old(T: int, B: int, H: int) -> int:
    """Records before 2026-11-23 do not name it; recurrent layers were planned as dense chains."""
    on = cost_dense.machine(planner.DENSE, torch.device("cpu"), 2)
    plans = cost_dense.candidates(T, "chunked")
    return min(plans, key=lambda plan: cost_dense.estimate(plan, T, B, H, on)).chunk


if __name__ == "__main__":
    main()

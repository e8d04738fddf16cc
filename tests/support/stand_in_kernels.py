"""Stands in for a GPU in calibration's worker: this package's CPU kernels, or the emulated CUDA
ones, with faults; times are those of the H200's record.

Environment:
    STAND_IN       "cpu" or "emulator"
    SEEDED_FAULTS  JSON, {kernel: "wrong" | "hang" | "abort" | "raise"}: in whatever runs that
                   kernel. Of "timed:<kernel>", while it is timed.
    LOG            a file that gets a line for each task
"""

import json
import os
import time
from pathlib import Path

import torch

from bppsa_lightning.calibration.cuda import grid, layers, tasks
from bppsa_lightning.calibration.cuda.cases import Case
from bppsa_lightning.calibration.cuda.fit import OPERATORS
from bppsa_lightning.planner import Saved, kernels
from support import emulated_recurrent
from support.emulation import compiled

RUNNER = __name__
RECORD = Path(__file__).parents[2] / "experiments" / "records" / "h200_recurrent.json"
by_kernels = layers.by_kernels


def prepare(device):
    if os.environ["STAND_IN"] == "none":
        raise RuntimeError("CUDA driver initialization failed")


def run(task, device, announce):
    with open(os.environ["LOG"], "a") as file:
        file.write(json.dumps(task) + "\n")
    if "scan" in task:
        return tasks.run(task, torch.device("cpu"), announce)
    if "size" in task:
        return timed(task, announce)
    compute = emulated if os.environ["STAND_IN"] == "emulator" else by_kernels

    def faulty(case, operands, incoming, device):
        found = compute(case, operands, incoming, device)
        for kernel in (*case.needs, case.kernel):
            fail(kernel, found)
        return found

    layers.by_kernels = faulty
    return tasks.run(task, torch.device("cpu"), announce)


def fail(name, found):
    """The fault that is seeded under a name, if any is."""
    fault = json.loads(os.environ.get("SEEDED_FAULTS", "{}")).get(name)
    if fault == "wrong":  # what it computes last
        found[list(found)[-1]][..., -1] += 0.01
    elif fault == "hang":
        time.sleep(3600)
    elif fault == "abort":
        os.abort()
    elif fault == "raise":
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore of it")


def timed(task, announce):
    """The record's row of a size, with the plans that are asked for."""
    size, rows = task["size"], json.loads(RECORD.read_text())["rows"]
    (row,) = (r for r in rows if size == {name: r[name] for name in size})
    announce("stock")
    for plan in task["plans"]:
        announce(plan)
        cell, T, H = OPERATORS[size["cell"]], size["T"], size["H"]
        way = grid.plan_named(plan)
        fail(f"timed:{kernels.backward(cell, 'float32', T, H, True, way)}", {})
    plans = {name: row["plans"][name] for name in task["plans"]}
    return {**size, "stock": row["stock"], "plans": plans}


def emulated(case: Case, operands, incoming, device):
    """As `layers.by_kernels`, by the CUDA kernels' own sources on the host."""
    keep = {Saved.STATES: emulated_recurrent.LEAST}.get(case.saved, emulated_recurrent.ALL)
    one = emulated_recurrent.Case(case.cell, case.reverse, operands, incoming)
    plan = {"algorithm": case.algorithm, "chunk": case.chunk, "levels": case.levels}
    result = emulated_recurrent.emulate(
        compiled("recurrent"), one, getattr(torch, case.dtype), **plan, keep=keep
    )
    assert case.cell == "rnn_relu" or not result.untrusted
    names = ["output", "h_n", "c_n"][: 2 + (case.cell == "lstm")]
    names += [f"grad_{name}" for name in operands] if case.backward else []
    return {name: result.found[name] for name in names}

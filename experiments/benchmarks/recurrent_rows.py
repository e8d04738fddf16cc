"""One row of the recurrent benchmarks: a case by scan, by stock PyTorch, and as else asked for.

Letters: B batch, T steps, H hidden, I input.
"""

import argparse
from typing import Any

import torch

import bppsa_lightning as bl
from bppsa_lightning.planner import cost_cuda
from experiments.benchmarks import recurrent_jax, timing
from experiments.benchmarks.recurrent_cases import (
    CELLS,
    Case,
    OperatorStep,
    name_of,
    pair,
    scanned,
)

Row = dict[str, Any]
Size = tuple[int, ...]  # B, T, H, I


def add_arguments(parser: argparse.ArgumentParser, seconds: float) -> None:
    """Adds what all recurrent benchmarks are asked: cells, sizes, time."""
    parser.add_argument("--cells", nargs="*", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--sizes", nargs="*", type=size, help="B,T,H,I …: these; no record")
    parser.add_argument("--pairs", type=int, default=11, help="at most, for a size (default 11)")
    parser.add_argument(
        "--seconds", type=float, default=seconds, help=f"for a size (default {seconds:g})"
    )


def size(text: str) -> Size:
    """B,T,H,I as typed."""
    return tuple(map(int, text.split(",")))


def measure(
    case: Case,
    device: torch.device,
    seconds: float,
    pairs: int,
    least: int = 1,
    jax: bool = False,
    plans: bool = False,
    scan: bool = False,
) -> Row:
    """The row of a case: sizes, the plan, medians of each way, ratios to ours.

    Args:
        case: the layer.
        device: where it is computed.
        seconds: for all pairs together.
        pairs, least: how many, at most and at least.
        jax: whether to measure JAX too, where it is installed.
        plans: whether to measure each plan of the backward, as bare operator calls.
        scan: whether to measure a layer that is left to PyTorch as scanned all the same, too.
    """
    ours, stock = pair(case, device)
    ways: dict[str, timing.Step] = {"ours": ours, "stock": stock}
    row = case.described()
    try:
        stock()  # what a first call sets up
    except RuntimeError as error:
        row["stock_fails"] = str(error).splitlines()[0]
        del ways["stock"]
    if jax:
        ways |= recurrent_jax.step_of(case)
    planned = every_plan(case, device) if plans else {}
    for way in (ours, *planned.values()):
        way()
    if scan and not ours.layer.forward.calls:
        ways["scan"] = scanned(case, device)
        ways["scan"]()
    found = timing.measure(ways | planned, seconds, pairs, least=3 if planned else least)
    if planned:
        row["plans"] = {name: found.pop(name) for name in planned}
        row["best"] = min(planned, key=lambda name: row["plans"][name]["backward"])
        found = {n: value for n, value in found.items() if n.removeprefix("ratio_") not in planned}
    chain = ours.layer.forward
    plan = chain.plan
    row |= {"scanned": chain.calls > 0, "algorithm": plan and name_of(plan)}
    return row | {"left_to_pytorch": chain.reason} | found


def every_plan(case: Case, device: torch.device) -> dict[str, timing.Step]:
    """The bare operators under the linear plan, and under chunks where they are composed."""
    plans = [bl.Plan("linear")]
    if case.H <= cost_cuda.MOST_COMPOSED:
        plans += [bl.Plan("chunked", chunk=c) for c in cost_cuda.chunks(case.T)]
    return {name_of(plan): OperatorStep(case, plan, device) for plan in plans}

"""Layers on different ranks: measured on two, and simulated beyond."""

from typing import Any

from experiments.paper.section import Records, Section
from experiments.recording import markdown

NAME = "depth_scaling"
WAYS = ("linear", "blelloch", "gpipe")
SHOWN = (2, 8, 64)  # ranks


def named(row: dict[str, Any]) -> str:
    return f"{row['n']} layers of {row['N']}, {row['B']} sample{'s' * (row['B'] > 1)}"


def measured(rows: list[dict[str, Any]]) -> str:
    lines = [
        [named(row), f"{row['seconds']['one'] * 1e3:.2f} ms",
         *(f"{row['speed_up'][way]:.2f}x" for way in WAYS)]
        for row in rows
    ]  # fmt: skip
    return markdown(("stack", "one process", "passed on", "scan", "GPipe"), lines)


def simulated(rows: list[dict[str, Any]], what: str) -> str:
    lines = []
    for row in rows:
        gains = {(r["way"], r["P"]): r[what] for r in row["simulated"]}
        lines += [[named(row), way, *(f"{gains[way, P]:.2f}x" for P in SHOWN)] for way in WAYS]
    return markdown(("stack", "way", *(f"P = {P}" for P in SHOWN)), lines)


def text(records: Records) -> str:
    rows = records[NAME]["stacks"]
    return "\n\n".join([
        "The paper's model parallelism: an `nn.Sequential` (a Linear and an activation, n times) "
        "whose layers lie on ranks. Measured, whole steps of two processes of one thread each, of "
        "one process' speed; of two ranks none composes, so that a scan is a message more:",
        measured(rows),
        "Simulated beyond, with the costs of layers, of products of their Jacobians and of "
        "messages measured here. The backward by itself, as the paper counts, of one rank's speed:",
        simulated(rows, "backward"),
        "Whole steps, whose activations still go from rank to rank one after another:",
        simulated(rows, "step"),
        "- **Against passing gradients on, the scan wins where ranks are many and layers narrow**: "
        "its rounds grow with log P, theirs with P.\n"
        "- **Against one process it does not pay for layers of this size**: a layer takes "
        "microseconds, a message a tenth of a millisecond.\n"
        "- **It loses where layers are wide**: a product of dense Jacobians costs N times what a "
        "layer's backward does, for each sample. There micro-batches are the better way, if a "
        "batch may be cut at all.",
    ])  # fmt: skip


def at_a_glance(records: Records) -> str:
    first = records[NAME]["stacks"][0]
    gains = {(r["way"], r["P"]): r["backward"] for r in first["simulated"]}
    last = max(P for _, P in gains)
    return (
        f"simulated, the backward of {named(first)} on {last} ranks: a scan "
        f"{gains['blelloch', last] / gains['linear', last]:.1f}x as fast as passing on, "
        f"{gains['blelloch', last]:.2f}x of one rank"
    )


SECTION = Section(
    name="depth_scaling",
    title="Layers on different ranks",
    minutes=2,
    paper="The scan over the layers of a model that is divided over devices (section 3).",
    run="experiments.paper.depth_scaling",
    quick="--pairs 2 --most 8",
    records=(NAME,),
    pictures=(NAME,),
    text=text,
    glance=at_a_glance,
)

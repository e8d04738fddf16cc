"""The time of a whole training step on p workers, simulated."""

from typing import Any

from experiments.paper.section import Records, Section
from experiments.recording import markdown

NAME = "workers"
SHOWN = (1, 2, 16, 256)  # workers, beside n


def simulated(found: dict[str, Any], compose: int) -> str:
    """Steps of the largest size: of the whole step, and of the backward alone in brackets."""
    n = found["sizes"][-1]
    rows = {
        (row["algorithm"], row["workers"]): row
        for row in found["rows"]
        if row["n"] == n and row["compose"] == compose
    }
    algorithms = list(dict.fromkeys(algorithm for algorithm, _ in rows))
    lines = []
    for p in (*(p for p in SHOWN if p < n), n):
        cells = [rows[algorithm, p] for algorithm in algorithms]
        lines.append([f"{p:,}", *(f"{row['step']:,} ({row['backward']:,})" for row in cells)])
    return markdown(("workers", *algorithms), lines)


def measured(found: dict[str, Any]) -> str:
    """What our kernels take, and the same plans in the simulation."""
    composes = [str(compose) for compose in found["composes"]]
    lines = []
    for row in found["measured"]:
        seconds = [f"{row['seconds'][part] * 1e3:.2f} ms" for part in ("forward", "backward")]
        steps = [f"{row['simulated'][compose]:,}" for compose in composes]
        lines.append([row["algorithm"], row["threads"], *seconds, f"{row['steps']:,.0f}", *steps])
    of = [f"simulated, a composition {times(int(c))}" for c in composes]
    return markdown(("", "threads", "forward", "backward", "whole step, in steps", *of), lines)


def times(compose: int) -> str:
    return f"{compose} step{'s' * (compose != 1)}"


def text(records: Records) -> str:
    found = records[NAME]
    n, w = found["sizes"][-1], found["warm"]
    parts = [
        f"Simulated: the tasks of n = {n:,} steps, with what each waits for, on so many workers. "
        "Whole steps, backward alone in brackets; the unit is one step of one sample."
    ]
    for compose in found["composes"]:
        what = "as the paper counts" if compose == 1 else "H³ over H² multiply-adds"
        parts += [f"Composing two Jacobians takes {times(compose)} ({what}):"]
        parts += [simulated(found, compose)]
    parts += [
        "- **Only the backward is Θ(log n).** The forward of chunked and blelloch is walked: their "
        "whole step takes more than n, over half of what linear takes.\n"
        "- **Few workers lose with a scan.** A composition is work that back-propagation does not "
        "have.\n"
        f"- **Windows take n/p + w each way**, if the recurrence forgets within w steps (here {w}) "
        "and all windows meet. More than n/w workers do not help. A recurrence that remembers is "
        "walked.\n"
        "- **A scan of the forward** (dotted in the picture) is exact for linear recurrences. "
        "Others need Newton's method around it: a scan for each iteration.",
        f"Measured: an `nn.RNN` of {found['H']} units, T = {n:,}, B = 1, float32; in steps, so "
        "that linear with one thread takes its simulated time. The simulated columns have the same "
        "plans on as many workers. Their difference is what the simulation leaves out: memory, "
        "threads that start and wait, gradients of weights, Python around the windows, and "
        "products of matrices that use vector units better than a single step does.",
        measured(found),
    ]
    return "\n\n".join(parts)


def at_a_glance(records: Records) -> str:
    found = records[NAME]
    n, compose = found["sizes"][-1], found["composes"][0]
    rows = {
        (r["algorithm"], r["compose"]): r
        for r in found["rows"]
        if r["n"] == n and r["workers"] == n
    }
    return (
        f"n = p = {n:,}: backward {rows['blelloch', 1]['backward']} steps "
        f"({rows['blelloch', compose]['backward']} where a composition takes {compose}), whole "
        f"step {rows['blelloch', compose]['step']:,}; in windows "
        f"{rows['speculative', compose]['step']:,}; walked {rows['linear', compose]['step']:,}"
    )


SECTION = Section(
    name="workers",
    title="Θ(log n) of the whole step, drawn",
    minutes=2,
    paper="Back-propagation takes Θ(n) steps, a Blelloch scan with n workers Θ(log n): counted, "
    "for the backward pass, every product as one step.",
    claim="backward Θ(log n) instead of Θ(n)",
    run="experiments.paper.workers",
    quick="--sizes 256 1024 --seconds 3",
    records=(NAME,),
    pictures=(NAME,),
    text=text,
    glance=at_a_glance,
)

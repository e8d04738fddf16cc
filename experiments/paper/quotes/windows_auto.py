"""What "auto" makes of one long sequence: beside fixed choices, without windows, and beside JAX."""

from statistics import median
from typing import Any

from experiments.paper.quotes.wording import source
from experiments.recording import markdown, read

NAME, BETWEEN, JAX = "windows_auto_cpu", "windows_auto_between_cpu", "windows_jax_cpu"


def chosen(records: str) -> str:
    """How far "auto" is behind the best fixed choice."""
    record = read(NAME)
    return (
        f'Of {len(record["grid"])} sizes, "auto" takes at most 1.05 times as long as the best of '
        f'"linear", "speculative" and PyTorch\'s own at {_behind(record)} '
        f"{source(records, NAME, record)}"
    )


def between(records: str) -> str:
    """The same where no table was measured."""
    record = read(BETWEEN)
    return (
        f"The tables hold no time for {len(record['grid'])} other sizes, of 700 to 3,000 steps, "
        f"where windows begin to pay. There the same is true at {_behind(record)} "
        f"{source(records, BETWEEN, record)}"
    )


def _behind(record: dict[str, Any]) -> str:
    over = sorted(record["grid"], key=lambda row: row["auto_over_best"])
    worst = over[-1]
    within = sum(row["auto_over_best"] <= 1.05 for row in over)
    return (
        f"{within}; {median(row['auto_over_best'] for row in over):.2f} in the median, "
        f"{worst['auto_over_best']:.2f} at worst ({worst['cell']}, {worst['H']} hidden units, "
        f"inputs of {worst['I']}, "
        f"{worst['T']:,} steps; {1e6 * worst['seconds']['auto']:.0f} µs)."
    )


def never(records: str) -> str:
    """What it costs to find out that a layer never meets."""
    rows = [
        (
            f"{row['cell']}, {row['H']} hidden units, {row['T']:,} steps", str(row["calls"]),
            *(
                f"{row['over_walk'][way][part]:.2f}"
                for way in ("auto", "speculative")
                for part in ("all", "first_ten")
            ),
        )
        for row in read(NAME)["never"]
    ]  # fmt: skip
    head = (
        "never meets", "calls", '"auto"', "its first ten calls", '"speculative"', "its first ten",
    )  # fmt: skip
    return markdown(head, rows)


def jax(records: str) -> str:
    """Beside a jitted jax.lax.scan."""
    record = read(JAX)
    cases = record["cases"]
    gains = ", ".join(f"{row['cell']} {row['gain']:.1f}x" for row in cases)
    of_fastest = ", ".join(f"{row['gain_of_fastest']:.1f}x" for row in cases)
    unrolled = ", ".join(row["fastest"].rpartition("unroll=")[2] for row in cases)
    row = cases[0]
    return (
        f'At ({row["T"]:,}, {row["B"]}, {row["H"]}), forward and backward, "auto" beside `jax.jit` '
        f"of a `jax.lax.scan`: {gains} as fast. Unrolled to the number of steps with which JAX is "
        f"fastest ({unrolled}): {of_fastest}. {source(records, JAX, record)}"
    )


BLOCKS = {
    "windows_auto": chosen,
    "windows_between": between,
    "windows_never": never,
    "windows_jax": jax,
}

"""Models of public packages whose own loops over time became calls of `bl.scan`."""

from experiments.paper.quotes.wording import speed_up
from experiments.recording import read


def fits(records: str) -> str:
    """How many times as fast fits in windows are: "GRU-D 9.0x (4096 steps, batch 4), …"."""
    found = []
    for row in read("third_party_loops")["rows"]:
        name, _, sizes = row["model"].partition(", ")
        if row["scans"]:
            found.append(f"{name} {speed_up(row['speed_up'])} ({sizes})")
    return ", ".join(found)


BLOCKS = {"loops_of_packages": fits}

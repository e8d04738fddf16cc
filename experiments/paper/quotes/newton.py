"""Newton's method over a recurrence."""

from experiments.paper.quotes.wording import source
from experiments.paper.sections.newton import NAME, findings, table, what
from experiments.recording import read


def beside_the_walk(records: str) -> str:
    """What was timed, a line for each cell, and what was found."""
    record = read(NAME)
    about = f"{what(record)}. {source(records, NAME, record)}"
    return f"{about}\n\n{table(record)}\n\n{findings(record)}"


BLOCKS = {"newton": beside_the_walk}

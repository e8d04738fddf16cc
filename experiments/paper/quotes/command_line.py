"""What the commands print, as recorded."""

from experiments.paper.quotes.wording import source
from experiments.recording import read

NAME = "command_line"


def doctor(records: str) -> str:
    """All of it."""
    record = read(NAME)
    return f"```text\n{record['doctor']}```"


def bench(records: str) -> str:
    """All of it, and where it was."""
    record = read(NAME)
    return f"```text\n{record['bench']}```\n\n{source(records, NAME, record)}"


BLOCKS = {"doctor_prints": doctor, "bench_prints": bench}

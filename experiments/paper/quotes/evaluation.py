"""`Trainer.test` by itself, under "bppsa" and under stock PyTorch."""

from experiments.paper.quotes.wording import ms, source, speed_up
from experiments.recording import markdown, read

NAME = "evaluation_cpu"
HEAD = ("network", "stock PyTorch", "bppsa", "speed-up")


def table(records: str) -> str:
    """A batch of each network."""
    record = read(NAME)
    rows = [
        (row["network"], ms(row["stock"]), ms(row["ours"]), speed_up(row["ratio"]))
        for row in record["rows"]
    ]
    return f"{markdown(HEAD, rows)}\n\n{source(records, NAME, record)}"


BLOCKS = {"evaluation": table}

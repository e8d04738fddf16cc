"""What the examples gained, each beside stock PyTorch in the same run."""

from statistics import median
from typing import Any

from experiments.paper.quotes.wording import ms, or_slower, source
from experiments.recording import markdown, read


def _trained(name: str, what: str) -> list[str]:
    """A row of an example that trains by two strategies."""
    record = read(f"example_{name}")
    stock, ours = (record[way]["seconds"]["step"] for way in ("stock", "bppsa"))
    return [what, ms(stock), ms(ours), or_slower(record["speed_up"]["step"])]


def _reinforcement() -> list[list[str]]:
    record = read("example_reinforcement")
    rows = []
    for way, name in (("stock", "segments, PyTorch"), ("bppsa", "segments, `bl.attach`")):
        seconds = [median(record[which]["seconds"]) for which in ("loop", way)]
        what = f"reinforcement: a loop with masks, and {name}"
        rows.append([what, *map(ms, seconds), or_slower(record[way]["speed_up"])])
    return rows


def _long() -> list[list[str]]:
    record = read("example_long_sequences")
    rows = []
    for way, name in (("bppsa", "`bppsa`, one process"), ("chain", "`bppsa_chain`, two")):
        steps = [ms(record[which]["step"]) for which in ("stock", way)]
        rows.append([f"long sequences: {name}", *steps, or_slower(record[way]["speed_up"])])
    return rows


def gains(records: str) -> str:
    """A step of each example."""
    rows = [
        _trained("forecasting", "forecasting: a step"),
        _trained("audio_tagging", "audio tagging: a step"),
        *_reinforcement(),
        _trained("prune_and_retrain", "retraining: a step"),
        *_long(),
    ]
    table = markdown(("example", "PyTorch", "bppsa", "speed-up"), rows)
    return f"{table}\n\n{source(records, 'example_forecasting', read('example_forecasting'))}"


def memory(records: str) -> str:
    """Megabytes of a process over long sequences: "597 MB with PyTorch, …"."""
    record: dict[str, Any] = read("example_long_sequences")
    names = {"stock": "PyTorch", "bppsa": '`"bppsa"`', "chain": '`"bppsa_chain"`'}
    return ", ".join(f"{record[w]['bytes'] / 2**20:.0f} MB with {n}" for w, n in names.items())


BLOCKS = {"examples": gains, "examples_memory": memory}

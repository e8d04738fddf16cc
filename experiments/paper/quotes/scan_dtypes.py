"""Scans of 16-bit floats beside those of float32."""

from experiments.paper.quotes.wording import source
from experiments.recording import read

NAME = "scan_dtypes_cpu"


def sixteen_bits(records: str) -> str:
    """Of what float32 takes, the least and the most; and beside a loop."""
    record = read(NAME)

    def range_of(way: str) -> str:
        ratios = [row[f"ratio_{way}"]["scan"] for row in record["rows"]]
        return f"{min(ratios):.1f} to {max(ratios):.1f}"

    return (
        f"A scan of bfloat16 takes {range_of('bfloat16')} times as long as one of float32, of "
        f"float16 {range_of('float16')} times; PyTorch's own operators, a step at a time in "
        f"float32, {range_of('loop')} times. {source(records, NAME, record)}"
    )


BLOCKS = {"scan_dtypes": sixteen_bits}

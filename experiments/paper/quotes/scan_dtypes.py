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
        f"A scan in bfloat16 takes {range_of('bfloat16')} times as long as in float32, in float16 "
        f"{range_of('float16')} times. A loop over the steps with PyTorch's operators, in float32, "
        f"takes {range_of('loop')} times as long. {source(records, NAME, record)}"
    )


BLOCKS = {"scan_dtypes": sixteen_bits}

"""Sparse Jacobians: how fast they are made and multiplied, and FLOPs of a scan over them."""

from experiments.paper.quotes.wording import ms, source, speed_up
from experiments.paper.sections import figure10
from experiments.recording import markdown, read

HEADER = ("layer", "zeros", "column by column", "bppsa", "speed-up", "the paper's")


def jacobians(records: str) -> str:
    """Table 1 of the paper."""
    record = read("table1")
    rows = [
        (
            row["layer"],
            f"{row['sparsity']:.5f}",
            f"{row['baseline_seconds']:.1f} s",
            f"{row['seconds'] * 1e6:.0f} µs",
            f"{row['speed_up']:.1e}x",
            f"{row['paper_speed_up']:.1e}x",
        )
        for row in record["rows"]
    ]
    return f"{markdown(HEADER, rows)}\n\n{source(records, 'table1', record)}"


def contiguous_baseline(records: str) -> str:
    """The baseline of table 1 where it writes to contiguous memory."""
    rows = read("table1")["rows"]
    return ", ".join(f"{row['layer']} {row['baseline_contiguous_seconds']:.1f} s" for row in rows)


def products(records: str) -> str:
    """A product of two Jacobians, beside torch and SciPy."""
    record = read("benchmark_products")
    seconds, ratio = record["seconds"], record["ratio"]
    return (
        f"The product takes {ms(seconds['ours'])}: {speed_up(ratio['torch'])} as fast as "
        f"`torch.sparse.mm`, {speed_up(ratio['scipy'])} as fast as SciPy. Its plan takes "
        f"{ms(record['symbolic_seconds'])}, once. {source(records, 'benchmark_products', record)}"
    )


def flops(records: str) -> str:
    """Figure 10 of the paper in a paragraph."""
    record = read("figure10")
    return f"{figure10.text({'figure10': record})} ([record]({records}/figure10.json))"


BLOCKS = {
    "table1": jacobians,
    "table1_contiguous": contiguous_baseline,
    "products": products,
    "figure10": flops,
}

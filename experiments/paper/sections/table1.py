"""Table 1: sparsity of Jacobians, and how fast they are made."""

from typing import Any

from experiments.paper.section import Records, Section
from experiments.recording import markdown


def text(records: Records) -> str:
    header = ("layer", "zeros", "paper", "column by column", "ours", "speed-up", "paper")
    return markdown(header, map(_cells, records["table1"]["rows"])) + (
        "\n\nIn brackets: with the pattern built anew, as in the first call alone. * extrapolated "
        "from the columns that were timed, as the dense matrix does not fit into memory."
    )


def _cells(row: dict[str, Any]) -> list[str]:
    return [
        row["layer"],
        f"{row['sparsity']:.5f}",
        f"{row['paper_sparsity']:.5f}",
        f"{row['baseline_seconds']:.1f} s" + ("*" if row["extrapolated"] else ""),
        f"{row['seconds'] * 1e6:.0f} µs",
        f"{row['speed_up']:.1e}x ({row['speed_up_first']:.1e}x)",
        f"{row['paper_speed_up']:.1e}x",
    ]


def at_a_glance(records: Records) -> str:
    rows = records["table1"]["rows"]
    zeros = " / ".join(f"{row['sparsity']:.5f}" for row in rows)
    return f"{zeros}; " + " / ".join(f"{row['speed_up']:.1e}x" for row in rows)


SECTION = Section(
    name="table1",
    title="Table 1: sparsity of Jacobians, and how fast they are made",
    minutes=1,
    paper="The first convolution, ReLU and max-pooling of VGG-11 on 3 × 32 × 32: the share of "
    "zeros, and the speed-up of writing a Jacobian's non-zeros over asking autograd for it "
    "column by column.",
    claim="0.99157 / 0.99998 / 0.99994; 8.3e+03x / 1.2e+06x / 1.5e+05x",
    run="experiments.paper.table1",
    quick="--seconds 1",
    records=("table1",),
    pictures=("table1",),
    text=text,
    glance=at_a_glance,
)

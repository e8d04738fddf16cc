"""Newton's method over a recurrence, beside the walk."""

from collections.abc import Iterable
from statistics import median
from typing import Any

from experiments.paper.section import Records, Section
from experiments.recording import markdown

NAME = "newton_cpu"
HEADER = (
    "", "Newton: converged", "iterations", "time", "diagonals: converged", "iterations", "time",
    "scans alone", "windows", "PyTorch's own",
)  # fmt: skip
Row = dict[str, Any]


def cases(record: dict[str, Any]) -> list[Row]:
    """The rows of the length that most have."""
    lengths = [row["T"] for row in record["rows"]]
    return [row for row in record["rows"] if row["T"] == max(lengths, key=lengths.count)]


def span(values: Iterable[float], unit: str = "") -> str:
    """ "3 to 8"; below 10 with a digit where it has one."""
    found = list(values)
    if not found:
        return "-"
    low, high = (f"{v:.1f}" if v % 1 and v < 9.95 else f"{v:.0f}" for v in (min(found), max(found)))
    return f"{low}{unit} to {high}{unit}" if low != high else f"{low}{unit}"


def what(record: dict[str, Any]) -> str:
    """What was timed."""
    rows, threads = cases(record), record["environment"]["torch_threads"]
    return (
        f"Forward and backward over {rows[0]['T']:,} steps of one sample, "
        f"{span(row['H'] for row in rows)} hidden units, recurrent weights multiplied by "
        f"{span(row['gain'] for row in rows)}, {threads} thread{'s' * (threads > 1)}; times are "
        "multiples of our walk's"
    )


def table(record: dict[str, Any]) -> str:
    """A line for each cell."""
    rows = cases(record)
    cells = dict.fromkeys(row["cell"] for row in rows)
    return markdown(HEADER, [_line(cell, rows, record["pytorch"]) for cell in cells])


def _line(cell: str, rows: list[Row], pytorch: list[Row]) -> list[str]:
    mine = [row for row in rows if row["cell"] == cell]
    cells = [cell]
    for way in ("newton", "diagonal"):
        solved = [row[way] for row in mine if row[way]["converged"]]
        cells += [
            f"{len(solved)} of {len(mine)}",
            span(s["iterations"] for s in solved),
            span((s["to_walk"] for s in solved), "x"),
        ]
    for way in ("scans", "windows"):
        cells.append(span((row[way]["to_walk"] for row in mine if way in row), "x"))
    walks = {row["H"]: row["walk"]["seconds"] for row in mine if row["gain"] == 1}
    own = (p["seconds"] / walks[p["H"]] for p in pytorch if p["cell"] == cell)
    return [*cells, span(own, "x")]


def findings(record: dict[str, Any]) -> str:
    """What the table does not say."""
    rows = cases(record)
    solved = [row for row in rows if row["newton"]["converged"]]
    failed = [row for row in rows if not row["newton"]["converged"]]
    times = median(row["newton"]["to_walk"] for row in solved)
    worse = [max(_to_walks(row, kind) for row in solved) for kind in ("error", "gradient_error")]
    parallel = (scan["chunked"] / scan["linear"] for scan in record["one_scan"])
    words = [
        f"In the median Newton's method takes {times:.0f} times as long as the walk. The error of "
        f"its results is at most {worse[0]:.1f} times the walk's, that of its gradients "
        f"{worse[1]:.1f} times. Its Jacobians take "
        f"{span(row['jacobian_bytes'] / 2**20 for row in rows)} MiB. Their scans are walked here; "
        f"a scan in parallel takes {span(parallel)} times as long."
    ]
    if failed:
        kinds = ", ".join(dict.fromkeys(row["cell"] for row in failed))
        doubles = [n for row in failed if (n := row["newton"]["iterations_float64"])]
        words.append(
            f"{len(failed)} layers ({kinds}, weights times {min(row['gain'] for row in failed):g} "
            f"or more) have not converged after {record['most_iterations']} iterations; in float64 "
            f"{len(doubles)} of them do, after {span(doubles)}."
        )
    return " ".join(words)


def _to_walks(row: Row, kind: str) -> float:
    """Newton's error over the walk's; 0 where they are not finite."""
    return (row["newton"][kind] or 0) / (row["walk"][kind] or 1)


def text(records: Records) -> str:
    record = records[NAME]
    return f"{what(record)}:\n\n{table(record)}\n\n{findings(record)}"


def at_a_glance(records: Records) -> str:
    rows = cases(records[NAME])
    solved = [row["newton"] for row in rows if row["newton"]["converged"]]
    times = span((way["to_walk"] for way in solved), "x")
    return f"{len(solved)} of {len(rows)} converge, in {times} the walk's time"


SECTION = Section(
    name="newton",
    title="Newton's method over all time steps, beside the walk",
    paper="Not in the paper: DEER ([arXiv:2309.12252](https://arxiv.org/abs/2309.12252)), which "
    "solves a recurrence by Newton's method, each iteration a scan over Jacobians.",
    records=(NAME,),
    pictures=(NAME,),
    text=text,
    glance=at_a_glance,
    elsewhere="`python -m experiments.benchmarks.newton --record`",
)

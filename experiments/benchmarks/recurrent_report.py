"""The rows of a recurrent benchmark's record, as lines of text and as a table in Markdown."""

from collections.abc import Sequence
from typing import Any

from experiments import recording
from experiments.benchmarks.recurrent_cases import PARTS

Row = dict[str, Any]
LETTERS = ("cell", "B", "T", "H", "I")
HEAD = (*LETTERS, "fwd", "bwd", "both", "stock fwd", "bwd", "both", "JAX")


def heading() -> str:
    """What stands above the lines of rows."""
    what = (
        "milliseconds, forward + backward with parameter gradients; x: stock / ours, JAX / ours\n"
    )
    return what + "".join(f"{name:>9}" for name in (*HEAD, "fwd x", "bwd x", "both x", "JAX x"))


def line(row: Row) -> str:
    """A row for the terminal: milliseconds, then times faster than stock and than JAX."""
    cells = [f"{row[k]:>9}" for k in LETTERS]
    for who in ("ours", "stock"):
        cells += [f"{row[who][p] * 1e3:>9.3f}" if who in row else f"{'-':>9}" for p in PARTS]
    cells.append(f"{row['jax']['both'] * 1e3:>9.3f}" if "jax" in row else f"{'-':>9}")
    ratios = row.get("ratio_stock", {})
    cells += [f"{ratios[p]:>8.2f}x" if p in ratios else f"{'-':>9}" for p in PARTS]
    cells.append(f"{row['ratio_jax']['both']:>8.2f}x" if "jax" in row else f"{'-':>9}")
    return "".join(cells) + "".join(f"   {text}" for text in _remarks(row))


def _remarks(row: Row) -> list[str]:
    settings = " ".join(f"{name}={value}" for name, value in row.get("settings", {}).items())
    best = ""
    if row.get("plans"):
        times = row["plans"][row["best"]]
        best = f"{row['algorithm']}; best {row['best']} {times['backward'] * 1e3:.3f}"
    left = "" if row["scanned"] else "left to PyTorch"
    if "scan" in row:
        left += f" (scanned: {row['scan']['both'] * 1e3:.3f})"
    failed = f"stock fails: {row['stock_fails']}" if "stock_fails" in row else ""
    return [text for text in (settings, best, left, failed) if text]


def table(rows: Sequence[Row]) -> str:
    """Rows in Markdown; those left to PyTorch are marked."""
    jax = any("jax" in row for row in rows)
    header = [*LETTERS, "ours", "stock PyTorch", "backward", "both", *["JAX (jit)"] * jax]
    return recording.markdown(header, [_cells(_attached(row), jax) for row in rows])


def _cells(row: Row, jax: bool) -> list[str]:
    cells = [str(row[letter]) for letter in LETTERS]
    cells[0] += "".join(f", {n} {v}" for n, v in row.get("settings", {}).items())
    left = "" if row["scanned"] else " (PyTorch)"
    cells.append(f"{row['ours']['both'] * 1e3:.2f} ms{left}")
    cells.append(f"{row['stock']['both'] * 1e3:.1f} ms" if "stock" in row else "fails")
    ratios = row.get("ratio_stock", {})
    cells += [f"{ratios[p]:.1f}x" if p in ratios else "-" for p in ("backward", "both")]
    if jax:
        cells.append(f"{row['ratio_jax']['both']:.1f}x" if "jax" in row else "-")
    return cells


def _attached(row: Row) -> Row:
    """The row, with the best plan's operators for the layer where only they were measured."""
    if "ours" in row:
        return row
    ours, stock = row["plans"][row["best"]], row["stock"]
    ratios = {part: stock[part] / ours[part] for part in PARTS}
    return row | {"ours": ours, "ratio_stock": ratios, "scanned": True}

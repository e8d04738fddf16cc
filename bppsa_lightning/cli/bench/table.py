"""A bench as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bppsa_lightning._cores import BUSY

if TYPE_CHECKING:
    from bppsa_lightning.cli.bench.agreement import Agreement
    from bppsa_lightning.cli.bench.clock import Compared
    from bppsa_lightning.cli.bench.found import Bench

_HEADER = ("", "forward", "", "", "backward", "", "", "both", "", "")
_UNDER = ("", *("PyTorch", "bppsa", "speed-up") * 3)


def text(bench: Bench) -> str:
    """For people: times, what ran how, memory, agreement."""
    rows: list[tuple[str, ...]] = [_HEADER, _UNDER]
    rows += [(layer["name"], *_cells(layer["compared"])) for layer in bench.layers]
    rows.append(("whole model", *_cells(bench.whole)))
    lines = [bench.title, bench.hardware, "", *_table(rows)]
    lines += ["", *(_layer(layer) for layer in bench.layers)]
    if not bench.layers:
        lines.append("bppsa accelerates no layer of this model.")
    lines += [f"{name}: not accelerated, {reason}" for name, reason in bench.others]
    lines += ["", f"memory ({bench.memory_of}): {_memory(bench)}"]
    lines.append(_agreement("outputs", bench.outputs))
    lines.append(_agreement("gradients", bench.gradients))
    if bench.other_load is not None and bench.other_load >= BUSY:
        lines.append(
            f"Other programs kept {bench.other_load:.1f} cores busy: times are not to be trusted."
        )
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """ "12.3 ms"; three digits."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{_three(seconds / unit)} {name}"
    return f"{_three(seconds / 1e-6)} us"


def times(ratio: float | None) -> str:
    """ "2.3x"."""
    return "-" if ratio is None else f"{ratio:.0f}x" if ratio >= 99.5 else f"{ratio:.2g}x"


def size(count: int | None) -> str:
    """ "1.2 MiB"."""
    return "?" if count is None else f"{count / 2**20:,.1f} MiB"


def _three(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def _cells(compared: Compared) -> list[str]:
    cells = []
    for part in ("forward", "backward", "both"):
        seconds = getattr(compared.stock, part), getattr(compared.ours, part)
        cells += [*map(duration, seconds), times(compared.speed_up[part])]
    return cells


def _layer(layer: dict[str, object]) -> str:
    calls = "" if layer["calls"] == 1 else f"; called {layer['calls']} times, the first was timed"
    size = "" if layer["size"] == "?" else f", {layer['size']}"
    return (
        f"{layer['name']}: {layer['type']}{size}; runs on {layer['runs on']}: {layer['how']}{calls}"
    )


def _memory(bench: Bench) -> str:
    stock, ours = bench.memory["stock"], bench.memory["bppsa"]
    return f"PyTorch {size(stock)}, bppsa {size(ours)}"


def _agreement(what: str, found: Agreement) -> str:
    if found.holds:
        return f"{what} agree: largest relative error {found.error:.1g} ({found.where})"
    return (
        f"{what} DISAGREE: relative error {found.error:.1e} in {found.where}. If the model draws "
        "random numbers of its own, or is chaotic, that may be why; if not, please report it."
    )


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]

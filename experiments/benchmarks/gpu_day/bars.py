"""What is wanted of a part's log and records, and whether it was met, with the figures."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from experiments import recording

NOISE = 0.95  # of stock's time over ours: below, ours is slower
NEAR_BEST = 1.2  # of a plan's time over the best one's
LONG = 1000  # steps from which on a plan is more than the host's pace
AS_COMMITTED = 0.9  # of a committed record's speed-up
COMMITTED = Path(recording.__file__).parent / "records" / "h200_layers.json"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    """What a part left behind: its log; the records and tables that it wrote, by name."""

    log: str
    records: Mapping[str, Mapping[str, Any]]
    tables: Mapping[str, Mapping[str, Any]]

    def rows(self, key: str) -> list[Row]:
        return [row for record in self.records.values() for row in record.get(key, [])]


class Verdict(NamedTuple):
    """`met` is None for what is only told."""

    wanted: str
    found: str
    met: bool | None


Bar = Callable[[Found], Verdict]


def verified(found: Found) -> Verdict:
    """Of a calibration: what the table for the GPU says of its kernels."""
    wanted = "a table for this GPU, no kernel wrong"
    tables = [t["kernels"] for t in found.tables.values() if isinstance(t.get("kernels"), Mapping)]
    if not tables:
        return Verdict(wanted, "no table", False)
    right = sum(len(kernels.get("right", ())) for kernels in tables)
    wrong = {name: why for kernels in tables for name, why in kernels.get("wrong", {}).items()}
    told = "".join(f"; {name}: {why}" for name, why in wrong.items())
    return Verdict(wanted, f"{right} right, {len(wrong)} wrong{told}", right > 0 and not wrong)


def tests_pass(found: Found) -> Verdict:
    """Of pytest's last lines, one for each file, and of make's."""
    counts = dict.fromkeys(("passed", "failed", "error", "skipped"), 0)
    for line in re.findall(r"^.* in \d+\.\d+s\b.*$", found.log, re.MULTILINE):
        for number, what in re.findall(r"(\d+) (passed|failed|error|skipped)", line):
            counts[what] += int(number)
    cut = re.findall(r"\*\*\* \[[^]]*gpu-test/(\S+)\] Error (?:124|137)", found.log)
    told = ", ".join(f"{number} {what}" for what, number in counts.items())
    told += f"; out of time: {', '.join(cut)}" if cut else ""
    met = counts["passed"] > 0 and not (counts["failed"] or counts["error"] or cut)
    return Verdict("all tests pass", told, met)


def no_errors_found(found: Found) -> Verdict:
    """Of compute-sanitizer's summaries, one for each process."""
    wanted = "no errors"
    errors = [int(n) for n in re.findall(r"SUMMARY: (\d+) (?:error|hazard)", found.log)]
    if not errors:
        return Verdict(wanted, "no summary in the log", False)
    return Verdict(wanted, f"{sum(errors)} errors", sum(errors) == 0)


def no_row_slower(key: str) -> Bar:
    """Of the rows of a recurrent record, as attached with "auto"."""

    def judge(found: Found) -> Verdict:
        wanted = f"{key}: none slower than PyTorch"
        compared = [row for row in found.rows(key) if "ratio_stock" in row]
        failed = found.rows(f"{key}_failed")
        if not compared:
            return Verdict(wanted, f"no rows, {len(failed)} failed", False)
        compared.sort(key=lambda row: row["ratio_stock"]["both"])
        slower = [row for row in compared if row["ratio_stock"]["both"] < NOISE]
        speed_up = median(row["ratio_stock"]["both"] for row in compared)
        scanned = sum(row.get("scanned", True) for row in slower)
        told = f"{len(slower)} of {len(compared)} slower ({scanned} by scan), "
        told += f"median {speed_up:.2f}x"
        told += "".join(f"; {size(row)} {row['ratio_stock']['both']:.2f}x" for row in slower[:3])
        told += f"; {len(failed)} failed, as {failed[0]['fails']}" if failed else ""
        left_out = sum(record.get("left_out", 0) for record in found.records.values())
        told += f"; {left_out} sizes left out for want of time" if left_out else ""
        return Verdict(wanted, told, not slower and not failed)

    return judge


def worth_scanning(key: str) -> Bar:
    """Of the rows that the planner left to PyTorch: those that it should not have."""

    def judge(found: Found) -> Verdict:
        left = [row for row in found.rows(key) if "scan" in row and "stock" in row]
        ratios = {size(row): row["stock"]["both"] / row["scan"]["both"] for row in left}
        better = sorted(((r, size) for size, r in ratios.items() if r > 1 / NOISE), reverse=True)
        told = f"{len(better)} of {len(left)}" + "".join(f"; {s} {r:.2f}x" for r, s in better[:3])
        return Verdict(f"{key} left to PyTorch, but faster by scan", told, None)

    return judge


def backward_over_stock(cell: str, B: int, T: int, H: int) -> Bar:
    """Of one size of the grid: as fast as the committed record, on the GPU that it is of."""

    def judge(found: Found) -> Verdict:
        what = f"backward of {cell} ({B}, {T}, {H})"
        for record in found.records.values():
            for row in record.get("rows", []):
                if (row["cell"], row["B"], row["T"], row["H"]) == (cell, B, T, H):
                    return _compared(what, row, record["environment"].get("gpu"))
        return Verdict(what, "no such row", False)

    return judge


def _compared(what: str, row: Row, gpu: str | None) -> Verdict:
    committed = json.loads(COMMITTED.read_text())
    least = 1.0
    if committed["environment"]["gpu"] == gpu:
        same = (r for r in committed["rows"] if size(r) == size(row))
        ratios = (r["ratio_stock"]["backward"] for r in same if "ratio_stock" in r)
        least = max([1.0, *(AS_COMMITTED * ratio for ratio in ratios)])
    wanted = f"{what}: at least {least:.1f}x"
    if "ratio_stock" not in row:
        return Verdict(wanted, "stock PyTorch fails", None)
    ratio = row["ratio_stock"]["backward"]
    told = f"{ratio:.1f}x as attached, {_best(row):.1f}x the operators with the best plan"
    return Verdict(wanted, told, ratio >= least)


def plans_near_best(found: Found) -> Verdict:
    """Of the sizes that are scanned: what the planner's choice takes, over the best plan."""
    wanted = f"planner's backward, from {LONG} steps on: at most {NEAR_BEST}x the best plan's"
    regrets = {}
    for row in found.rows("rows"):
        plans = row.get("plans", {})
        if row["T"] >= LONG and row["scanned"] and row["algorithm"] in plans:
            chosen, best = plans[row["algorithm"]], plans[row["best"]]
            regrets[size(row)] = chosen["backward"] / best["backward"]
    if not regrets:
        return Verdict(wanted, "no row is scanned", False)
    worst = max(regrets, key=regrets.__getitem__)
    told = f"median {median(regrets.values()):.2f}x, worst {regrets[worst]:.2f}x at {worst}"
    return Verdict(wanted, told, regrets[worst] <= NEAR_BEST)


def trainings_faster(found: Found) -> Verdict:
    wanted = "no training slower than stock PyTorch"
    rows = found.rows("rows")
    told = ", ".join(f"{row['cell']} T={row['T']} {row['ratio']:.2f}x" for row in rows)
    return Verdict(wanted, told or "no rows", bool(rows) and min(r["ratio"] for r in rows) > NOISE)


def product_faster(found: Found) -> Verdict:
    wanted = "faster than cuSPARSE"
    ratios = [r["ratio"]["torch"] for r in found.records.values() if "torch" in r.get("ratio", {})]
    told = ", ".join(f"{ratio:.1f}x" for ratio in ratios)
    return Verdict(wanted, told or "no record", bool(ratios) and min(ratios) > 1)


def layers_faster(found: Found) -> Verdict:
    wanted = "no layer of bl.nn slower than its loop"
    ratios = {row["cell"]: row["ratio_loop"]["both"] for row in found.rows("rows")}
    told = ", ".join(f"{cell} {ratio:.1f}x" for cell, ratio in ratios.items())
    return Verdict(wanted, told or "no rows", bool(ratios) and min(ratios.values()) >= 1)


def no_more_memory(found: Found) -> Verdict:
    wanted = "peak memory: no more than stock PyTorch's"
    rows = found.rows("peak_memory")
    ratios = {row["cell"]: row["ours"] / row["stock"] for row in rows}
    told = ", ".join(f"{cell} {ratio:.2f} of stock's" for cell, ratio in ratios.items())
    return Verdict(wanted, told or "no rows", bool(rows) and max(ratios.values()) <= 1)


def _best(row: Row) -> float:
    """Stock's backward over that of the best plan's operators."""
    return float(row["stock"]["backward"] / row["plans"][row["best"]]["backward"])


def size(row: Row) -> str:
    settings = "".join(f" {name}={value}" for name, value in row.get("settings", {}).items())
    return f"{row['cell']} ({row['B']}, {row['T']}, {row['H']}){settings}"

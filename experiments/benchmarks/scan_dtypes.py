"""Scans of 16-bit floats beside those of float32, and beside a loop in PyTorch.

    python -m experiments.benchmarks.scan_dtypes            # with one thread, and all of torch's
    python -m experiments.benchmarks.scan_dtypes --threads 1 --record

`bl.ops.diagonal_scan`, `linear_recurrence` and `reverse_scan` (dense matrices) of T steps, forward
only, by the planner's choice. The loop is PyTorch's own operators in float32, a step at a time.
apart is how far a 16-bit result is from a float32 scan of the same numbers, rounded, as a share of
the largest. Writes scan_dtypes_cpu.json.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import bppsa_lightning as bl
from experiments import recording
from experiments.benchmarks import timing

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = {  # (T, B, H)
    "diagonal_scan": ((1000, 16, 64), (4096, 1, 512), (200, 64, 256)),
    "linear_recurrence": ((1000, 16, 64), (4096, 1, 512), (200, 64, 256)),
    "reverse_scan": ((1000, 16, 20), (250, 16, 64)),
}
HEAD = ("scan", "T, B, H", "threads", "float32", "bfloat16", "float16", "loop", "apart")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=SIZES, default=list(SIZES), metavar="SCAN")
    parser.add_argument("--threads", type=int, nargs="+", help="(default: one, and all of torch's)")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each size")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    before = torch.get_num_threads()
    rows: list[dict[str, Any]] = []
    for threads in asked.threads or sorted({1, before}):
        torch.set_num_threads(threads)
        for scan in asked.only:
            rows += [measure(scan, size, asked.seconds) for size in SIZES[scan]]
    torch.set_num_threads(before)
    path = recording.folder(asked.record) / "scan_dtypes_cpu.json"
    recording.write(path, {"rows": rows})
    print(recording.markdown(HEAD, map(line, rows)))
    print(f"record: {path}")


def measure(scan: str, size: tuple[int, int, int], seconds: float) -> dict[str, Any]:
    """Seconds of each dtype and of the loop, and how far 16-bit results are from float32's."""
    torch.manual_seed(0)
    chain, terms = operands(scan, *size)
    run: Callable[[Tensor, Tensor], Tensor] = getattr(bl.ops, scan)
    apart = 0.0
    for dtype in DTYPES[1:]:
        halves = chain.to(dtype), terms.to(dtype)
        found, wanted = run(*halves), run(*(t.float() for t in halves)).to(dtype)
        apart = max(apart, float((found.float() - wanted.float()).abs().max() / wanted.abs().max()))
    steps = {
        str(dtype).removeprefix("torch."): step(partial(run, chain.to(dtype), terms.to(dtype)))
        for dtype in DTYPES
    }
    steps["loop"] = step(partial(loop, scan, chain, terms))
    found = timing.measure(steps, seconds, most=30, least=5)
    threads = torch.get_num_threads()
    return {"scan": scan, "size": list(size), "threads": threads, "apart": apart, **found}


def operands(scan: str, T: int, B: int, H: int) -> tuple[Tensor, Tensor]:
    """A chain that neither grows nor dies at once, and what is added at each step."""
    if scan == "reverse_scan":
        return torch.randn(T, B, H, H) * (0.9 / H**0.5), torch.randn(T + 1, B, H)
    return torch.rand(T, B, H), torch.randn(T + (scan == "diagonal_scan"), B, H)


def loop(scan: str, chain: Tensor, terms: Tensor) -> Tensor:
    """The same, a step at a time."""
    if scan == "linear_recurrence":
        h, found = terms.new_zeros(terms.shape[1:]), []
        for decay, x in zip(chain, terms, strict=True):
            h = torch.addcmul(x, decay, h)
            found.append(h)
        return torch.stack(found)
    g = terms[-1]
    found = [g]
    for t in range(len(chain) - 1, -1, -1):
        if scan == "diagonal_scan":
            g = torch.addcmul(terms[t], chain[t], g)
        else:
            g = torch.baddbmm(terms[t, ..., None], chain[t], g[..., None])[..., 0]
        found.append(g)
    return torch.stack(found[::-1])


def step(run: Callable[[], Tensor]) -> timing.Step:
    return lambda: timing.timed(torch.device("cpu"), scan=run)


def line(row: dict[str, Any]) -> tuple[str, ...]:
    """A row for people."""
    ms = [f"{row[way]['scan'] * 1e3:.3f} ms" for way in ("float32", "bfloat16", "float16", "loop")]
    size = ", ".join(map(str, row["size"]))
    return row["scan"], size, str(row["threads"]), *ms, f"{row['apart']:.0e}"


if __name__ == "__main__":
    main()

"""Peak extra memory of one forward and backward of a recurrent layer, each way in a fresh process.

What a fresh process adds to its resident set (CPU), or to the allocator's peak (CUDA):

    python -m experiments.benchmarks.recurrent_memory GRU ours cpu           # bytes
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from experiments.benchmarks.recurrent_cases import CELLS, Case, pair

SIZES = (16, 30000, 20, 1)  # B, T, H, I


def row(cell: str, device: torch.device) -> dict[str, Any]:
    """Bytes, and numbers of 4 bytes for each T B H, of ours and of stock."""
    found: dict[str, Any] = {"cell": cell, **dict(zip("BTHI", SIZES, strict=True))}
    for who in ("ours", "stock"):
        command = [sys.executable, "-m", __spec__.name, cell, who, str(device)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found[who] = json.loads(output)
    B, T, H, _ = SIZES
    found["numbers_per_TBH"] = {who: found[who] / 4 / (T * B * H) for who in ("ours", "stock")}
    numbers = ", ".join(f"{who} {n:.2f}" for who, n in found["numbers_per_TBH"].items())
    print(f"peak memory {cell} {SIZES}, in numbers for each T B H: {numbers}", flush=True)
    return found


def peak(cell: str, who: str, device: torch.device) -> int:
    B, T, H, I = SIZES
    short, whole = (pair(Case(cell, B, steps, H, I), device)[who == "stock"] for steps in (100, T))
    short()  # what any first step sets up
    if device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        whole()
        return torch.cuda.max_memory_allocated() - before
    whole.grad = torch.randn(T, B, H)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    whole()
    return resident("VmHWM") - before


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("cell", choices=list(CELLS))
    parser.add_argument("who", choices=["ours", "stock"])
    parser.add_argument("device", type=torch.device)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    print(json.dumps(peak(asked.cell, asked.who, asked.device)))


if __name__ == "__main__":
    main()

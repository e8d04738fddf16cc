"""Peak memory of bl.scan with and without checkpoints, each way in processes of its own.

    python -m experiments.benchmarks.scan_memory                      # all ways
    python -m experiments.benchmarks.scan_memory one linear all       # one, in this process: JSON

Forward and backward of a layer-norm LSTM as a loop and in windows, and of an nn.LSTMCell as it is,
over 16,384 steps of 8 samples. "bytes" is what the resident set grows by at most, which has inputs,
outputs and gradients in it; "seconds" are the processor's, of one thread, the median of three
processes. Writes scan_memory_cpu.json.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.steps import scans_of
from experiments import recording
from experiments.benchmarks.loops import LayerNormLSTM
from experiments.benchmarks.recurrent_memory import resident

T, B, I = 16384, 8, 4
# What is scanned, its hidden size, and by which algorithm.
WAYS = {
    "linear": (LayerNormLSTM, 32, "linear"),
    "windows": (LayerNormLSTM, 32, "speculative"),
    "cell": (nn.LSTMCell, 64, "linear"),
}
# Arguments of `bl.scan`; of fewer steps, less memory.
KEPT: dict[str, dict[str, Any]] = {
    "all": {}, "checkpoint": {"checkpoint": True}, "memory": {"memory": 50 << 20},
}  # fmt: skip


def memory_of(steps: int) -> int:
    """Bytes, for so many steps."""
    return int(KEPT["memory"]["memory"]) * steps // T


def measure(way: str, kept: str, T: int = T) -> dict[str, Any]:
    """One forward and backward of T steps in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kind, H, algorithm = WAYS[way]
    more = KEPT[kept]
    if "memory" in more:
        more = {"memory": memory_of(T)}

    def scan(steps: int) -> tuple[nn.Module, float]:
        step = kind(I, H)
        init, xs = (torch.zeros(B, H), torch.zeros(B, H)), torch.randn(steps, B, I)
        start = time.process_time()
        bl.scan(step, init, xs, algorithm=algorithm, **more)[1].sum().backward()
        return step, time.process_time() - start

    scan(2)  # what any first call sets up
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    step, seconds = scan(T)
    how = [str(known) for known in scans_of(step.parameters())]
    return {"bytes": resident("VmHWM") - before, "seconds": seconds, "how": how}


def row(way: str, kept: str, processes: int, T: int = T) -> dict[str, Any]:
    """Of some processes, one after the other."""
    command = [sys.executable, "-m", __spec__.name, "one", way, kept, "--steps", str(T)]
    outputs = [
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for _ in range(processes)
    ]
    found = [json.loads(output) for output in outputs]
    middle = {key: median(each[key] for each in found) for key in ("bytes", "seconds")}
    return {"way": way, "H": WAYS[way][1], "kept": kept, **middle, "how": found[0]["how"]}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    recording.add_record_argument(parser)
    parser.add_argument("--processes", type=int, default=3, help="for each way")
    one = parser.add_subparsers().add_parser("one", help="measure one way in this process")
    one.add_argument("way", choices=list(WAYS))
    one.add_argument("kept", choices=list(KEPT))
    one.add_argument("--steps", type=int, default=T, help=f"(default: {T:,})")
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    if "way" in asked:
        return print(json.dumps(measure(asked.way, asked.kept, asked.steps)))
    rows = []
    for way in WAYS:
        for kept in KEPT:
            rows.append(found := row(way, kept, asked.processes))
            print(f"{way} {kept}: {found['bytes'] / 2**20:.0f} MiB, {found['seconds']:.2f} s")
    path = recording.folder(asked.record) / "scan_memory_cpu.json"
    recording.write(
        path, {"T": T, "B": B, "I": I, "memory": KEPT["memory"]["memory"], "rows": rows}
    )
    print(f"record: {path}")


if __name__ == "__main__":
    main()

"""`bl.ops.linear`, the inputs of a layer times W_ih, beside PyTorch's own, on the CPU.

    python -m experiments.benchmarks.linear                 # with one thread, and all of torch's
    python -m experiments.benchmarks.linear --record

Forward, and backward with the gradients of input, weight and bias, of T steps of B samples with I
inputs and O numbers of a result, in float32. GFLOP/s are of both together. Writes linear_cpu.json.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import bppsa_lightning as bl
from experiments import recording
from experiments.benchmarks import chosen_layers, timing

# (T, B, I, O): of a GRU's and an LSTM's gates.
SIZES = (
    (10, 16, 64, 256), (100, 16, 64, 256), (1000, 16, 1, 60), (1000, 16, 64, 256),
    (100, 32, 256, 768), (100, 32, 256, 1024), (100, 32, 512, 2048),
)  # fmt: skip
Linear = Callable[[Tensor, Tensor, Tensor], Tensor]
HEAD = ("T, B, I, O", "threads", "bl.ops.linear", "PyTorch", "speed-up", "GFLOP/s", "PyTorch's")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", help="(default: one, and all of torch's)")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each size")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    with chosen_layers.each_number_of_threads(asked.threads) as each:
        rows = [measure(*size, asked.seconds) for _ in each for size in SIZES]
    path = recording.folder(asked.record) / "linear_cpu.json"
    recording.write(path, {"rows": rows})
    print(recording.markdown(HEAD, map(line, rows)))
    print(f"record: {path}")


def measure(T: int, B: int, I: int, O: int, seconds: float) -> dict[str, Any]:  # noqa: E741
    """Seconds of both, and how far apart their results are, as a share of the largest."""
    torch.manual_seed(0)
    x, weight, bias = torch.randn(T, B, I), torch.randn(O, I) / I**0.5, torch.randn(O)
    grad = torch.randn(T, B, O)
    ours, stock = bl.ops.linear(x, weight, bias), functional.linear(x, weight, bias)
    apart = float((ours - stock).abs().max() / stock.abs().max())
    ways: dict[str, Linear] = {"ours": bl.ops.linear, "pytorch": functional.linear}
    steps = {name: step_of(run, (x, weight, bias), grad) for name, run in ways.items()}
    found = timing.measure(steps, seconds, most=30, least=5)
    size = {"T": T, "B": B, "I": I, "O": O, "threads": torch.get_num_threads()}
    return size | {"apart": apart} | found


def step_of(run: Linear, operands: tuple[Tensor, ...], grad: Tensor) -> timing.Step:
    leaves = [t.clone().requires_grad_() for t in operands]

    def both() -> None:
        run(*leaves).backward(grad)

    def step() -> timing.Seconds:
        for leaf in leaves:
            leaf.grad = None
        return timing.timed(torch.device("cpu"), both=both)

    return step


def line(row: dict[str, Any]) -> tuple[str, ...]:
    """A row for people."""
    size = [row[name] for name in ("T", "B", "I", "O")]
    work = 6 * torch.tensor(size).prod().item() / 1e9
    seconds = [row[way]["both"] for way in ("ours", "pytorch")]
    shown = [f"{s * 1e3:.2f} ms" for s in seconds], [f"{work / s:.0f}" for s in seconds]
    gain = f"{row['ratio_pytorch']['both']:.2f}x"
    return ", ".join(map(str, size)), str(row["threads"]), *shown[0], gain, *shown[1]


if __name__ == "__main__":
    main()

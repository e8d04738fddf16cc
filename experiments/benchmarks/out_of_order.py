"""The out-of-order backward on one device, against PyTorch's: time, and the memory that it holds.

    python -m experiments.benchmarks.out_of_order

Three networks, float32, one thread for each operation: an MLP, VGG-11 without batch norm, and a
deep, narrow MLP, whose operations are so small that their number counts. The ways take turns:

- stock: loss.backward();
- falling, rising: all activation gradients, then the weight gradients from the last layer to the
  first, or from the first to the last;
- second thread: each weight gradient on a second thread while the chain goes on.

Printed are medians over the turns, and medians of the ratios of a turn to stock's beside it (below
1: faster than stock). A CPU gains nothing: in one thread it is the same work in another order, and
each weight gradient is a call of autograd by itself, about 0.1 ms, which small layers feel. On a
second thread the weight gradients need a core that is idle: the record was taken on two cores while
other work ran on them, so it says little about what a second thread can gain.

The record also holds, for a mini-batch, the bytes of the gradients that wait for their weights when
the chain is through, beside the largest of them, which is what one layer at a time would hold.
Writes out_of_order_cpu.json.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bppsa_lightning.layerpipe import out_of_order
from experiments import recording
from experiments.benchmarks import timing
from experiments.train.pruned_vgg11 import vgg11

STOCK = "stock"


def mlp(layers: int, width: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.ReLU(inplace=True)]
    return nn.Sequential(*parts, nn.Linear(width, 10))


# Network, and the shape of a mini-batch.
CASES: dict[str, tuple[Callable[[], nn.Sequential], tuple[int, ...]]] = {
    "mlp": (lambda: mlp(6, 1024), (256, 1024)),
    "vgg11": (lambda: vgg11(norm=False), (16, 3, 32, 32)),
    "deep_narrow_mlp": (lambda: mlp(64, 64), (32, 64)),
}


def ways(network: nn.Sequential, x: Tensor, y: Tensor, helper: Executor) -> dict[str, timing.Step]:
    """A backward each, after a forward that is timed apart."""

    def stock() -> timing.Seconds:
        network.zero_grad()
        loss: list[Tensor] = []
        return timing.timed(
            x.device,
            forward=lambda: loss.append(F.cross_entropy(network(x), y)),
            backward=lambda: loss[0].backward(),
        )

    def ours(**how: Any) -> timing.Step:
        def step() -> timing.Seconds:
            network.zero_grad()
            made: list[Any] = []
            return timing.timed(
                x.device,
                forward=lambda: made.extend(out_of_order.forward(network, x)),
                backward=lambda: out_of_order.backward(made[1], last_gradient(made[0], y), **how),
            )

        return step

    orders = {order: ours(order=order) for order in out_of_order.ORDERS}
    return {STOCK: stock, **orders, "second thread": ours(helper=helper)}


def last_gradient(logits: Tensor, y: Tensor) -> Tensor:
    """The gradient of the loss by the last layer's output."""
    leaf = logits.detach().requires_grad_()
    return torch.autograd.grad(F.cross_entropy(leaf, y), leaf)[0]


def waiting(network: nn.Sequential, x: Tensor, y: Tensor) -> dict[str, int]:
    """Bytes of the gradients that wait for their weight gradients when the chain is through."""
    logits, tape = out_of_order.forward(network, x)
    grads, _ = out_of_order.activation_gradients(tape, last_gradient(logits, y))
    sizes = [g.numel() * g.element_size() for g in grads.values()]
    weights = sum(p.numel() * p.element_size() for p in network.parameters())
    return {"waiting_bytes": sum(sizes), "largest_bytes": max(sizes), "weight_bytes": weights}


def measure(name: str, seconds: float) -> dict[str, Any]:
    make, shape = CASES[name]
    torch.manual_seed(0)
    network, x = make(), torch.randn(shape)
    y = torch.randint(10, shape[:1])
    with ThreadPoolExecutor(1) as helper:
        turns = timing.take_turns(ways(network, x, y, helper), seconds, most=200, least=3)
    found: dict[str, Any] = {"turns": len(turns[STOCK]), "batch": shape}
    found["seconds"] = {way: timing.medians(turn) for way, turn in turns.items()}
    found["ratio"] = {
        way: timing.ratios(turn, turns[STOCK]) for way, turn in turns.items() if way != STOCK
    }
    return found | waiting(network, x, y)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=30, help="for each network")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        cases = {name: measure(name, asked.seconds) for name in CASES}
        path = recording.folder(asked.record) / "out_of_order_cpu.json"
        recording.write(path, {"cases": cases})
    finally:
        torch.set_num_threads(threads)
    print(table(cases))
    print(f"record: {path}")


def table(cases: dict[str, Any]) -> str:
    rows = []
    for name, case in cases.items():
        memory = f"{case['waiting_bytes'] / 2**20:.1f} ({case['largest_bytes'] / 2**20:.1f})"
        for way, seconds in case["seconds"].items():
            ratio = "" if way == STOCK else f"{case['ratio'][way]['backward']:.2f}"
            held = memory if way in out_of_order.ORDERS else ""
            rows.append((name, way, f"{seconds['backward'] * 1e3:.2f}", ratio, held))
    head = ("network", "backward", "ms", "to stock's", "MiB that wait (largest)")
    return recording.markdown(head, rows)


if __name__ == "__main__":
    main()

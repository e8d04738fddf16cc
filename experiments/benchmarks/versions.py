"""Two versions of this library in turns: is the new one as fast as the old one was?

    python -m experiments.benchmarks.versions OLD NEW       # two checkouts, each with its build

Each version runs in a process of its own, with its checkout first on the path; they take turns of
some steps on the same case, so that what disturbs the machine disturbs both. For each case:
median milliseconds of forward and backward of both, and the median over the pairs of new / old, for
the whole step and its parts. `NEW NEW` shows the noise. Only public names are used.

B batch, T steps, H hidden, I input.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from statistics import median

LAYERS = {  # (cell, B, T, I, H): the paper's size, long and short, wide; and a short call
    f"{cell} {size}": (cell, *size)
    for cell in ("RNN", "GRU", "LSTM")
    for size in ((16, 1000, 1, 20), (1, 10000, 1, 20), (16, 10, 1, 20), (16, 200, 128, 128))
}
LAST = {  # as the paper's loss: of the last state alone
    f"{cell} {size} last": (cell, *size)
    for cell in ("RNN", "GRU", "LSTM")
    for size in ((16, 1000, 1, 20), (16, 30000, 1, 20), (1, 16000, 1, 20))
}
SCANS = ("reverse_scan", "linear_recurrence")
VGG = ("vgg11 97 %", "vgg11 0 %")
CASES = [*LAYERS, *LAST, *SCANS, *VGG]


def layer(cell: str, B: int, T: int, I: int, H: int, last: bool):
    """Forward and backward of an attached layer, by a gradient of every output or of the last."""
    import torch

    import bppsa_lightning as bl

    torch.manual_seed(0)
    module = getattr(torch.nn, cell)(I, H)
    bl.attach(module)
    x = torch.rand(T, B, I)
    grad = torch.randn(T, B, H)

    def forward():
        return module(x)[0]

    def backward(output):
        module.zero_grad()
        if last:
            output[-1].backward(grad[-1])
        else:
            output.backward(grad)

    return forward, backward


def scan(name: str):
    """The dense scan over (T=512, B=4, H=20), the diagonal one over (T=4096, B=4, H=64)."""
    import torch

    import bppsa_lightning as bl

    torch.manual_seed(0)
    if name == "reverse_scan":
        first, second = torch.randn(512, 4, 20, 20) * 0.2, torch.randn(513, 4, 20)
    else:
        first, second = torch.rand(4096, 4, 64), torch.randn(4096, 4, 64)
    first.requires_grad_()
    operator = getattr(bl.ops, name)
    return lambda: operator(first, second), lambda result: result.sum().backward()


def vgg11(amount: float):
    """VGG-11's convolutions on 16 images, attached, `amount` of each layer's weights pruned."""
    import torch
    from torch import nn
    from torch.nn.utils import prune

    import bppsa_lightning as bl

    torch.manual_seed(0)
    layers: list[nn.Module] = []
    channels = 3
    for width in (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"):
        if isinstance(width, str):
            layers.append(nn.MaxPool2d(2))
            continue
        convolution = nn.Conv2d(channels, width, 3, padding=1)
        layers += [prune.l1_unstructured(convolution, "weight", amount), nn.ReLU()]
        channels = width
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, 10))
    bl.attach(model)
    x = torch.rand(16, 3, 32, 32)
    return lambda: model(x), lambda result: result.sum().backward()


def step(case: str):
    if case in LAYERS:
        return layer(*LAYERS[case], last=False)
    if case in LAST:
        return layer(*LAST[case], last=True)
    return scan(case) if case in SCANS else vgg11(0.97 if case == "vgg11 97 %" else 0.0)


def turn(forward, backward, seconds: float) -> list[float]:
    """Median seconds of a forward and of a backward, over at least 3 steps after a first one."""
    forwards: list[float] = []
    backwards: list[float] = []
    end = time.perf_counter() + seconds
    while len(forwards) < 4 or time.perf_counter() < end:
        start = time.perf_counter()
        result = forward()
        middle = time.perf_counter()
        backward(result)
        backwards.append(time.perf_counter() - middle)
        forwards.append(middle - start)
    return [median(forwards[1:]), median(backwards[1:])]


def serve(seconds: float) -> None:
    """Answers names of cases from standard input with the seconds of a turn, as JSON lines."""
    steps: dict = {}
    for line in sys.stdin:
        case = line.strip()
        if case not in steps:
            steps.clear()
            steps[case] = step(case)
            turn(*steps[case], seconds)
        print(json.dumps(turn(*steps[case], seconds)), flush=True)


class Version:
    """A process that imports the library from one checkout."""

    def __init__(self, checkout: str, seconds: float) -> None:
        environment = {**os.environ, "PYTHONPATH": os.path.abspath(checkout)}
        command = [sys.executable, os.path.abspath(__file__), "--serve", "--seconds", str(seconds)]
        self.process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def turn(self, case: str) -> list[float]:
        assert self.process.stdin and self.process.stdout
        print(case, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            sys.exit(f"{case}: the process of one version ended")
        return json.loads(answer)


def measure(case: str, versions: list[Version], pairs: int) -> None:
    """Prints one row."""
    turns: list[list[list[float]]] = [[], []]
    for i in range(pairs):
        for which in (0, 1) if i % 2 == 0 else (1, 0):
            forward, backward = versions[which].turn(case)
            turns[which].append([forward + backward, forward, backward])
    old, new = turns
    ratios = [[b / a for a, b in zip(x, y, strict=True)] for x, y in zip(old, new, strict=True)]
    ms = [median(t[0] for t in side) * 1e3 for side in turns]
    print(f"{case:28} {ms[0]:9.3f} {ms[1]:9.3f} ", end="")
    print(*(f"{median(r[part] for r in ratios):8.3f}" for part in range(3)), flush=True)


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    found.add_argument("checkouts", nargs="*", help="two folders: the old version's, the new one's")
    found.add_argument("--pairs", type=int, default=15, help="turns of each version (default: 15)")
    found.add_argument("--seconds", type=float, default=0.15, help="of a turn (default: 0.15)")
    found.add_argument("--only", default="", help="cases whose name has this text")
    found.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return found


def main(arguments: list[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    if options.serve:
        return serve(options.seconds)
    if len(options.checkouts) != 2:
        parser().error(f"checkouts: found {len(options.checkouts)}, wanted two folders")
    versions = [Version(checkout, options.seconds) for checkout in options.checkouts]
    print(f"{'case':28} {'old ms':>9} {'new ms':>9}  {'new/old':>8} {'forward':>8} {'backward':>8}")
    for case in CASES:
        if options.only in case:
            measure(case, versions, options.pairs)


if __name__ == "__main__":
    main()

"""Table 1 of the paper: sparsity of Jacobians, and how fast they are generated.

    python -m experiments.paper.table1

The first convolution, ReLU and max-pooling of VGG-11 on 3 x 32 x 32 images (arXiv:1907.10134,
table 1). The baseline is the paper's: the transposed Jacobian column by column, one call of
autograd each, into a dense matrix. Columns are timed until --seconds have passed, evenly spread
over the matrix, in a dense matrix of just these columns; the whole is the time of one times their
number ("extrapolated" unless all were computed: the full matrix of the ReLU would take 16 GiB).
Beside it, the same with each gradient written to contiguous memory, which spares the baseline its
scattered writes.

Ours is `bl.jacobians.conv2d`, `relu` and `max_pool2d`, which return a torch.sparse_csr tensor: as
called in every step, when the pattern is known and values are new, and, as "first", with the
pattern built anew. Medians. Writes table1.json and table1.png.
"""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bppsa_lightning import jacobians
from bppsa_lightning.jacobians import cache
from experiments import recording, style
from experiments.benchmarks.timing import repeated

PAPER = {
    "conv 3x3, 3 -> 64": (0.99157, 8.3e3),
    "ReLU": (0.99998, 1.2e6),
    "max-pool 2x2": (0.99994, 1.5e5),
}


def layers() -> dict[str, tuple[Tensor, Callable, Callable]]:
    """Of each layer: its input, itself, its transposed Jacobian at that input."""
    torch.manual_seed(0)
    image, weight, state = torch.randn(3, 32, 32), torch.randn(64, 3, 3, 3), torch.randn(64, 32, 32)
    found = (
        (
            image,
            lambda x: F.conv2d(x, weight, padding=1),
            lambda: jacobians.conv2d(weight, (32, 32), padding=1),
        ),
        (state, F.relu, lambda: jacobians.relu(state)),
        (state, lambda x: F.max_pool2d(x, 2), lambda: jacobians.max_pool2d(state, 2)),
    )
    return dict(zip(PAPER, found, strict=True))


def first(jacobian: Callable) -> Tensor:
    """The Jacobian with no pattern known from before."""
    cache.patterns.clear()
    return jacobian()


def column_seconds(
    function: Callable, x: Tensor, contiguous: bool, seconds: float
) -> tuple[float, int]:
    """Time of one column of the baseline, and how many were timed."""
    x = x.unsqueeze(0).requires_grad_()
    y = function(x).flatten()
    count = min(len(y), 4096)
    shape = (count, x.numel()) if contiguous else (x.numel(), count)
    jac_t = torch.empty(shape)
    if contiguous:
        jac_t = jac_t.T
    columns = torch.linspace(0, len(y) - 1, count).long().tolist()
    done, start = 0, time.perf_counter()
    for j, column in enumerate(columns):
        (gradient,) = torch.autograd.grad(y[column], x, retain_graph=True)
        jac_t[:, j] = gradient.view(-1)
        done = j + 1
        if time.perf_counter() - start > seconds:
            break
    return (time.perf_counter() - start) / done, done


def measure(name: str, layer: tuple, seconds: float) -> dict[str, Any]:
    x, function, jacobian = layer
    pattern = jacobians.Pattern.of(jacobian())
    columns = pattern.shape[1]
    column, timed = column_seconds(function, x, False, seconds)
    contiguous, _ = column_seconds(function, x, True, seconds)
    known = repeated(jacobian, seconds / 4)
    anew = repeated(lambda: first(jacobian), seconds / 4)
    return {
        "layer": name,
        "shape": pattern.shape,
        "nnz": pattern.nnz,
        "sparsity": pattern.sparsity,
        "paper_sparsity": PAPER[name][0],
        "columns": columns,
        "columns_timed": timed,
        "extrapolated": timed < columns,
        "baseline_seconds": column * columns,
        "baseline_contiguous_seconds": contiguous * columns,
        "seconds": known,
        "first_seconds": anew,
        "speed_up": column * columns / known,
        "speed_up_first": column * columns / anew,
        "speed_up_over_contiguous": contiguous * columns / known,
        "paper_speed_up": PAPER[name][1],
    }


def show(row: dict) -> None:
    print(
        f"{row['layer']:18} {row['sparsity']:.5f} (paper {row['paper_sparsity']})  "
        f"baseline {row['baseline_seconds']:6.1f} s ({row['columns_timed']} of {row['columns']} "
        f"columns timed)  ours {row['seconds'] * 1e6:7.1f} us (first "
        f"{row['first_seconds'] * 1e6:7.1f} us)  speed-up {row['speed_up']:.1e} (first "
        f"{row['speed_up_first']:.1e}, over contiguous writes "
        f"{row['speed_up_over_contiguous']:.1e}; paper {row['paper_speed_up']:.1e})"
    )


def draw(path: Path) -> None:
    figure, axes = recording.pyplot().subplots(1, 3, figsize=(15, 5))
    for axis, (name, layer) in zip(axes, layers().items(), strict=True):
        pattern = jacobians.Pattern.of(layer[2]())
        bins = [max(b for b in range(1, 513) if n % b == 0) for n in pattern.shape]
        row = torch.arange(pattern.shape[0]).repeat_interleave(pattern.crow.diff().long())
        cell = row * bins[0] // pattern.shape[0] * bins[1]
        cell += pattern.col.long() * bins[1] // pattern.shape[1]
        entries = torch.bincount(cell, minlength=math.prod(bins)).view(bins)
        shade = entries.double().log1p().numpy()
        axis.imshow(
            shade, aspect="auto", cmap="Greys", interpolation="antialiased",
            extent=(0, pattern.shape[1], pattern.shape[0], 0),
        )  # fmt: skip
        axis.set_title(f"{name}: {pattern.sparsity:.5f} zeros")
        axis.set_xlabel("output")
        axis.set_ylabel("input")
    figure.suptitle("Transposed Jacobians of VGG-11's first layers (darker: more entries)")
    figure.tight_layout()
    recording.save_figure(figure, path, note=style.COMPUTED)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=4.0, help="for each measurement")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    rows = []
    for name, layer in layers().items():
        rows.append(measure(name, layer, asked.seconds))
        show(rows[-1])
    path = recording.folder(asked.record) / "table1.json"
    recording.write(path, {"rows": rows})
    draw(path.with_suffix(".png"))
    print(f"record: {path}, .png")


if __name__ == "__main__":
    main()

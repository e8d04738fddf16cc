"""Runs the Python snippets of README.md and docs/*.md, and keeps what they print up to date.

    python docs/run_snippets.py            # runs all, rewrites what they print
    python docs/run_snippets.py --check    # fails if a page shows something else

The ```python blocks of a page run from top to bottom in one namespace that holds the names of
`prelude`. A fenced block right below the marker ``<!-- prints -->`` is what the block before it
prints. A block below ``<!-- not run: why -->`` is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
# Plans depend on them; the pages show those of these.
CORES, TABLE = 2, "intel_xeon_2"

_BLOCK = re.compile(
    r"(?P<marker><!-- [^\n]* -->\n)?```(?P<language>\w*)\n(?P<body>.*?)```\n", re.DOTALL
)


class Classifier(pl.LightningModule):
    """Names the class of each sample by a network, and learns by cross entropy."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.network(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


class LastState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(1, 20, batch_first=True)
        self.head = nn.Linear(20, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x)[0][:, -1])


def _batches(*size: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.rand(8, *size), torch.arange(8) % 10), batch_size=4)


def prelude() -> dict[str, Any]:
    """What a reader has before the first snippet: a model and data, sequences and images."""
    torch.manual_seed(0)
    images = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    return {
        "model": Classifier(LastState()),
        "train_data": _batches(50, 1),
        "image_model": Classifier(images),
        "image_data": _batches(3, 16, 16),
    }


def run_page(text: str) -> str:
    """The page, with what its snippets print now.

    Raises:
        Whatever a snippet raises; ValueError for a marker without a block to belong to.
    """
    names = prelude()
    printed: str | None = None

    def replace(block: re.Match[str]) -> str:
        nonlocal printed
        marker, language = block["marker"] or "", block["language"]
        if marker.startswith("<!-- prints"):
            if printed is None:
                raise ValueError(f"no snippet stands above what it prints:\n{block[0]}")
            shown, printed = printed, None
            return f"{marker}```{language}\n{shown}```\n"
        if language == "python" and not marker.startswith("<!-- not run"):
            printed = _printed(block["body"], names)
        return block[0]

    with _as_on_the_pages():
        return _BLOCK.sub(replace, text)


def _printed(source: str, names: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(source, "<snippet>", "exec"), names)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


@contextlib.contextmanager
def _as_on_the_pages() -> Iterator[None]:
    """Two cores, a folder of its own for what a Trainer writes, and none of its advice."""
    before = Path.cwd()
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(torch, "get_num_threads", lambda: CORES),
        mock.patch.dict(os.environ, BPPSA_TABLE=TABLE),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # Lightning's, of data loaders without workers
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    check = parser.parse_args().check
    stale = []
    for page in PAGES:
        text = page.read_text()
        now = run_page(text)
        if now != text:
            stale.append(page.name)
            if not check:
                page.write_text(now)
    if check and stale:
        sys.exit(f"out of date: {', '.join(stale)}; run `python docs/{Path(__file__).name}`")


if __name__ == "__main__":
    main()

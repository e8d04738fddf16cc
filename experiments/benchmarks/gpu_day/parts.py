"""What a day with a GPU does, in order of value: a row for each part.

The commands find the packages that the part "build" made, and leave records in $BPPSA_RECORDS and
tables of the planner in $BPPSA_TABLES.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from experiments.benchmarks.gpu_day import bars, bars_of_windows
from experiments.benchmarks.gpu_day.bars import Bar

ROOT = Path(__file__).parents[3]
BUILD = Path("build")  # in the folder of the day


@dataclass(frozen=True)
class Part:
    """One process, and what is expected of it.

    Args:
        name: of its log, and what --again and --only take.
        what: for people.
        command: program and arguments; "{folder}" is the folder of the day.
        seconds: after so many it is killed. It starts only where as many are left.
        bars: what is wanted of its log and records, beside an exit status of 0.
        makes: a file without which it counts as not done; in the folder of the day.
        needs: the part that must be done before.
        settings: more of the environment.
    """

    name: str
    what: str
    command: tuple[str, ...]
    seconds: float
    bars: tuple[Bar, ...] = ()
    makes: Path | None = None
    needs: str | None = "build"
    settings: Mapping[str, str] = field(default_factory=dict)


def make(*goals: str) -> tuple[str, ...]:
    """A target of the Makefile, by the Python that runs the day."""
    own = (f"GPU_PYTHON={sys.executable}", f"GPU_BUILD={{folder}}/{BUILD}")
    return ("make", "-C", str(ROOT), *goals, *own)


def measure(script: str, *arguments: str) -> tuple[str, ...]:
    """A benchmark, with its record."""
    return (sys.executable, "-m", f"experiments.benchmarks.{script}", *arguments, "--record")


def sanitize(tool: str, seconds: int, goal: str = "gpu-sanitize") -> Part:
    """One tool of compute-sanitizer over every kernel, at small sizes."""
    command = make(goal, f"SANITIZER_TOOLS={tool}", f"SANITIZER_SECONDS={seconds - 10}")
    return Part(tool, f"compute-sanitizer, {tool}", command, seconds, (bars.no_errors_found,))


def cpu_grid(threads: int) -> Part:
    return Part(
        f"cpu_{threads}",
        f"the CPU's grid, threads: {threads}",
        measure("recurrent_threads", str(threads), "--minutes", "1", "--seconds", "0.2"),
        100,
        (bars.no_row_slower("rows"), bars.worth_scanning("rows")),
        settings={"OMP_NUM_THREADS": str(threads)},
    )


CELLS = (
    "LayerNormLSTM", "LayerNormGRU", "PeepholeLSTM", "LiGRU", "IndRNN", "GRU(zoneout=0.1)",
    "LSTM(recurrent_dropout=0.2)",
)  # fmt: skip


def recurrent_gpu(*arguments: str) -> tuple[str, ...]:
    return measure("recurrent_gpu", "--pairs", "9", *arguments)


PARTS = (
    Part(
        "build",
        "the operators, for this GPU and this processor alone",
        make("gpu-build", "GPU_ARCHITECTURES=$(GPU_AT_HAND)", "GPU_LEVELS=native"),
        300,
        makes=BUILD / "site" / "bppsa_lightning" / "_C_cuda.so",
        needs=None,
    ),
    Part(
        "verify",
        "every kernel beside PyTorch; a table of the planner for this GPU",
        (sys.executable, "-c", "import bppsa_lightning as bl; bl.calibrate(device='cuda')"),
        180,
        (bars.verified,),
    ),
    Part(
        "tests",
        "the tests that need a GPU",
        make("-k", "-j8", "--output-sync=target", "gpu-test", "GPU_TEST_SECONDS=200"),
        270,
        (bars.tests_pass,),
        settings={"OMP_NUM_THREADS": "2"},
    ),
    Part(
        "every_step",
        "the paper's grid beside cuDNN, a gradient of every output; what fit_planner.py takes",
        recurrent_gpu("--loss", "every", "--minutes", "2", "--seconds", "0.5"),
        200,
        (bars.no_row_slower("rows"), bars.plans_near_best, bars.worth_scanning("rows")),
    ),
    Part(
        "grid",
        "the same grid, loss on the last state",
        recurrent_gpu("--only", "rows", "--minutes", "2.5", "--seconds", "0.6"),
        240,
        (
            bars.no_row_slower("rows"),
            bars.backward_over_stock("RNN", 16, 1000, 20),
            bars.backward_over_stock("GRU", 16, 1000, 20),
            bars.backward_over_stock("LSTM", 16, 1000, 20),
            bars.backward_over_stock("RNN", 16, 30000, 20),
            bars.worth_scanning("rows"),
        ),
    ),
    Part(
        "windows",
        "windows of time over our kernels and over cuDNN's, beside predictions",
        measure("windows_gpu", "--pairs", "9", "--minutes", "2", "--seconds", "1"),
        210,
        (
            *(bars_of_windows.over_stock(cell, "linear", 45) for cell in ("RNN", "GRU", "LSTM")),
            *(bars_of_windows.over_stock(cell, "cuDNN", 8) for cell in ("RNN", "GRU", "LSTM")),
            bars_of_windows.exact,
            bars_of_windows.wait_once,
            bars_of_windows.as_predicted,
        ),
    ),
    Part(
        "trainer",
        "training through Trainer, beside stock PyTorch",
        measure("recurrent_training", "--device", "cuda", "--steps", "100"),
        120,
        (bars.trainings_faster,),
    ),
    Part(
        "products",
        "sparse products beside cuSPARSE",
        measure("products", "--device", "cuda"),
        60,
        (bars.product_faster,),
    ),
    Part(
        "cells",
        "layers of bl.nn, with layer norm, beside their loops: a loop takes a second",
        measure("cells", "--device", "cuda", "--seconds", "2", "--only", *CELLS),
        90,
        (bars.layers_faster,),
    ),
    *map(cpu_grid, (16, 1, 4)),
    Part(
        "calibrate_cpu",
        "a table of the planner for this processor, with all its threads",
        (sys.executable, "-c", "import bppsa_lightning as bl; bl.calibrate(seconds=45)"),
        100,
    ),
    Part(
        "options",
        "options of the layers, CUDA graphs, peak memory, long sequences",
        recurrent_gpu(
            *("--only", "options", "graphs", "peak_memory", "long"),
            *("--minutes", "1", "--seconds", "0.4"),
        ),
        210,
        (bars.no_row_slower("options"), bars.no_row_slower("graphs"), bars.no_more_memory),
    ),
    Part("dense", "the dense scan under each plan", measure("dense_scan_cuda"), 60),
    sanitize("memcheck", 200),
    sanitize("racecheck", 290),
    sanitize("synccheck", 150, "gpu-sanitize-sync"),
    sanitize("initcheck", 150, "gpu-sanitize-sync"),
)

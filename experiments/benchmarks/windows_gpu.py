"""Windows of time on a GPU, over our kernels and over cuDNN's: beside walks and a prediction.

    python -m experiments.benchmarks.windows_gpu --record                   # 3 minutes
    python -m experiments.benchmarks.windows_gpu --cells GRU --sizes 16,30000,20,1 --windows 60
    python -m experiments.benchmarks.windows_gpu --device cpu --cells GRU --sizes 2,3000,20,1

Forward and backward of one layer, float32, with a gradient of every output, and with one of the
last state alone: (16, 30,000, 20) first, then the rest of the paper's sweeps over T and over B. In
turns, with CUDA events, as recurrent_gpu.py:

- cuDNN: the stock module; linear, auto: attached, our kernels walk;
- linear and cuDNN in windows: as many as asked (--windows) wherever they fit, and as many as
  `choose_cut` chooses. They warm up for as long as a look says, or for --warm steps;
- attached with "speculative": what a user gets, over the kernels that the planner prefers.

"predicted" is by windows_model.py, from an H200's records; what `choose_cut` chooses depends on the
table of the GPU at hand. "error" is the largest one of results and gradients of parameters against
float64, relative to the largest number of its tensor; "waits", how often the host waits for the
device, forward + backward. cuDNN may use TF32, as torch has it. Writes <GPU>_windows.json, row by
row.

Letters: B batch, T steps, H hidden, I input.
"""

import argparse
import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from experiments import recording
from experiments.benchmarks import timing
from experiments.benchmarks import windows_model as model
from experiments.benchmarks.recurrent_cases import Case, LayerStep
from experiments.benchmarks.recurrent_gpu import PAPER, Budget, first_line
from experiments.benchmarks.recurrent_rows import Row, Size, add_arguments
from experiments.benchmarks.windows import error
from experiments.benchmarks.windows_model import CUDNN
from experiments.benchmarks.windows_ways import InWindows, Way, ways_of

SIZES: list[Size] = [size for size in dict.fromkeys(PAPER) if size[2:] == (model.H, model.I)]
SIZES.sort(key=lambda size: size != (16, 30_000, 20, 1))  # that one first
LOSSES = ("every", "last")
HEAD = (
    "",
    "windows",
    "warm-up",
    "ms",
    "predicted",
    "of it",
    "cuDNN /",
    "predicted",
    "error",
    "waits",
)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_arguments(parser, seconds=1.5)
    parser.add_argument("--device", default="cuda", type=torch.device)
    parser.add_argument("--loss", nargs="+", default=LOSSES, choices=LOSSES)
    parser.add_argument("--windows", nargs="+", type=int, default=model.WINDOWS, metavar="K")
    parser.add_argument("--warm", type=int, help="steps of warm-up (default: what a look says)")
    parser.add_argument("--minutes", type=float, default=2.5, help="for all rows (default 2.5)")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    on_gpu = asked.device.type == "cuda"
    name = torch.cuda.get_device_name(asked.device) if on_gpu else recording.cpu_name()
    path = recording.folder(asked.record) / f"{recording.file_name(name)}_windows.json"
    rows: list[Row] = []
    cases, budget = cases_of(asked), Budget(asked.minutes * 60, asked.seconds)
    for i, case in enumerate(cases):
        rows.append(measure(case, asked, budget.share(len(cases) - i)))
        print(table(rows[-1]), flush=True)
        recording.write(path, {"windows": rows})
        if on_gpu:
            torch.cuda.synchronize()  # raises if no kernel can run any more
    print(f"record: {path}")


def cases_of(asked: argparse.Namespace) -> list[Case]:
    """The first size with every loss, then the others with one loss after the other."""
    first, *others = asked.sizes or SIZES
    each = [(first, loss) for loss in asked.loss]
    each += [(size, loss) for loss in asked.loss for size in others]
    return [Case(cell, *size, loss=loss) for size, loss in each for cell in asked.cells]


def measure(case: Case, asked: argparse.Namespace, seconds: float) -> Row:
    """The row of a case: of each way its time, what was predicted, its error, and its waits."""
    ways = ways_of(case, asked.device, asked.windows, asked.warm)
    exact = exact_of(case, ways[CUDNN].step)
    found: dict[str, dict[str, Any]] = {}
    for name, way in list(ways.items()):
        try:
            found[name] = {"error": error(results(way.step), exact)}
        except RuntimeError as failure:  # it stops no other
            found[name] = {"fails": first_line(failure)}
            del ways[name]
    steps: dict[str, timing.Step] = {name: way.step for name, way in ways.items()}
    turns = timing.take_turns(steps, seconds, asked.pairs, least=2)
    for name, way in ways.items():
        found[name] |= way.described() | {"seconds": timing.medians(turns[name])}
        if CUDNN in turns:
            found[name]["speed_up"] = timing.ratios(turns[CUDNN], turns[name])
        guess = predicted(case, way)
        if guess is not None:
            found[name]["predicted"] = guess
        if asked.device.type == "cuda":
            found[name]["waits"] = min(waits_of(way.step), waits_of(way.step))  # (one may look)
    return case.described() | {"ways": found}


def exact_of(case: Case, stock: LayerStep) -> list[Tensor]:
    """Results and gradients in float64."""
    results(stock)
    assert stock.grad is not None and isinstance(stock.x, Tensor)
    double = LayerStep(copy.deepcopy(stock.layer).double(), stock.x.double(), case)
    double.grad = stock.grad.double()
    return results(double)


def results(step: LayerStep) -> list[Tensor]:
    """Of one forward and backward."""
    step()
    return [step.result.detach(), *(p.grad for p in step.layer.parameters() if p.grad is not None)]


def predicted(case: Case, way: Way) -> dict[str, float] | None:
    """Seconds, and how many times as fast as cuDNN; None for what the records say nothing of."""
    if way.who is None or (case.H, case.I) != (model.H, model.I):
        return None
    layer = way.step.layer
    if not isinstance(layer, InWindows):
        seconds = model.walk(way.who, case.cell, case.B, case.T)
    elif layer.cut is None:
        return None
    else:
        seconds = model.windows(way.who, case.cell, case.B, layer.cut, case.loss)
    return seconds | {"speed_up": model.speed_up(case.cell, case.B, case.T, seconds)}


def waits_of(step: LayerStep) -> list[int]:
    """Of a forward, and of a backward."""
    step.layer.zero_grad()
    return [waits(step.forward), waits(step.backward)]


def waits(call: Callable[[], object]) -> int:
    """How often the host waits for the device in a call, by torch's own count."""
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            call()
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    return sum("synchroniz" in str(warning.message) for warning in found)


def table(row: Row) -> str:
    """A row in Markdown."""
    loss = "a gradient of every output" if row["loss"] == "every" else "loss on the last state"
    title = f"\n{row['cell']}, B {row['B']}, T {row['T']}, H {row['H']}; {loss}\n\n"
    lines = [_cells(name, way) for name, way in row["ways"].items()]
    return title + recording.markdown(HEAD, lines)


def _cells(name: str, way: dict[str, Any]) -> list[str]:
    if "fails" in way:
        return [name, way["fails"], *[""] * (len(HEAD) - 2)]
    measured, guess = way["seconds"]["both"], way.get("predicted")
    cells = [name, str(way.get("windows", "")), str(way.get("warm", "")), f"{measured * 1e3:.3f}"]
    cells += (
        [f"{guess['both'] * 1e3:.3f}", f"{measured / guess['both']:.2f}"] if guess else ["", ""]
    )
    cells.append(f"{way['speed_up']['both']:.1f}x" if "speed_up" in way else "")
    cells += [f"{guess['speed_up']:.1f}x" if guess else "", f"{way['error']:.0e}"]
    return [*cells, "{} + {}".format(*way["waits"]) if "waits" in way else ""]


if __name__ == "__main__":
    main()

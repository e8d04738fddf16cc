"""Windows of time, verified, beside the walk of one step after the other: time and error.

    python -m experiments.benchmarks.windows

Forward and backward with a gradient into every output, float32, in turns, on the CPU:

- six recurrences written by hand (`loops`): `bl.scan` beside the loop in Python;
- our recurrent layers: `algorithm="speculative"` beside "linear";
- PyTorch's own recurrent layers: windows over PyTorch's kernels beside one call.

"error" is the largest error of a result or gradient against float64, relative to the largest number
of its tensor; a look at how far the recurrence remembers is made in the first call, and not timed;
"first call" is the time of the call that makes it. Writes windows_cpu.json.
"""

import argparse
import copy
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import bppsa_lightning as bl
from bppsa_lightning.recurrent.engines import PytorchEngine
from bppsa_lightning.steps import scans_of
from bppsa_lightning.windows import Memory, speculate
from experiments import recording
from experiments.benchmarks import timing
from experiments.benchmarks.loops import CELLS, first_state, inputs_of

WALK, WINDOWS = "walk", "windows"

# T, B, H of the recurrences written by hand; cell, H, T, B of layers.
LOOPS = ((4096, 4, 20), (4096, 1, 20), (1024, 16, 64))
LAYERS = (
    *((cell, 20, 16_000, 1) for cell in ("RNN", "GRU", "LSTM")),
    *(("LSTM", H, 2048, 1) for H in (128, 256, 512)),
    *((cell, 256, 2048, 1) for cell in ("GRU", "RNN")),
)
PYTORCH = tuple((cell, 256, 2048, 1) for cell in ("RNN", "GRU", "LSTM"))

Run = Callable[[], list[Tensor]]  # one step; results and gradients


def loop(step: Any, init: Any, xs: Any) -> tuple[Any, Any]:
    """What `bl.scan` stands for."""
    ys = []
    for t in range(len(pytree.tree_leaves(xs)[0])):
        init, y = step(init, pytree.tree_map(lambda x, t=t: x[t], xs))
        ys.append(y)
    return init, pytree.tree_map(lambda *same: torch.stack(same), *ys)


def leaves(tree: Any, dtype: torch.dtype = torch.float32) -> Any:
    return pytree.tree_map(lambda t: t.detach().to(dtype).requires_grad_(), tree)


def step_of(walk: Callable[..., Any], module: nn.Module, *arguments: Any) -> Run:
    """Forward and backward of ``walk(module, *arguments)``, all its results weighed."""
    inputs = [*pytree.tree_leaves(arguments), *module.parameters()]
    weights: list[Tensor] = []

    def run() -> list[Tensor]:
        for t in inputs:
            t.grad = None
        results = pytree.tree_leaves(walk(module, *arguments))
        if not weights:
            torch.manual_seed(1)
            weights.extend(torch.rand(r.shape).to(r.dtype) for r in results)
        torch.autograd.backward(results, weights)
        return [r.detach() for r in results] + [t.grad for t in inputs if t.grad is not None]

    return run


def measure(walk: Run, windows: Run, true: Run, seconds: float) -> dict[str, Any]:
    """Medians of both, how many times as fast windows are, and the errors of both."""
    start = time.perf_counter()
    found = windows()
    first = time.perf_counter() - start

    def timed(run: Run) -> timing.Step:
        return lambda: timing.timed(torch.device("cpu"), step=run)

    # When a long walk of PyTorch's has freed its hundreds of megabytes, two threads are slow for
    # seconds: errors come last, and a pause before the next time that is taken.
    time.sleep(min(5.0, 2 * seconds))
    turns = timing.take_turns(
        {WALK: timed(walk), WINDOWS: timed(windows)}, seconds, most=50, least=3
    )
    exact = true()
    errors = {WALK: error(walk(), exact), WINDOWS: error(found, exact)}
    return {
        "seconds": {way: timing.medians(turn)["step"] for way, turn in turns.items()},
        "gain": timing.ratios(turns[WALK], turns[WINDOWS])["step"],
        "first_call_seconds": first,
        "error": errors,
    }


def error(found: list[Tensor], exact: list[Tensor]) -> float:
    return max(
        float((a.double() - b).abs().max() / b.abs().max().clamp(min=1e-300))
        for a, b in zip(found, exact, strict=True)
    )


def by_hand(name: str, T: int, B: int, H: int, seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    step = CELLS[name](8, H)
    init, xs = leaves((first_state(step, B), inputs_of(step, T, B, 8)))
    found = measure(
        step_of(loop, step, init, xs),
        step_of(bl.scan, step, init, xs),
        step_of(loop, copy.deepcopy(step).double(), *leaves((init, xs), torch.float64)),
        seconds,
    )
    [words] = map(str, scans_of(step.parameters()))
    return {"recurrence": name, "T": T, "B": B, "H": H, **found, "explain": words}


def layer(cell: str, H: int, T: int, B: int, seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    walked = getattr(nn, cell)(1, H)
    in_windows, true = copy.deepcopy(walked), copy.deepcopy(walked).double()
    bl.attach(walked, "linear")
    bl.attach(in_windows, "speculative")
    x = torch.randn(T, B, 1)
    call = lambda module, x: module(x)[0]  # noqa: E731
    found = measure(
        step_of(call, walked, leaves(x)),
        step_of(call, in_windows, leaves(x)),
        step_of(call, true, leaves(x, torch.float64)),
        seconds,
    )
    words = bl.explain(in_windows).rpartition(": ")[2]
    return {"layer": cell, "T": T, "B": B, "H": H, **found, "explain": words}


def pytorchs(cell: str, H: int, T: int, B: int, seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    module, memory = getattr(nn, cell)(1, H), Memory()
    x = torch.randn(T, B, 1)
    sizes = [H] * (2 if cell == "LSTM" else 1)

    def windows(module: nn.RNNBase, x: Tensor) -> Tensor:
        kind = "rnn_tanh" if cell == "RNN" else cell.lower()
        engine = PytorchEngine(kind, [*module.parameters(), None])
        state = [x.new_zeros(B, size) for size in sizes]
        plan = memory.plan(engine, [x], state, asked=True)
        assert plan is not None
        return speculate(engine, [x], state, *plan)[0][0]

    call = lambda module, x: module(x)[0]  # noqa: E731
    found = measure(
        step_of(call, module, leaves(x)),
        step_of(windows, module, leaves(x)),
        step_of(call, copy.deepcopy(module).double(), leaves(x, torch.float64)),
        seconds,
    )
    return {"layer": cell, "T": T, "B": B, "H": H, **found, "windows": memory.report.windows}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=4, help="for each size")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    seconds = asked.seconds
    found = {
        "layers": [layer(*sizes, seconds) for sizes in LAYERS],
        "pytorch": [pytorchs(*sizes, seconds) for sizes in PYTORCH],
        "by_hand": [by_hand(name, *sizes, seconds) for sizes in LOOPS for name in CELLS],
    }
    path = recording.folder(asked.record) / "windows_cpu.json"
    recording.write(path, found)
    print(table(found))
    print(f"record: {path}")


def table(found: dict[str, Any]) -> str:
    rows = []
    for kind, cases in found.items():
        for case in cases:
            name = case.get("recurrence") or f"{case['layer']}, {kind}"
            size = f"({case['T']}, {case['B']}, {case['H']})"
            ms = [f"{case['seconds'][way] * 1e3:.1f}" for way in (WALK, WINDOWS)]
            errors = [f"{case['error'][way]:.0e}" for way in (WALK, WINDOWS)]
            rows.append((name, size, *ms, f"{case['gain']:.1f}x", *errors))
    head = ("recurrence", "(T, B, H)", "walk, ms", "windows, ms", "gain", "error", "of windows")
    return recording.markdown(head, rows)


if __name__ == "__main__":
    main()

"""Recurrent layers of `bl.nn` beside their loops in Python, and beside `bl.scan` of the same step.

    python -m experiments.benchmarks.cells                     # with all threads of torch
    python -m experiments.benchmarks.cells --threads 1 --only LSTM PeepholeLSTM
    python -m experiments.benchmarks.cells --device cuda

Forward and backward of one layer, with a gradient of every output. The loop is one that
a careful user writes: what does not depend on the state is computed for all steps at once, and each
step is the module's own `step`. (MinGRU has none, being linear.) All three draw the
masks of recurrent dropout and zoneout for all steps at once. "apart" says how far their results
differ where all have the same masks. Where it is timed, the loop draws those of zoneout by
`torch.rand`, as a user's would.
Writes cells_cpu.json, or cells_cuda.json.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import bppsa_lightning as bl
from bppsa_lightning.nn.by_scan import Noise, drawn, entering_mask, walk
from experiments import recording
from experiments.benchmarks import timing

CELLS: dict[str, tuple[str, dict[str, float]]] = {
    name: (name, {})
    for name in ("RNN", "GRU", "LSTM", "PeepholeLSTM", "LayerNormLSTM", "LayerNormGRU", "IndRNN",
                 "LiGRU")
} | {
    f"{name}({option}={p})": (name, {option: p})
    for name in ("GRU", "LSTM", "PeepholeLSTM", "IndRNN")
    for option, p in (("recurrent_dropout", 0.2), ("zoneout", 0.1))
}  # fmt: skip
COMPARED = 100  # steps; later on a fresh layer-norm LSTM has made its rounding as large as states
Run = Callable[[Tensor], tuple[Tensor, Any]]
HEAD = ("cell", "threads", "bl.nn", "loop", "bl.scan", "loop / bl.nn", "bl.scan / bl.nn", "apart")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=CELLS, default=list(CELLS), metavar="CELL")
    parser.add_argument("--steps", type=int, default=1000, help="of a sequence")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=64, help="units, and numbers of the input")
    parser.add_argument("--threads", type=int, nargs="+", help="(default: one, and all of torch's)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each cell")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    sizes = {"T": asked.steps, "B": asked.batch, "H": asked.hidden}
    before = torch.get_num_threads()
    rows: list[dict[str, Any]] = []
    path = recording.folder(asked.record) / f"cells_{asked.device}.json"
    for threads in asked.threads or ([before] if asked.device == "cuda" else sorted({1, before})):
        torch.set_num_threads(threads)
        for cell in asked.only:
            rows.append(measure(cell, **sizes, seconds=asked.seconds, device=asked.device))
            recording.write(path, {**sizes, "rows": rows})  # row by row: a GPU's loops take long
    torch.set_num_threads(before)
    print(recording.markdown(HEAD, map(line, rows)))
    print(f"record: {path}")


def measure(
    cell: str, T: int, B: int, H: int, seconds: float, device: str = "cpu"
) -> dict[str, Any]:
    """Seconds of the three, ratios, and how far the results of the others are from ours."""
    torch.manual_seed(0)
    name, options = CELLS[cell]
    module: bl.nn.Recurrent = getattr(bl.nn, name)(H, H, device=device, **options)
    x, grad = (torch.randn(T, B, H, device=device) for _ in range(2))
    ways: dict[str, Run] = {"bl.nn": module, "loop": loop(module), "bl.scan": by_scan(module)}
    compared = ways | {"loop": loop(module, drawn)}
    outputs = {name: seeded(run, x)[:COMPARED].detach() for name, run in compared.items()}
    largest = outputs["bl.nn"].abs().max()
    apart = {
        name: float((output - outputs["bl.nn"]).abs().max() / largest)
        for name, output in outputs.items()
        if name != "bl.nn"
    }
    steps = {name: step_of(module, run, x, grad) for name, run in ways.items()}
    found = timing.measure(steps, seconds, most=30, least=5)
    return {"cell": cell, "threads": torch.get_num_threads(), "apart": apart, **found}


def seeded(run: Run, x: Tensor) -> Tensor:
    torch.manual_seed(1)
    return run(x)[0]


def users_mask(p: float, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """As a loop of a user's draws one."""
    return torch.rand(shape, device=like.device) < p


def loop(module: bl.nn.Recurrent, draw: Callable[..., Tensor] = users_mask) -> Run:
    """A layer in one direction, a call of `step` for each step."""

    def run(x: Tensor) -> tuple[Tensor, Any]:
        w, of_all = prepared(module, x)
        state = tuple(x.new_zeros(x.shape[1], size) for size in module._sizes)
        outputs, dropout, zoneout = [], module.recurrent_dropout, module.zoneout
        enters = entering_mask(dropout, state[0]) if dropout else None
        kept = [draw(zoneout, (len(x), *s.shape), s) for s in state] if zoneout else None
        for t, of_x in enumerate(of_all):
            new = module.step(w, of_x, state, state[0] if enters is None else state[0] * enters)
            if kept is not None:
                pairs = zip(kept, state, new, strict=True)
                new = tuple(torch.where(mask[t], old, now) for mask, old, now in pairs)
            state = new
            outputs.append(state[0])
        return torch.stack(outputs), state

    return run


def by_scan(module: bl.nn.Recurrent) -> Run:
    """The same, by `bl.scan`."""

    def run(x: Tensor) -> tuple[Tensor, Any]:
        w, of_all = prepared(module, x)
        noise = Noise(module.recurrent_dropout, module.zoneout, True)
        step, name = partial(module.step, w), type(module).__name__
        output, *last = walk(step, name, module._sizes, noise, of_all, (), False, False)
        return output, last

    return run


def prepared(module: bl.nn.Recurrent, x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The weights by name, and what steps need of the input."""
    w = module._named(module.all_weights[0])
    return w, module.project(x, w, 0)


def step_of(module: torch.nn.Module, run: Run, x: Tensor, grad: Tensor) -> timing.Step:
    x = x.clone().requires_grad_()

    def both() -> None:
        run(x)[0].backward(grad)

    def step() -> timing.Seconds:
        module.zero_grad()
        x.grad = None
        return timing.timed(x.device, both=both)

    return step


def line(row: dict[str, Any]) -> tuple[str, ...]:
    """A row for people."""
    ms = [f"{row[way]['both'] * 1e3:.1f} ms" for way in ("bl.nn", "loop", "bl.scan")]
    gains = [f"{row[f'ratio_{way}']['both']:.1f}x" for way in ("loop", "bl.scan")]
    return row["cell"], str(row["threads"]), *ms, *gains, f"{max(row['apart'].values()):.0e}"


if __name__ == "__main__":
    main()

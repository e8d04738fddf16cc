"""What torch.compile makes of a model with a recurrent layer: breaks, seconds to compile, a step.

    python -m experiments.benchmarks.compiled

A linear layer, an nn.LSTM or nn.GRU and another linear layer, compiled by inductor, on the CPU: as
PyTorch has it, which breaks the graph; with `torch._dynamo.config.allow_rnn`, which unrolls all
steps (a minute to compile); attached; and with a layer of `bl.nn`. A step is forward and backward;
steps are taken in turns. Nothing is taken from a cache of compiled code. Writes compiled_cpu.json.
"""

import argparse
import time
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import bppsa_lightning as bl
from experiments import recording
from experiments.benchmarks import timing

CELLS = ("LSTM", "GRU")
HEAD = ("layer", "way", "graph breaks", "graphs", "to compile", "step")


class Model(nn.Module):
    """A recurrent layer between linear ones."""

    def __init__(self, layer: nn.Module, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(hidden, hidden)
        self.layer = layer
        self.last = nn.Linear(hidden, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        x, _ = self.layer(x)
        return self.last(x.relu()).square().mean()


def with_own_code(layer: nn.Module, hidden: int) -> Model:
    """A model whose code is no other model's: Dynamo keeps what it finds with the code."""
    code = Model.forward.__code__.replace()
    own = {"forward": FunctionType(code, globals())}
    return type("Model", (Model,), own)(layer, hidden)  # type: ignore[no-any-return]


class Way(NamedTuple):
    """One way to compile the model: how the layer is prepared, and Dynamo's options.

    Attributes:
        layer: of the name of a cell and the hidden size. options: of `torch._dynamo.config`.
    """

    layer: Callable[[str, int], nn.Module]
    options: dict[str, Any]


def _stock(cell: str, hidden: int) -> nn.Module:
    layer: nn.Module = getattr(nn, cell)(hidden, hidden)
    return layer


def _attached(cell: str, hidden: int) -> nn.Module:
    layer = _stock(cell, hidden)
    bl.attach(layer)
    return layer


def _own(cell: str, hidden: int) -> nn.Module:
    layer: nn.Module = getattr(bl.nn, cell)(hidden, hidden)
    return layer


WAYS = {
    "stock": Way(_stock, {}),
    "stock, allow_rnn": Way(_stock, {"allow_rnn": True}),
    "attached": Way(_attached, {}),
    "bl.nn": Way(_own, {}),
}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=70, help="of a sequence")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0, help="of steps, for each layer")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    sizes = {"T": asked.steps, "B": asked.batch, "H": asked.hidden}
    rows = []
    for cell in CELLS:
        rows += measure(cell, **sizes, seconds=asked.seconds)
    path = recording.folder(asked.record) / "compiled_cpu.json"
    recording.write(path, {**sizes, "rows": rows})
    print(recording.markdown(HEAD, map(line, rows)))
    print(f"record: {path}")


def measure(cell: str, T: int, B: int, H: int, seconds: float) -> list[dict[str, Any]]:
    """A row of each way."""
    x = torch.randn(T, B, H, generator=torch.Generator().manual_seed(0))
    models, rows, steps = {}, [], {}
    for name, way in WAYS.items():
        torch.manual_seed(0)
        models[name] = with_own_code(way.layer(cell, H), H)
        with torch._dynamo.config.patch(**way.options):
            seen = torch._dynamo.explain(models[name])(x)
        # explain takes one from the graphs for the breaks; but after one all may be left out.
        counts = {"breaks": len(seen.break_reasons), "graphs": seen.graph_count}
        rows.append({"cell": cell, "way": name, **counts})
    torch._dynamo.reset()  # not between the ways, whose code it would take away
    for row in rows:
        name, model = row["way"], models[row["way"]]
        with (
            torch._dynamo.config.patch(**WAYS[name].options),
            torch._inductor.config.patch(force_disable_caches=True),
        ):
            compiled = torch.compile(model, dynamic=False)
            start = time.perf_counter()
            compiled(x).backward()
            first = time.perf_counter() - start
        steps[name] = step_of(model, compiled, x)
        row["compile_seconds"] = first - steps[name]()["both"]
    found = timing.measure(steps, seconds, most=60, least=5)
    for row in rows:
        row["step_seconds"] = found[row["way"]]["both"]
    return rows


def step_of(model: nn.Module, compiled: Callable[[Tensor], Tensor], x: Tensor) -> timing.Step:
    def both() -> None:
        compiled(x).backward()

    def step() -> timing.Seconds:
        model.zero_grad()
        return timing.timed(x.device, both=both)

    return step


def line(row: dict[str, Any]) -> tuple[str, ...]:
    """A row for people."""
    return (
        row["cell"], row["way"], str(row["breaks"]), str(row["graphs"]),
        f"{row['compile_seconds']:.1f} s", f"{row['step_seconds'] * 1e3:.2f} ms",
    )  # fmt: skip


if __name__ == "__main__":
    main()

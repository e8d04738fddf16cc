"""What windows of time should take on a GPU, from records of walks there: a prediction.

    python -m experiments.benchmarks.windows_model --record

A call in K windows of C steps, each warmed up for w, is a few walks of many samples and what lies
between them. Over our kernels it is one: K B samples for w + C steps and those that fit no window,
forward and backward (for C instead of w more where only the last state has a gradient); what a walk
takes beside its steps is taken to be as much for all of them. Over cuDNN's:
forward, (K-1) B samples for w steps, and K B samples for C; backward, K B samples for C steps, and
the last 2w once more, to follow what enters a window from the one behind; both, the steps that fit
no window, by themselves. Host and device work side by side:

    host     of each walk the least seconds that were recorded, which are the host's; `LAUNCH` for
             each operation beside: as many as a small call on the CPU is seen to start, and the
             kernels that say which windows have met
    device   of each walk what was recorded above that; `KERNEL` for each operation beside; over
             cuDNN's kernels copies of inputs into windows, of results out of them, and of gradients
             of every output
    seconds  the longer one of both; the first walk's launch; `WAIT`, since the host looks, once in
             the forward and once in the backward, whether windows have met

Between the sizes of the records it is linear: in T with 16 samples, and in what another number of
samples adds to a thousand steps, also beyond the 256 that were measured. The records are of cuDNN
and of our operators, on an H200, for 20 hidden units, one input and a loss on the last state.

windows_gpu.py prints it beside what it measures. By itself it writes h200_windows_predicted.json:
the paper's sweeps, so many windows as there, all warmed up for `WARM` steps.

Letters: B batch, T steps, H hidden, I input; K, C, w as above.
"""

import argparse
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bppsa_lightning.recurrent.engines import LayerEngine
from bppsa_lightning.recurrent.in_place import KernelsAtOnce
from bppsa_lightning.windows import Cut, Levels, Report, speculate
from experiments import recording
from experiments.benchmarks.recurrent_cases import CELLS, OPERATORS
from experiments.benchmarks.recurrent_gpu import PAPER

# Reasoned, not measured: seconds; and bytes a second that a copy reads and writes, of 4.8e12.
LAUNCH, KERNEL, WAIT = 5e-6, 2e-6, 2e-5
BANDWIDTH = 3e12
H, I = 20, 1  # of the records
FEW, LONG = 16, 1000  # the samples of the sweep over T, the steps of the sweep over B
WINDOWS, WARM = (8, 16, 30, 60, 120), 60  # about what fresh layers of `H` units need
COMMITTED = Path(recording.__file__).parent / "records"  # wherever today's records go
CUDNN, LINEAR, AUTO = "cuDNN", "linear", "auto"

Seconds = dict[str, float]
Row = Mapping[str, Any]


def walk(who: str, cell: str, B: int, T: int) -> Seconds:
    """Seconds of "forward", "backward" and "both": of cuDNN, or of our kernels under a plan."""
    return _of_parts({part: _walk(who, cell, part, B, T) for part in ("forward", "backward")})


def windows(who: str, cell: str, B: int, cut: Cut, loss: str = "every") -> Seconds:
    """The same of a call in windows, all of which meet, over cuDNN (CUDNN) or our kernels (LINEAR).

    Args:
        loss: "every": a gradient of every output flows in; "last": only of the last state.
    """
    K, numbers = cut.windows, 4 * cut.T * B
    if who == CUDNN:
        pieces = pieces_of(cut)
        forward = [((K - 1) * B, cut.warm), *((K * B, steps) for steps in pieces), (B, cut.head)]
        backward = [(K * B, steps) for steps in (*pieces, pieces[-1])] + 2 * [(B, cut.head)]
        copied = {"forward": 2 * numbers * (H + I), "backward": 2 * numbers * H * (loss == "every")}
    else:
        forward = [(K * B, cut.depth)]
        backward = forward if loss == "every" else [(K * B, cut.head + 2 * cut.span)]
        copied = {"forward": 0, "backward": 0}
    seconds = {}
    for part, calls in (("forward", forward), ("backward", backward)):
        walks = [_walk(who, cell, part, n, steps) for n, steps in calls if steps]
        least, beside = _least(who, cell, part), operations(cell, loss, who)[part]
        host = len(walks) * least + beside * LAUNCH
        device = sum(walks) - len(walks) * least + beside * KERNEL + copied[part] / BANDWIDTH
        seconds[part] = max(host, device) + least + WAIT
    return _of_parts(seconds)


def pieces_of(cut: Cut) -> list[int]:
    """The steps that a window is walked in at a time, where calls cost more than steps."""
    return [cut.span] if cut.span <= 2 * cut.warm else [cut.span - 2 * cut.warm, 2 * cut.warm]


def _of_parts(seconds: Seconds) -> Seconds:
    return seconds | {"both": sum(seconds.values())}


def _walk(who: str, cell: str, part: str, B: int, T: int) -> float:
    over_T, over_B = _sweeps(who, cell, part)
    more = T / LONG * (_between(over_B, B) - _between(over_B, FEW))
    return max(_between(over_T, T) + more, _least(who, cell, part))


def _least(who: str, cell: str, part: str) -> float:
    return min(seconds for sweep in _sweeps(who, cell, part) for seconds in sweep.values())


@cache
def _sweeps(who: str, cell: str, part: str) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds by T, with `FEW` samples; and by B, of `LONG` steps."""
    rows = [r for r in _rows(who) if (r["cell"], r["H"]) == (cell, H)]
    over_T = {r["T"]: _seconds(r, part, who) for r in rows if r["B"] == FEW}
    over_B = {r["B"]: _seconds(r, part, who) for r in rows if r["T"] == LONG}
    return dict(sorted(over_T.items())), dict(sorted(over_B.items()))


@cache
def _rows(who: str) -> Sequence[Row]:
    name = "h200_stock_cudnn" if who == CUDNN else "h200_recurrent"
    rows: Sequence[Row] = recording.read(name, COMMITTED)["rows"]
    return rows


def _seconds(row: Row, part: str, who: str) -> float:
    if who == CUDNN:
        return float(row[f"{part}_ms"]) / 1e3
    plans = row["plans"]
    if part == "forward":  # the same under each plan
        return float(min(plan[part] for plan in plans.values()))
    return float(plans[LINEAR if who == LINEAR else row["best"]][part])


def _between(measured: Mapping[int, float], at: float) -> float:
    """Linear between neighbours, and beyond the last; the first one's below."""
    places = list(measured)
    if at <= places[0]:
        return measured[places[0]]
    right = next((i for i, place in enumerate(places) if place >= at), len(places) - 1)
    a, b = places[right - 1 : right + 1]
    return measured[a] + (at - a) / (b - a) * (measured[b] - measured[a])


# What moves no numbers.
_VIEWS = {
    "view", "as_strided", "slice", "select", "detach", "unsqueeze", "squeeze", "transpose",
    "permute", "expand", "unbind", "alias", "split", "split_with_sizes", "_unsafe_view",
    "_reshape_alias", "new_empty",
}  # fmt: skip


class _Counted(TorchDispatchMode):
    """Counts the operations that a device is given, but recurrent kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, operator: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        space, _, name = operator._schema.name.partition("::")
        self.count += space == "aten" and name not in _VIEWS and not name.startswith("empty")
        return operator(*arguments, **(options or {}))


class _OnGpu(Levels):
    """A GPU takes the verdict in plain PyTorch, operation by operation; a CPU has an operator."""

    def met(self, guessed: Sequence[torch.Tensor], true: Sequence[torch.Tensor]) -> list[bool]:
        found: list[bool] = self.met_in_torch(guessed, true).tolist()
        return found


class _Costly(LayerEngine):
    """Our CPU kernels, as if a call cost as much as on a GPU."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.call = 1000 * self.cost(1)


class _AtOnce(LayerEngine):
    """Our CPU kernels in the place of CUDA's: windows of one sample in one launch."""

    def _in_place(self, x: torch.Tensor) -> type[KernelsAtOnce]:
        return KernelsAtOnce


@cache
def operations(cell: str, loss: str, who: str) -> dict[str, int]:
    """How many operations a forward and a backward start beside walks, where windows meet."""
    torch.manual_seed(0)
    B, kind = (2, _Costly) if who == CUDNN else (1, _AtOnce)
    layer, x, cut = CELLS[cell](I, 4), torch.rand(2400, B, I), Cut(2400, 3, 800, 60)
    state = [torch.zeros(B, 4) for _ in range(1 + (cell == "LSTM"))]
    levels = _OnGpu(tuple(torch.ones(4) for _ in state), (1e-30,) * len(state), 1e30)
    engine, counted = kind(OPERATORS[cell], list(layer.parameters())), {}
    with _Counted() as mode:
        [y], last = speculate(engine, [x], state, cut, levels, Report())
    counted["forward"] = mode.count
    given = y if loss == "every" else last[0]
    grad = torch.ones_like(given)
    with _Counted() as mode:
        given.backward(grad)
    counted["backward"] = mode.count
    if who != CUDNN:  # csrc/cuda/recurrent/windows_met.cuh: what a CPU's operator compares itself
        counted["forward"] += len(state)
        counted["backward"] += 2 * len(state)
    return counted


def speed_up(cell: str, B: int, T: int, seconds: Seconds) -> float:
    """How many times as fast as cuDNN's walk, forward and backward."""
    return walk(CUDNN, cell, B, T)["both"] / seconds["both"]


def row(cell: str, B: int, T: int) -> dict[str, Any]:
    """What is predicted for one size, with a gradient of every output."""
    cuts = [Cut(T, K, T // K, WARM) for K in WINDOWS if T // K >= WARM]
    ways = [{"who": who, **walk(who, cell, B, T)} for who in (CUDNN, LINEAR, AUTO)]
    for who in (LINEAR, CUDNN):
        ways += [{"who": who, "windows": c.windows, **windows(who, cell, B, c)} for c in cuts]
    for way in ways:
        way["speed_up"] = speed_up(cell, B, T, way)
    return {"cell": cell, "B": B, "T": T, "H": H, "I": I, "warm": WARM, "ways": ways}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    sizes = [(B, T) for B, T, *rest in dict.fromkeys(PAPER) if tuple(rest) == (H, I)]
    rows = [row(cell, *size) for size in sizes for cell in CELLS]
    path = recording.folder(asked.record) / "h200_windows_predicted.json"
    note = "computed from h200_recurrent.json and h200_stock_cudnn.json; nothing was measured"
    recording.write(path, {"note": note, "rows": rows})
    for found in rows:
        best = max(found["ways"], key=lambda way: way["speed_up"])
        print(f"{found['cell']} ({found['B']}, {found['T']}): {best}")
    print(f"record: {path}")


if __name__ == "__main__":
    main()

"""Weak and strong scaling of a layer divided over P ranks: measured, and simulated beyond.

    python -m experiments.paper.scaling

arXiv:1907.10134: with n devices that hold n parts of a chain, back-propagation takes Θ(n) steps one
after another, and a scan Θ(log n). Here a whole training step of a recurrent layer is divided over
time (docs/ranks.md), each rank one process with one thread, its input its span alone:

- measured, P up to the cores: whole steps beside one process over the whole, in turns;
- simulated, P to 1,024: the events of scaling_model.py, with the costs of a step, a composition
  and a message that scaling_ranks.py measures here. Strong: one sequence over more and more ranks.
  Weak: as many steps for each rank. And n ranks of one step each, n to 2^20, backward alone, as the
  paper counts: a step, a composition and a message take one unit each.

Writes scaling.json and scaling.png.
"""

import argparse
import itertools
import math
import os
from typing import Any

from experiments import recording
from experiments.paper import scaling_plot
from experiments.paper.scaling_model import ALGORITHMS, Costs, Ranks, schedules, simulate
from experiments.paper.scaling_ranks import compared, costs, memory, on_ranks

# kind, T, B, H: of the strong scaling.
LAYERS = (("GRU", 100_000, 1, 20), ("GRU", 1_000_000, 1, 20), ("GRU", 10_000, 16, 64))
# Beside those, as a user has them, "auto".
OTHERS = tuple((kind, T, B, H) for kind in ("RNN", "LSTM") for _, T, B, H in LAYERS[::2])
# Of ours, the simulated way.
SIMULATED = {"linear": "linear", "blelloch": "recursive doubling", "speculative": "speculative"}
MOST_RANKS, MOST_STEPS, WEAK, WARM = 1024, 1 << 20, 10_000, 128
OF_MEMORY = ("GRU", 100_000, 8, 20)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=7, help="to measure (default 7)")
    parser.add_argument(
        "--shorter", type=int, default=1, help="how many times shorter sequences are (default 1)"
    )
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    ranks = range(2, min(2, os.cpu_count() or 1) + 1)
    rows, points, per_layer = [], [], []
    for kind, T, B, H in LAYERS:
        T //= asked.shorter
        found = on_ranks(2, costs, kind, B, H)[0]
        per_layer.append({"kind": kind, "T": T, "B": B, "H": H, "costs": found})
        of = Costs(**{k: v for k, v in found.items() if k != "groups"}, warm=WARM, groups=B)
        for P in ranks:
            for algorithm in ("linear", "blelloch", "speculative", "auto"):
                point = on_ranks(P, compared, kind, T, B, H, algorithm, asked.pairs)[0]
                if algorithm in SIMULATED:
                    point["simulated"] = _speed_up(SIMULATED[algorithm], T, P, of)
                points.append(point)
                print(said(point), flush=True)
        rows += scaled(kind, T, B, H, of)
    for (kind, T, B, H), P in itertools.product(OTHERS, ranks):
        points.append(on_ranks(P, compared, kind, T // asked.shorter, B, H, "auto", asked.pairs)[0])
        print(said(points[-1]), flush=True)
    kind, T, B, H = OF_MEMORY
    held = [
        {"P": P, "bytes": max(on_ranks(P, memory, kind, T // asked.shorter, B, H, "auto"))}
        for P in (1, 2, 4, 8)
    ]
    results = {
        "layers": per_layer, "measured": points, "simulated": rows, "counted": counted(),
        "memory": {"kind": kind, "T": T // asked.shorter, "B": B, "H": H, "ranks": held},
        "warm": WARM, "weak": WEAK,
    }  # fmt: skip
    path = recording.folder(asked.record) / "scaling.json"
    record = recording.write(path, results)
    for row in held:
        print(f"memory on {row['P']} ranks: {row['bytes'] / held[0]['bytes']:.2f} of one")
    scaling_plot.draw(record, path.with_suffix(".png"))
    print(f"record: {path}, .png")


def _speed_up(algorithm: str, n: int, P: int, of: Costs) -> float:
    return simulate("linear", n, 1, of)[0] / simulate(algorithm, n, P, of)[0]


def scaled(kind: str, T: int, B: int, H: int, of: Costs) -> list[dict[str, Any]]:
    """Strong and weak scaling of one layer."""
    rows = []
    for P in (1 << k for k in range(int(math.log2(MOST_RANKS)) + 1)):
        for scaling, n in (("strong", T), ("weak", WEAK * P)):
            one = simulate("linear", n, 1, of)[0]
            for algorithm in ALGORITHMS:
                seconds, rounds = simulate(algorithm, n, P, of)
                rows.append({
                    "kind": kind, "T": T, "B": B, "H": H, "scaling": scaling, "n": n, "P": P,
                    "algorithm": algorithm, "seconds": seconds, "rounds": rounds,
                    "speed_up": one / seconds,
                })  # fmt: skip
    return rows


def counted() -> list[dict[str, Any]]:
    """The backward of n steps on n ranks, all costs one unit: the paper's count."""
    unit = Costs(
        forward=0, backward=1, start=1, compose=0, merge=1, latency=1, of_byte=0, state=1, map=1,
        warm=64,
    )  # fmt: skip
    rows = []
    for n in (1 << k for k in range(1, int(math.log2(MOST_STEPS)) + 1)):
        rows.append({"n": n, "algorithm": "linear", "units": 2.0 * n - 1})  # and n - 1 messages
        for algorithm, scan in schedules.items():
            ranks = Ranks(n, unit)
            scan(ranks)
            rows.append({"n": n, "algorithm": algorithm, "units": float(ranks.clocks.max())})
    return rows


def said(point: dict[str, Any]) -> str:
    size = f"{point['kind']} ({point['T']:,}, {point['B']}, {point['H']})"
    seconds = point["seconds"]
    return (
        f"{size} on {point['P']} ranks, {point['algorithm']}: {point['speed_up']:.2f}x of one "
        f"process ({seconds['one'] * 1e3:.1f} ms -> {seconds['divided'] * 1e3:.1f} ms; a span by "
        f"itself {seconds['span'] * 1e3:.1f} ms), {point['rounds']} rounds, {point['bytes']:,} "
        f"bytes; {point['how']}"
    )


if __name__ == "__main__":
    main()

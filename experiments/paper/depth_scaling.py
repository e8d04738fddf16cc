"""A stack whose layers lie on P ranks: passing gradients on, a scan over ranks, and pipelining.

    python -m experiments.paper.depth_scaling

A step is forward and backward of n layers (a Linear and an activation each), float32, n / P layers
on each rank, one thread each.

- measured, two processes beside one, in turns: gradients passed on ("linear"), a scan over ranks
  ("blelloch"; of two ranks neither composes), and torch.distributed.pipelining's GPipe.
- simulated, P to 64: events with the costs of n / P layers, of their products and of messages, all
  measured here. "gpipe" cuts the batch into 4 P micro-batches, as far as there are samples.

Writes depth_scaling.json, depth_scaling.png and .svg.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from experiments import recording, style
from experiments.paper.depth_ranks import WAYS, compared, costs
from experiments.paper.scaling_model import Costs, Ranks
from experiments.paper.scaling_ranks import on_ranks

# n, B, N: one sample and narrow, as the paper's case for a scan; a batch; wide.
STACKS = ((64, 1, 16), (64, 1, 128), (64, 16, 32), (64, 64, 128))
MOST = 64
STYLES = {
    "linear": (style.BLACK, "D"), "blelloch": (style.BLUE, "o"), "gpipe": (style.GREEN, "s"),
}  # fmt: skip
WORDS = {"linear": "passed on", "blelloch": "scan over ranks", "gpipe": "GPipe, micro-batches"}


def simulate(way: str, P: int, of: dict[str, Any]) -> tuple[float, float]:
    """Seconds of a step over P ranks, and of its backward by itself.

    Args:
        of: as `depth_ranks.costs` measured it.
    """
    each = of["ranks"][P]
    if P == 1:
        backward = each["back"] + each["weights"]
        return each["forward"] + backward, backward
    return _events(way, P, of, True), _events(way, P, of, False)


def _events(way: str, P: int, of: dict[str, Any], forward: bool) -> float:
    each = of["ranks"][P]
    ranks = Ranks(P, Costs(
        0.0, 0.0, 0.0, 0.0, each.get("merge", 0.0), of["latency"], of["of_byte"], of["state"],
        each.get("map", 0.0), 0,
    ))  # fmt: skip
    M = each["groups"]
    if forward and way == "gpipe":
        ranks.relay(1, of["state"] / M, each["group_forward"], M)
    elif forward:
        ranks.relay(1, of["state"], each["forward"])
    if way == "gpipe":
        ranks.relay(-1, of["state"] / M, each["group_back"] + each["group_weights"], M)
        return float(ranks.clocks.max())
    if way == "linear":
        ranks.relay(-1, of["state"], each["back"])
    else:
        _scan(ranks, each, of["state"])
    ranks.work(each["weights"])
    return float(ranks.clocks.max())


def _scan(ranks: Ranks, each: dict[str, Any], state: float) -> None:
    """As `depth.divided` does it: the last rank walks, the others compose, all exchange, walk."""
    P = ranks.P
    ranks.clocks[1:-1] += each.get("compose", 0.0)
    ranks.clocks[-1] += each["back"]
    size, ahead = each.get("map", state), 1
    ranks.round(-1, size)
    while ahead < P - 1:
        ranks.round(-ahead, size, each["merge"])
        ahead *= 2
    ranks.round(1, 8)  # whether it is to be believed
    ranks.clocks[:-1] += each["back"]


def _gains(way: str, P: int, of: dict[str, Any]) -> dict[str, float]:
    """Times as fast as one rank."""
    pairs = zip(simulate(way, 1, of), simulate(way, P, of), strict=True)
    return dict(zip(("step", "backward"), (one / ours for one, ours in pairs), strict=True))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=9, help="to measure (default 9)")
    parser.add_argument("--most", type=int, default=MOST, help=f"ranks (default {MOST})")
    recording.add_record_argument(parser)
    return parser


def main(arguments: list[str] | None = None) -> None:
    asked = parser().parse_args(arguments)
    rows = []
    for n, B, N in STACKS:
        point = on_ranks(2, compared, n, B, N, min(B, 8), asked.pairs)[0]
        of = on_ranks(2, costs, n, B, N, asked.most)[0]
        simulated = [
            {"P": P, "way": way, **_gains(way, P, of)} for P in of["ranks"] for way in WAYS
        ]
        of["ranks"] = {str(P): each for P, each in of["ranks"].items()}
        rows.append(point | {"costs": of, "simulated": simulated})
        gains = ", ".join(f"{way} {gain:.2f}x" for way, gain in point["speed_up"].items())
        print(f"{n} layers of {N}, {B} samples, two ranks: {gains}", flush=True)
        for way in WAYS:
            mine = [row for row in simulated if row["way"] == way and row["P"] > 1]
            said = (f"{row['P']}: {row['step']:.2f}x, {row['backward']:.2f}x" for row in mine)
            print(f"  simulated, {way}: ranks: step, backward: {'; '.join(said)}", flush=True)
    path = recording.folder(asked.record) / "depth_scaling.json"
    record = recording.write(path, {"stacks": rows})
    draw(record, path.with_suffix(".png"))
    print(f"record: {path}, .png, .svg")


def draw(record: dict[str, Any], path: Path) -> None:
    """A column for each stack: whole steps above, the backward by itself below."""
    rows = record["stacks"]
    figure, axes = recording.pyplot().subplots(
        2, len(rows), figsize=(4 * len(rows), 7.4), layout="constrained", squeeze=False
    )
    for k, row in enumerate(rows):
        for axis, what in zip(axes[:, k], ("step", "backward"), strict=True):
            _gains_over_ranks(axis, row, what)
        samples = "1 sample" if row["B"] == 1 else f"{row['B']} samples"
        axes[0][k].set_title(f"{row['n']} layers of {row['N']}, {samples}", fontsize=11)
        axes[1][k].set_xlabel("ranks P")
        for way, (colour, marker) in STYLES.items():
            axes[0][k].plot(
                row["P"], row["speed_up"][way], marker, ms=10, mfc="none", mec=colour, mew=2
            )
    axes[0][0].set_ylabel("a whole step, times as fast as one rank")
    axes[1][0].set_ylabel("the backward alone, likewise")
    handles, labels = axes[0][0].get_legend_handles_labels()
    hollow = axes[0][0].plot([], [], "o", ms=10, mfc="none", mec="0.4", mew=2)[0]
    figure.legend(
        [*handles, hollow], [*labels, "measured"], loc="outside lower center", ncols=5,
        frameon=False,
    )  # fmt: skip
    figure.suptitle("A stack whose layers lie on P ranks, one thread each")
    recording.save_figure(
        figure, path, record["environment"], "measured, and simulated with measured costs"
    )


def _gains_over_ranks(axis: Any, row: dict[str, Any], what: str) -> None:
    for way, (colour, marker) in STYLES.items():
        mine = [r for r in row["simulated"] if r["way"] == way]
        axis.plot(
            [r["P"] for r in mine], [r[what] for r in mine], marker=marker, ms=5, color=colour,
            label=WORDS[way],
        )  # fmt: skip
    ranks = [r["P"] for r in row["simulated"]]
    axis.plot(ranks, ranks, color="0.6", ls=":", label="P, the bound")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_ylim(1 / 16, 64)
    axis.grid(alpha=0.3)


if __name__ == "__main__":
    main()

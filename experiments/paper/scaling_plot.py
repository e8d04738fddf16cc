"""The picture of scaling.py: strong and weak scaling of two layers, and the paper's count."""

from pathlib import Path
from typing import Any

from experiments import recording, style

STYLES = {
    "linear": (style.BLACK, "D"),
    "pipelined": (style.GREEN, "s"),
    "recursive doubling": (style.BLUE, "o"),
    "blelloch": (style.SKY, "v"),
    "speculative": (style.VERMILLION, "^"),
}
OF_MEASURED = {"linear": "linear", "blelloch": "recursive doubling", "speculative": "speculative"}
WORDS = {"linear": "passed on", "pipelined": "passed on, by groups of samples"}


def draw(found: dict[str, Any], path: Path) -> None:
    layers = found["layers"]
    figure, axes = recording.pyplot().subplots(
        len(layers), 3, figsize=(14, 4.3 * len(layers)), layout="constrained", squeeze=False
    )
    for line, layer in zip(axes, layers, strict=True):
        size = {key: layer[key] for key in ("kind", "T", "B", "H")}
        rows = [r for r in found["simulated"] if all(r[k] == v for k, v in size.items())]
        name = f"{layer['kind']}, B = {layer['B']}, H = {layer['H']}"
        scaling(line[0], [r for r in rows if r["scaling"] == "strong"])
        line[0].set_title(f"{name}: strong, n = {layer['T']:,} steps", fontsize=11)
        for point in found["measured"]:
            if all(point[k] == v for k, v in size.items()) and point["algorithm"] in OF_MEASURED:
                colour, marker = STYLES[OF_MEASURED[point["algorithm"]]]
                line[0].plot(
                    point["P"], point["speed_up"], marker, ms=10, mfc="none", mec=colour, mew=2
                )
        scaling(line[1], [r for r in rows if r["scaling"] == "weak"])
        line[1].set_title(f"{name}: weak, {found['weak']:,} steps a rank", fontsize=11)
    counted(axes[0][2], found["counted"])
    apart(axes[1][2], found["measured"])
    memory(axes[-1][2], found["memory"])
    handles, labels = axes[0][0].get_legend_handles_labels()
    hollow = axes[0][0].plot([], [], "o", ms=10, mfc="none", mec="0.4", mew=2)[0]
    figure.legend(
        [*handles, hollow], [*labels, "measured"], loc="outside lower center", ncols=7,
        frameon=False,
    )  # fmt: skip
    figure.suptitle(
        "A training step of a recurrent layer, divided in time over P ranks, each one thread"
    )
    recording.save_figure(
        figure, path, found["environment"], "measured, and simulated with measured costs"
    )


def scaling(axis: Any, rows: list[dict[str, Any]]) -> None:
    for algorithm, (colour, marker) in STYLES.items():
        mine = sorted((r for r in rows if r["algorithm"] == algorithm), key=lambda r: r["P"])
        axis.plot(
            [r["P"] for r in mine], [r["speed_up"] for r in mine], marker=marker, color=colour,
            ms=5, label=WORDS.get(algorithm, algorithm),
        )  # fmt: skip
    ranks = sorted({r["P"] for r in rows})
    axis.plot(ranks, ranks, color="0.6", ls=":", label="P, the bound")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xlabel("ranks P")
    axis.set_ylabel("times as fast as one rank")
    axis.grid(alpha=0.3)


def counted(axis: Any, rows: list[dict[str, Any]]) -> None:
    for algorithm in ("linear", "recursive doubling", "blelloch"):
        colour, marker = STYLES[algorithm]
        mine = [r for r in rows if r["algorithm"] == algorithm]
        axis.plot(
            [r["n"] for r in mine], [r["units"] for r in mine], marker=marker, color=colour, ms=5
        )
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_title("backward of n steps on n ranks, as the paper counts", fontsize=11)
    axis.set_xlabel("steps n = ranks")
    axis.set_ylabel("steps, products and messages in a row")
    axis.grid(alpha=0.3)
    last = {r["algorithm"]: r for r in rows}
    axis.annotate("Θ(n)", (last["linear"]["n"], last["linear"]["units"]), (-34, -4),
                  textcoords="offset points")  # fmt: skip
    axis.annotate("Θ(log n)", (last["blelloch"]["n"], last["blelloch"]["units"]), (-48, 8),
                  textcoords="offset points")  # fmt: skip


def apart(axis: Any, points: list[dict[str, Any]]) -> None:
    """Two ranks beside one process, and beside what a span takes by itself, of what "auto" does."""
    mine = [point for point in points if point["algorithm"] == "auto"]
    colours = {"one": "0.6", "divided": style.VERMILLION, "span": style.ORANGE}
    words = {"one": "one process", "divided": "two ranks", "span": "a span by itself"}
    for k, (name, colour) in enumerate(colours.items()):
        shares = [point["seconds"][name] / point["seconds"]["one"] for point in mine]
        places = [i + 0.27 * (k - 1) for i in range(len(mine))]
        axis.bar(places, shares, 0.25, color=colour, label=words[name])
    axis.set_xticks(
        range(len(mine)), [f"{p['kind']}\n{_short(p['T'])}\n{p['B']}, {p['H']}" for p in mine]
    )
    axis.set_xlabel("cell, steps n, samples B and units H")
    axis.set_ylabel("time of a step, of one process'")
    axis.set_ylim(0, 1.35)
    axis.set_title("measured: two ranks, and what the exchange costs", fontsize=11)
    axis.legend(frameon=False, ncols=3, fontsize=9)


def _short(steps: int) -> str:
    return f"{steps // 1_000_000}M" if steps % 1_000_000 == 0 else f"{steps / 1000:g}k"


def memory(axis: Any, found: dict[str, Any]) -> None:
    ranks = found["ranks"]
    P = [r["P"] for r in ranks]
    axis.bar(range(len(P)), [r["bytes"] / 2**20 for r in ranks], color=style.BLUE)
    axis.plot(range(len(P)), [ranks[0]["bytes"] / 2**20 / p for p in P], "o", color="0.3",
              label="1 / P of one rank")  # fmt: skip
    axis.set_xticks(range(len(P)), [str(p) for p in P])
    axis.set_title(
        f"memory of a rank: {found['kind']}, n = {found['T']:,}, B = {found['B']}, "
        f"H = {found['H']}", fontsize=11,
    )  # fmt: skip
    axis.set_xlabel("ranks P")
    axis.set_ylabel("MiB")
    axis.legend(frameon=False)

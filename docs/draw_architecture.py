"""Draws docs/architecture.svg from the imports of the package and the includes of csrc/.

    python docs/draw_architecture.py            # writes the picture
    python docs/draw_architecture.py --check    # fails if the committed picture is out of date

A box is a folder or a file directly under `bppsa_lightning/` or `csrc/`, and `testing/drivers`,
which nobody includes. Nothing is imported or compiled. A box stands above everything that it uses.
An arrow that follows from others (a uses b, b uses c, hence a may use c) is left out. A new folder
or file needs a line in `PURPOSES`, and a circle has no picture: both are errors.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "architecture.svg"
PACKAGE = "bppsa_lightning"

# What a box is for, in a few words.
PURPOSES: Mapping[str, Mapping[str, str]] = {
    PACKAGE: {
        "strategy": 'Trainer(strategy="bppsa")',
        "fabric": 'Fabric(strategy="bppsa")',
        "registries": "names in Lightning",
        "private": "per-sample, for Opacus",
        "callbacks": "timing, logging, pruning",
        "layerpipe": "a pipeline of processes",
        "__main__": "python -m bppsa_lightning",
        "cli": "doctor, bench, calibrate",
        "steps": "any step function",
        "windows": "time side by side, verified",
        "divided": "a sequence over ranks",
        "ranks": "messages, maps, rounds",
        "chain_strategy": 'strategy="bppsa_chain"',
        "_same_batches": "random numbers alike",
        "_whole_metrics": "metrics, of whom",
        "attach": "attach(), detach()",
        "idle": "when nothing is scanned",
        "_memory": "kept between steps",
        "report": "a training as a page",
        "gains": "steps timed against stock",
        "explain": "what runs how, and why",
        "calibration": "measures this machine",
        "recurrent": "nn.RNN, nn.GRU, nn.LSTM",
        "nn": "layers with resets, cells",
        "chain": "what every chain remembers",
        "depth": "stacks of layers",
        "pruned": "layers with a mask",
        "jacobians": "sparse Jacobians (CSR)",
        "ops": "the only door to C++",
        "planner": "picks the algorithm",
        "reference": "the maths in plain torch",
        "reference_cells": "and of more cells",
        "_library": "loads the compiled code",
        "_gloo": "its threads, on busy cores",
        "_command": "is this the command line?",
        "_cores": "affinity, cgroup limits",
        "_forked": "one thread after a fork",
        "_replacement": "swaps a module's forward",
        "_overridden": "and that of super()",
        "_scripting": "steps aside for torch.jit",
        "_trees": "both Lightning packages",
        "_one_or_several": "one device or DDP",
        "_advice": "warnings, each once",
        "_rank_zero": "one process says it",
        "runs": "attached for a run",
        "_context": "compiling? tracing? hooked?",
        "_cells": "names, gates, states",
    },
    "csrc": {
        "library.cpp": "operator schemas",
        "cpu": "CPU backend",
        "cuda": "CUDA backend",
        "operators": "tensors in, tensors out",
        "recurrent": "a layer over time",
        "jacobians": "patterns and products",
        "sparse": "pruned layers",
        "scan": "linear, chunked, Blelloch",
        "cells": "formulas of a step",
        "simd": "vectors, tiles, threads",
        "requests": "arguments, by name",
        "testing": "a CUDA device, emulated",
        "testing/drivers": "run kernels in the emulator",
    },
}
TITLES = {PACKAGE: "bppsa_lightning/  (Python)", "csrc": "csrc/  (C++ and CUDA)"}
Graph = dict[str, set[str]]


# --- reading the code ----------------------------------------------------------------------------


def package_graph(folder: Path) -> Graph:
    """Which part of the package imports which: {part: parts that it uses}."""
    parts = _python_parts(folder)
    graph: Graph = {part: set() for part in parts}
    for part, files in parts.items():
        for file in files:
            inside = file.relative_to(folder.parent).with_suffix("").parts
            for module in _imports(ast.parse(file.read_text()), inside):
                if module[0] == folder.name and len(module) > 1 and module[1] in parts:
                    graph[part].add(module[1])
        graph[part].discard(part)
    return graph


def _python_parts(folder: Path) -> dict[str, list[Path]]:
    """The folders and files directly under the package, but its `__init__` and the datasets."""
    parts = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" and path.stem != "__init__":
            parts[path.stem] = [path]
        elif path.is_dir() and not path.is_symlink() and (path / "__init__.py").is_file():
            parts[path.name] = sorted(path.rglob("*.py"))
    return parts


def _imports(tree: ast.AST, module: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The dotted names that a module imports, as tuples, relative ones resolved."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module[: -node.level] if node.level else ()
            name = (*base, *(node.module.split(".") if node.module else ()))
            yield name
            yield from ((*name, alias.name) for alias in node.names)


_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
_SOURCES = {".h", ".cpp", ".cu", ".cuh", ".in"}


def csrc_graph(folder: Path) -> Graph:
    """Which part of csrc/ includes which: {part: parts that it uses}."""
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in _SOURCES]
    graph: Graph = {_part(path, folder): set() for path in files}
    for path in files:
        for included in _INCLUDE.findall(path.read_text()):
            for base in (path.parent, folder):
                target = (base / included).resolve()
                if target.is_file() and target.is_relative_to(folder):
                    graph[_part(path, folder)].add(_part(target, folder))
                    break
    for part, used in graph.items():
        used.discard(part)
    return graph


def _part(path: Path, folder: Path) -> str:
    """The folder or file directly under csrc/, or a folder below it that has its own caption."""
    first, *rest = path.relative_to(folder).parts
    below = f"{first}/{rest[0]}" if rest else first
    return below if below in PURPOSES["csrc"] else first


# --- from a graph to rows ------------------------------------------------------------------------


def check_captions(graph: Graph, purposes: Mapping[str, str]) -> None:
    """Raises ValueError unless each part has a caption, and each caption a part."""
    new, gone = sorted(graph.keys() - purposes.keys()), sorted(purposes.keys() - graph.keys())
    if new or gone:
        raise ValueError(
            f"PURPOSES in {Path(__file__).name}: no caption for {', '.join(new) or 'nothing'}; "
            f"captions of what is not there: {', '.join(gone) or 'none'}"
        )


def rows(graph: Graph) -> list[list[str]]:
    """Boxes in rows, the roof first: each stands above everything that it uses.

    What neither uses nor is used (`library.cpp` has only the schemas) stands on the roof.

    Raises:
        ValueError: boxes use each other in a circle.
    """
    height: dict[str, int] = {}

    def visit(box: str, path: tuple[str, ...]) -> int:
        if box in path:
            circle = " -> ".join((*path[path.index(box) :], box))
            raise ValueError(f"a circle has no picture: {circle}")
        if box not in height:
            below = [visit(used, (*path, box)) for used in sorted(graph[box])]
            level = 1 + max(below, default=-1)
            while list(height.values()).count(level) == MOST_IN_A_ROW:
                level += 1
            height[box] = level
        return height[box]

    for box in graph:
        visit(box, ())
    roof, used_by_some = max(height.values()), set().union(*graph.values())
    height |= {box: roof for box in graph if not graph[box] and box not in used_by_some}
    levels = range(roof, -1, -1)
    return [[box for box in graph if height[box] == level] for level in levels]


def essential(graph: Graph) -> list[tuple[str, str]]:
    """The arrows that do not follow from others."""
    below: dict[str, set[str]] = {}

    def reach(box: str) -> set[str]:
        if box not in below:
            below[box] = set().union(*({used} | reach(used) for used in graph[box]))
        return below[box]

    return [
        (box, used)
        for box in graph
        for used in sorted(graph[box])
        if not any(used in reach(other) for other in graph[box] - {used})
    ]


# --- drawing -------------------------------------------------------------------------------------

MOST_IN_A_ROW = 4
WIDTH, BOX, TALL, GAP, MARGIN = 860, 196, 46, 46, 34
HEAD = 40  # above the first row: the title
Point = tuple[float, float]

STYLE = """
  .card { fill: #f6f8fa; stroke: #d0d7de } .box { fill: #ffffff; stroke: #57606a }
  .name { fill: #1f2328; font-weight: 600 } .note { fill: #57606a } .line { stroke: #6e7781 }
  .tip { fill: #6e7781 } .door { stroke: #0969da } .doortip { fill: #0969da }
  .doorname { fill: #0969da; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #161b22; stroke: #30363d } .box { fill: #0d1117; stroke: #8b949e }
    .name { fill: #e6edf3 } .note { fill: #9da7b1 } .line { stroke: #8b949e }
    .tip { fill: #8b949e } .door { stroke: #58a6ff } .doortip { fill: #58a6ff }
    .doorname { fill: #58a6ff }
  }
"""


def picture(graphs: Mapping[str, Graph]) -> str:
    """The SVG: one card for each graph, and the door between them."""
    parts, top = [], 8.0
    for key, graph in graphs.items():
        card, tall = _card(TITLES[key], graph, PURPOSES[key], top)
        parts.append(card)
        top += tall
        if key == PACKAGE:
            parts.append(_door(top))
            top += 58
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 8:.0f}" '
        f'font-family="system-ui, Segoe UI, Helvetica, Arial, sans-serif" font-size="13">\n'
        "<title>The parts of the package and of csrc, and which uses which</title>\n"
        f"<style>{STYLE}</style>\n<defs>\n{_tip('tip')}\n{_tip('doortip')}\n</defs>\n"
        + "\n".join([*parts, "</svg>\n"])
    )


def _tip(name: str) -> str:
    return (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path class="{name}" d="M0,0.8 L7.5,4 L0,7.2 z"/></marker>'
    )


def _door(top: float) -> str:
    x = WIDTH / 2
    return (
        f'<path class="door" d="M{x:.0f},{top + 4:.0f} V{top + 52:.0f}" fill="none" '
        f'stroke-width="2" marker-end="url(#doortip)"/>\n'
        f'<text class="doorname" x="{x + 14:.0f}" y="{top + 33:.0f}">'
        "ops calls torch.ops.bppsa</text>"
    )


def _card(title: str, graph: Graph, purposes: Mapping[str, str], top: float) -> tuple[str, float]:
    """One card and its height."""
    check_captions(graph, purposes)
    places = _places(_untangled(rows(graph), essential(graph)), top + HEAD)
    tall = max(y for _, y in places.values()) + TALL + 20 - top
    lines = [
        f'<rect class="card" x="8" y="{top:.0f}" width="{WIDTH - 16}" height="{tall:.0f}" '
        'rx="10"/>',
        f'<text class="note" x="24" y="{top + 26:.0f}">{escape(title)}</text>',
    ]
    lines += _arrows(essential(graph), places)
    for box, (x, y) in places.items():
        lines.append(
            f'<rect class="box" x="{x:.0f}" y="{y:.0f}" width="{BOX}" height="{TALL}" rx="6"/>'
            f'<text class="name" x="{x + BOX / 2:.0f}" y="{y + 20:.0f}" text-anchor="middle">'
            f"{escape(box)}</text>"
            f'<text class="note" x="{x + BOX / 2:.0f}" y="{y + 37:.0f}" text-anchor="middle" '
            f'font-size="12">{escape(purposes[box])}</text>'
        )
    return "\n".join(lines), tall


def _untangled(levels: list[list[str]], arrows: list[tuple[str, str]]) -> list[list[str]]:
    """Each row ordered by where its neighbours stand, which leaves few crossings."""
    levels = [list(level) for level in levels]
    for _ in range(8):
        for order in (levels, levels[::-1]):
            place = {b: (i + 1) / (len(row) + 1) for row in levels for i, b in enumerate(row)}
            for level in order:
                near = {
                    box: [place[b] for a, b in arrows if a == box]
                    + [place[a] for a, b in arrows if b == box]
                    for box in level
                }
                level.sort(key=lambda box: sum(near[box]) / len(near[box]) if near[box] else 0.5)
                for i, box in enumerate(level):
                    place[box] = (i + 1) / (len(level) + 1)
    return levels


def _places(levels: list[list[str]], top: float) -> dict[str, Point]:
    places = {}
    for row, level in enumerate(levels):
        space = (WIDTH - len(level) * BOX) / (len(level) + 1)
        for i, box in enumerate(level):
            places[box] = (space + i * (BOX + space), top + row * (TALL + GAP))
    return places


def _arrows(arrows: list[tuple[str, str]], places: Mapping[str, Point]) -> list[str]:
    """Each arrow as a curve; past rows between its ends it goes through the nearest gap."""
    levels: dict[float, list[float]] = {}
    for x, y in places.values():
        levels.setdefault(y, []).append(x)
    starts = _ports(arrows, places, 0)
    ends = _ports(arrows, places, 1)
    taken: dict[tuple[float, float], int] = {}
    drawn = []
    for arrow in sorted(arrows, key=lambda a: (places[a[0]][1], starts[a])):
        (x, y), (x_end, y_end) = (starts[arrow], places[arrow[0]][1] + TALL), (
            ends[arrow], places[arrow[1]][1] - 1,
        )  # fmt: skip
        path, first, last = f"M{x:.0f},{y:.0f}", y, y_end
        for between in sorted(level for level in levels if y < level < y_end - TALL):
            wanted = x + (x_end - x) * (between - y) / (last - first)
            gap = min(_gaps(levels[between]), key=lambda g: abs(g - wanted))
            nth = taken[between, gap] = taken.get((between, gap), 0) + 1
            through = gap + (nth // 2) * 9 * (-1) ** nth
            path += _curve(x, y, through, between - 4) + f" V{between + TALL + 4:.0f}"
            x, y = through, between + TALL + 4
        path += _curve(x, y, x_end, y_end)
        drawn.append(
            f'<path class="line" d="{path}" fill="none" stroke-width="1.4" marker-end="url(#tip)"/>'
        )
    return drawn


def _curve(x: float, y: float, x_end: float, y_end: float) -> str:
    bend = (y_end - y) * 0.5
    return f" C{x:.0f},{y + bend:.0f} {x_end:.0f},{y_end - bend:.0f} {x_end:.0f},{y_end:.0f}"


def _gaps(lefts: list[float]) -> list[float]:
    """The middles of the gaps between a row's boxes, and of its margins."""
    edges = [0.0, *(edge for x in sorted(lefts) for edge in (x, x + BOX)), float(WIDTH)]
    gaps = [(a + b) / 2 for a, b in zip(edges[::2], edges[1::2], strict=True)]
    return [min(max(gap, MARGIN), WIDTH - MARGIN) for gap in gaps]


def _ports(
    arrows: list[tuple[str, str]], places: Mapping[str, Point], end: int
) -> dict[tuple[str, str], float]:
    """Where on its box each arrow starts (end 0) or ends (1): side by side, uncrossed."""
    ports = {}
    for box, (x, _) in places.items():
        own = sorted((a for a in arrows if a[end] == box), key=lambda a: places[a[1 - end]][0])
        for i, arrow in enumerate(own):
            ports[arrow] = x + BOX * (i + 1) / (len(own) + 1)
    return ports


def draw(root: Path = ROOT) -> str:
    """The picture of the code under `root`."""
    return picture(
        {PACKAGE: package_graph(root / PACKAGE), "csrc": csrc_graph((root / "csrc").resolve())}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    drawn = draw()
    if not parser.parse_args().check:
        PICTURE.write_text(drawn)
    elif not PICTURE.is_file() or PICTURE.read_text() != drawn:
        sys.exit(f"{PICTURE.name} is out of date: run `python docs/{Path(__file__).name}`")


if __name__ == "__main__":
    main()

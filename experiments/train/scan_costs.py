"""What a scan over a chain consists of: every product, where in the chain, and what it costs.

Counted are floating-point operations for one sample, in products of matrices and of matrices with
vectors, as the kernels make them. With a worker for every product of a phase, the critical path
holds the costliest of each phase, and every step of a phase that goes from step to step ("roots",
"carry").

n steps; step k (0 … n-1) leads from state k to state k+1. T steps and H states of a recurrent
chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import bppsa_lightning as bl
from bppsa_lightning.depth import LayerScan
from bppsa_lightning.depth.stack import FeedforwardChain, modules_of


@dataclass
class Step:
    """One product, or some in a row by one worker.

    Attributes:
        name: of the segment of the chain that it concerns.
        phase: "up-sweep 1", "roots", "down-sweep 1", "compose", "carry", "replay" or "BP".
        kind: "matrix" (times matrix) or "vector" (matrix times vector).
        first, last: the segment's steps.
        mnk: multiply-adds of the product with dense matrices.
        flops: of all its products.
        count: how many products in a row.
        critical: whether it lies on the critical path.
    """

    name: str
    phase: str
    kind: str
    first: int
    last: int
    mnk: int
    flops: int
    count: int = 1
    critical: bool = False


@dataclass
class ScanCosts:
    """A scan over a chain.

    Attributes:
        names: of the chain's steps, first to last.
        steps: of the scan, phase by phase in the order of execution.
        plan: how the chain is scanned, in words.
        bp_flops: of plain back-propagation, n steps in a row.
    """

    names: list[str]
    steps: list[Step]
    plan: str
    bp_flops: int

    def phases(self) -> Iterator[tuple[str, list[Step]]]:
        """Each phase with its steps."""
        for phase, steps in groupby(self.steps, key=lambda step: step.phase):
            yield phase, list(steps)

    @property
    def critical_flops(self) -> int:
        return sum(step.flops for step in self.steps if step.critical)

    @property
    def critical_products(self) -> int:
        """Products in a row, from the first to the last."""
        return sum(step.count for step in self.steps if step.critical)


def of_chain(chain: bl.Chain) -> list[ScanCosts]:
    """The scans of an attached chain's last backward: of a recurrent layer one, with one sequence
    and direction for all; of a stack of layers one for each run of layers.

    Raises:
        ValueError: the chain has no scan to show yet.
    """
    plan = chain.plan
    if plan is None:
        raise ValueError(f"chain: found {chain!r}, wanted one that has been called")
    if not isinstance(chain, FeedforwardChain):
        assert chain.shape is not None
        T, _, H = chain.shape
        return [of_plan(plan, T, H)]
    if not chain.scans:
        raise ValueError(f"chain: found {chain!r}, wanted algorithm='blelloch' and a backward")
    names = names_of(list(modules_of(chain.module)))
    return [
        of_layers(scan, names[first : first + count])
        for (first, count, *_), scan in chain.scans.items()
    ]


def names_of(modules: Sequence[Any]) -> list[str]:
    """Short names of layers, the kinds that come more than once numbered: conv1, relu1, conv2, …"""
    kinds = [
        type(module).__name__.lower().removesuffix("1d").removesuffix("2d") for module in modules
    ]
    seen: dict[str, int] = {}
    names = []
    for kind in kinds:
        seen[kind] = seen.get(kind, 0) + 1
        names.append(f"{kind}{seen[kind]}" if kinds.count(kind) > 1 else kind)
    return names


def of_layers(scan: LayerScan, names: Sequence[str]) -> ScanCosts:
    """The scan of a stack of layers by sparse products of fixed plans, every gradient asked for.

    Segments that are walked are no steps, their parts are: products that were refused for their
    size, and compositions in which nothing is multiplied.

    Args:
        scan: the plans.
        names: of the layers.
    """

    def vector(node: Any, phase: str) -> Step:
        rows, columns = node.composition.shape
        name = _segment(names, node.first, node.last)
        work = (rows * columns, 2 * node.composition.nnz)
        return Step(name, phase, "vector", node.first, node.last, *work)

    roots = [part for node in scan.roots for part in _crossed(node)]
    levels: dict[int, list[Any]] = {}
    for node in _nodes(roots):
        if node.composition is not None and node.composition.products:
            levels.setdefault(_height(node), []).append(node)
    steps = []
    for level in sorted(levels):
        for node in levels[level]:
            a, b = (child.composition.shape for child in node.children)
            name = _segment(names, node.first, node.last)
            work = (a[0] * a[1] * b[1], node.composition.flops)
            steps.append(Step(name, f"up-sweep {level}", "matrix", node.first, node.last, *work))
    steps += [vector(root, "roots") for root in reversed(roots)]
    rounds = _down_sweep(roots)
    for k, together in enumerate(rounds):
        steps += [vector(node, f"down-sweep {len(rounds) - k}") for node in together]
    flops = sum(2 * pattern.nnz for pattern in scan.patterns)
    return ScanCosts(list(names), _marked(steps), f"blelloch, {scan.levels} levels", flops)


def of_plan(plan: bl.Plan, T: int, H: int) -> ScanCosts:
    """The scan of a chain of T steps with dense Jacobians of H x H, as the CPU kernels make it."""
    steps = {"linear": _linear, "chunked": _chunked, "blelloch": _blelloch}[plan.algorithm](
        plan, T, H
    )
    size = {"chunked": f", chunks of {plan.chunk}", "blelloch": f", {plan.levels} levels"}
    how = plan.algorithm + size.get(plan.algorithm, "")
    return ScanCosts([str(k + 1) for k in range(T)], _marked(steps), how, 2 * T * H * H)


def _linear(plan: bl.Plan, T: int, H: int) -> list[Step]:
    return [_walk("roots", k, k, H) for k in reversed(range(T))]


def _chunked(plan: bl.Plan, T: int, H: int) -> list[Step]:
    chunks = [(k, min(k + plan.chunk, T) - 1) for k in range(0, T, plan.chunk)]
    if len(chunks) < 2:
        return _linear(plan, T, H)
    first, *inner, last = chunks
    steps = [_compose("compose", *chunk, H) for chunk in inner] + [_walk("compose", *last, H)]
    steps += [_cross("carry", *chunk, H) for chunk in reversed(inner)]
    return steps + [_walk("replay", *chunk, H) for chunk in [first, *inner]]


def _blelloch(plan: bl.Plan, T: int, H: int) -> list[Step]:
    if not plan.levels:
        return _linear(plan, T, H)
    tree = [[(k, k) for k in range(T)]]
    for _ in range(plan.levels):
        below = tree[-1]
        tree.append([(below[i][0], below[i : i + 2][-1][1]) for i in range(0, len(below), 2)])
    steps = [_compose("up-sweep 1", *node, H) for node in tree[1] if node[0] < node[1]]
    for level in range(2, plan.levels + 1):
        pairs = [node for node in tree[level] if node not in tree[level - 1]]
        steps += [_product(f"up-sweep {level}", *node, H) for node in pairs]
    steps += [_cross("roots", *node, H) for node in tree[-1][:0:-1]]
    for level in range(plan.levels, 1, -1):
        rights = tree[level - 1][1::2]
        steps += [_cross(f"down-sweep {level}", *node, H) for node in rights]
    return steps + [_walk("down-sweep 1", *pair, H) for pair in tree[1]]


def _compose(phase: str, first: int, last: int, H: int) -> Step:
    """Steps composed one by one, and their direct gradients carried to the left end."""
    n = last - first
    flops = 2 * n * H**3 + 2 * (n + 1) * H * H
    return Step(_range(first, last), phase, "matrix", first, last, H**3, flops, max(n, 1))


def _product(phase: str, first: int, last: int, H: int) -> Step:
    flops = 2 * H**3 + 2 * H * H
    return Step(_range(first, last), phase, "matrix", first, last, H**3, flops)


def _cross(phase: str, first: int, last: int, H: int) -> Step:
    return Step(_range(first, last), phase, "vector", first, last, H * H, 2 * H * H)


def _walk(phase: str, first: int, last: int, H: int) -> Step:
    n = last - first + 1
    return Step(_range(first, last), phase, "vector", first, last, H * H, 2 * n * H * H, n)


def _range(first: int, last: int) -> str:
    return str(first + 1) if first == last else f"{first + 1}…{last + 1}"


def _segment(names: Sequence[str], first: int, last: int) -> str:
    return names[first] if first == last else f"{names[first]}…{names[last]}"


def _crossed(node: Any) -> list[Any]:
    """The node, or its largest parts that are crossed at once."""
    if node.is_shortcut:
        return [node]
    return [part for child in node.children for part in _crossed(child)]


def _down_sweep(roots: Sequence[Any]) -> list[list[Any]]:
    """What is crossed inside the roots, in rounds: each as soon as its right end is known."""
    rounds: list[list[Any]] = []

    def inside(node: Any, start: int) -> None:
        if not node.children:
            return
        parts = [part for child in node.children for part in _crossed(child)][::-1]
        for k, part in enumerate(parts):  # the left end of the last is the node's, and known
            if k + 1 < len(parts):
                rounds.extend([] for _ in range(start + k + 1 - len(rounds)))
                rounds[start + k].append(part)
            inside(part, start + min(k + 1, len(parts) - 1))

    for root in roots:
        inside(root, 0)
    return rounds


def _nodes(roots: Sequence[Any]) -> Iterator[Any]:
    for node in roots:
        yield node
        yield from _nodes(node.children)


def _height(node: Any) -> int:
    return 1 + max(_height(child) for child in node.children) if node.children else 0


def _marked(steps: list[Step]) -> list[Step]:
    """The steps, with the critical path marked."""
    for phase, group in groupby(steps, key=lambda step: step.phase):
        together = list(group)
        one_by_one = phase in ("roots", "carry")
        for step in together if one_by_one else [max(together, key=lambda s: s.flops)]:
            step.critical = True
    return steps

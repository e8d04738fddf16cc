"""The reverse scan over depth: a chain of layers, each with sizes of its own, Jacobians in CSR.

n steps; state i has N_i numbers a sample, B samples. Step i is (A_i, u_i), A_i = J_{i+1}ᵀ of
N_i x N_{i+1}: g_n = u_n, g_i = A_i g_{i+1} + u_i. The tree is that of `bl.reference.blelloch_scan`,
cut off after `levels`, as sizes grow with each product (arXiv:1907.10134, section 3.4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bppsa_lightning.jacobians.pattern import Pattern
from bppsa_lightning.jacobians.product import DEFAULT_BUDGET, PlanTooLarge, ProductPlan


@dataclass(eq=False)
class Step:
    """One layer of a chain.

    Attributes:
        apply: g_{i+1} (N_{i+1}, B) -> A_i g_{i+1} (N_i, B), by whatever is fastest for the layer.
        values: the values of A_i, (nnz,) or (B, nnz) with samples side by side; called only where
            A_i goes into a product.
    """

    apply: Callable[[Tensor], Tensor]
    values: Callable[[], Tensor]


def csr_step(pattern: Pattern, values: Tensor) -> Step:
    """A step whose transposed Jacobian is at hand: values (nnz,) or (B, nnz)."""
    laid = values if values.dim() == 1 else values.t().contiguous().t()
    return Step(lambda g: apply_csr(pattern, laid, g), lambda: laid)


def apply_csr(pattern: Pattern, values: Tensor, g: Tensor) -> Tensor:
    """A g: values (nnz,) or (B, nnz) with samples side by side, g (columns, B) -> (rows, B).

    Values and g on one device, the CPU or a GPU.
    """
    here = pattern.on(g.device)
    return torch.ops.bppsa.apply_csr(here.crow, here.col, values, g.contiguous())


@dataclass(eq=False)
class _Node:
    """A segment of the chain: one step, or two neighbours.

    Attributes:
        pattern: of the segment's product; None if it is not formed.
        plan: of the product of the children; None for a step or a product that is not formed.
        refusal: why it is not formed.
    """

    first: int
    last: int
    pattern: Pattern | None
    children: tuple[_Node, ...] = ()
    plan: ProductPlan | None = None
    refusal: str | None = None


@dataclass(eq=False)
class _Segment:
    """A node with the numbers of one backward: A (None if it is not formed) and b."""

    node: _Node
    values: Tensor | None
    b: Tensor | None
    parts: tuple[_Segment, ...] = ()


@dataclass(eq=False)
class LayerScan:
    """The plans of a chain's products: made once, run in every backward.

    Attributes:
        patterns: of A_0 … A_{n-1}.
        levels: of the up-sweep; 0 is linear.
        batch: samples that the budget was reckoned for.
        roots: the nodes that the linear part walks.
        fallbacks: how many products of the last run left the range of their dtype, and were
            replaced by the walk over their parts.
    """

    patterns: tuple[Pattern, ...]
    levels: int
    batch: int = 1
    roots: list[_Node] = field(default_factory=list)
    fallbacks: int = 0

    @staticmethod
    def of(
        patterns: Sequence[Pattern],
        levels: int,
        budget: int | None = DEFAULT_BUDGET,
        dtype: torch.dtype | None = None,
        batch: int = 1,
    ) -> LayerScan:
        """Plans the products of `levels` levels.

        Args:
            patterns: of A_0 … A_{n-1}; the columns of each are the rows of the next.
            levels: 0 (linear) to ceil(log2(n)).
            budget: bytes that the plans and values of all products may take together, for
                `batch` samples; products beyond it are not formed (their segments are walked),
                and `describe` says so. None for as much as there is.
            dtype: of the values; torch's default if None.
            batch: samples.

        Raises:
            ValueError: `patterns` or `levels` do not fit.
        """
        _check(patterns, levels)
        nodes = [_Node(i, i, pattern) for i, pattern in enumerate(patterns)]
        dtype = dtype or torch.get_default_dtype()
        left = budget
        for _ in range(levels):
            above = []
            for i in range(0, len(nodes) - 1, 2):
                node = _compose_plan(nodes[i], nodes[i + 1], left, dtype, batch)
                if left is not None and node.plan is not None:
                    left -= _taken(node.plan, dtype, batch)
                above.append(node)
            nodes = above + nodes[2 * len(above) :]
        return LayerScan(tuple(patterns), levels, batch, nodes)

    def run(self, steps: Sequence[Step], grads: Sequence[Tensor | None]) -> list[Tensor]:
        """g_0 … g_n, each (N_i, B).

        Args:
            steps: n of them, of the planned patterns.
            grads: u_0 … u_n, (N_i, B) or None for zeros; u_n must be there.

        Raises:
            ValueError: their numbers or shapes do not fit.
        """
        _check_run(self.patterns, steps, grads)
        self.fallbacks = 0
        carry = grads[-1]
        assert carry is not None
        found = [carry]
        for node in reversed(self.roots):
            segment = self._up(node, steps, grads)
            inside, end = _sweep(segment, steps, found[-1])
            found += [*inside, end]
        return found[::-1]

    def _up(self, node: _Node, steps: Sequence[Step], grads: Sequence[Tensor | None]) -> _Segment:
        """The up-sweep below a root: products of values, and what they do to direct gradients."""
        root = _multiply(node, steps)
        products = [s for s in _segments(root) if s.parts and s.values is not None]
        fit = _in_range([s.values for s in products if s.values is not None])
        for segment, is_fit in zip(products, fit, strict=True):  # parts before what they make up
            if any(part.parts and part.values is None for part in segment.parts):
                segment.values = None
            elif not is_fit:
                segment.values, self.fallbacks = None, self.fallbacks + 1
        _shift(root, steps, grads)
        return root

    def nodes(self) -> list[tuple[int, int, ProductPlan | None, str | None]]:
        """(first step, last step, plan, refusal) of every product, level by level."""
        found: list[tuple[int, int, ProductPlan | None, str | None]] = []
        nodes = self.roots
        while nodes:
            found += [(n.first, n.last, n.plan, n.refusal) for n in nodes if n.children]
            nodes = [child for node in nodes for child in node.children]
        return sorted(found, key=lambda node: (node[1] - node[0], node[0]))

    def describe(self) -> str:
        """A line for each product: nnz, fill-in, FLOPs, or why it is not formed."""
        lines = [f"{len(self.patterns)} steps, {self.levels} levels, {len(self.roots)} roots"]
        for first, last, plan, refusal in self.nodes():
            lines.append(f"  {first}-{last}: {plan.describe() if plan else refusal}")
        return "\n".join(lines)


def _compose_plan(
    left: _Node, right: _Node, budget: int | None, dtype: torch.dtype, batch: int
) -> _Node:
    node = _Node(left.first, right.last, None, (left, right))
    if left.pattern is None or right.pattern is None:
        node.refusal = "walked: a part of it is not formed"
        return node
    try:
        plan = ProductPlan.of(left.pattern, right.pattern, budget, dtype)
    except PlanTooLarge as error:
        node.refusal = f"walked: {error}"
        return node
    taken = _taken(plan, dtype, batch)
    if budget is not None and taken > budget:
        node.refusal = (
            f"walked: budget: plan and values of {batch} samples take {taken / 2**20:,.1f} MiB; "
            f"{budget / 2**20:,.1f} MiB are left"
        )
        return node
    node.plan, node.pattern = plan, plan.pattern
    return node


def _taken(plan: ProductPlan, dtype: torch.dtype, batch: int) -> int:
    return plan.bytes + batch * plan.pattern.nnz * dtype.itemsize


def _multiply(node: _Node, steps: Sequence[Step]) -> _Segment:
    """A segment with the products below and of it, b aside."""
    parts = tuple(_multiply(child, steps) for child in node.children)
    segment = _Segment(node, None, None, parts)
    if node.plan is not None:
        left, right = (_values(part, steps) for part in parts)
        if left is not None and right is not None:
            segment.values = node.plan.multiply(left, right)
    return segment


def _segments(segment: _Segment) -> Iterator[_Segment]:
    """A segment and all below it, those before it."""
    for part in segment.parts:
        yield from _segments(part)
    yield segment


def _shift(segment: _Segment, steps: Sequence[Step], grads: Sequence[Tensor | None]) -> None:
    """Gives a segment and all below it their b."""
    if not segment.parts:
        segment.b = grads[segment.node.first]
        return
    for part in segment.parts:
        _shift(part, steps, grads)
    left, right = segment.parts
    segment.b = left.b if right.b is None else _add(_cross(left, steps, right.b), left.b)


def _in_range(products: Sequence[Tensor]) -> list[bool]:
    """Which products are fit for use. Of others, the segments are walked, step by step.

    Beyond the largest number, inf * 0 would be NaN where the gradient is finite; all of it near the
    smallest, a gradient that is large enough to survive would lose its digits.

    On a GPU the host waits for the answer: once for all of them.
    """
    measured = [p for p in products if p.numel()]
    if not measured:
        return [True] * len(products)
    extremes = torch.stack([extreme for p in measured for extreme in p.aminmax()])
    largest = iter(extremes.view(-1, 2).abs().amax(1).tolist())  # NaN if there is one
    least = torch.finfo(measured[0].dtype).tiny ** 0.5
    return [not p.numel() or least < next(largest) < float("inf") for p in products]


def _values(segment: _Segment, steps: Sequence[Step]) -> Tensor | None:
    if segment.node.children:
        return segment.values
    if segment.values is None:  # needed by one product only, but kept for its segment
        segment.values = steps[segment.node.first].values()
    return segment.values


def _cross(segment: _Segment, steps: Sequence[Step], g: Tensor) -> Tensor:
    """A g of a segment."""
    if not segment.parts:
        return steps[segment.node.first].apply(g)
    if segment.values is None:
        left, right = segment.parts
        return _cross(left, steps, _cross(right, steps, g))
    assert segment.node.pattern is not None
    return apply_csr(segment.node.pattern, segment.values, g)


def _sweep(
    segment: _Segment, steps: Sequence[Step], carry: Tensor, end: Tensor | None = None
) -> tuple[list[Tensor], Tensor]:
    """The down-sweep of a segment: gradients inside, from right to left, and at its left end.

    Args:
        carry: the gradient at its right end.
        end: that at its left end, where it is known.
    """
    if end is None and (segment.values is not None or not segment.parts):
        end = _add(_cross(segment, steps, carry), segment.b)
    if not segment.parts:
        assert end is not None
        return [], end
    left, right = segment.parts
    inside_right, middle = _sweep(right, steps, carry)
    inside_left, end = _sweep(left, steps, middle, end)
    return [*inside_right, middle, *inside_left], end


def _add(a: Tensor, b: Tensor | None) -> Tensor:
    return a if b is None else a + b


def _check(patterns: Sequence[Pattern], levels: Any) -> None:
    if not patterns:
        raise ValueError("patterns: found none, wanted one for each layer")
    for i, (left, right) in enumerate(zip(patterns, patterns[1:], strict=False)):
        if left.shape[1] != right.shape[0]:
            raise ValueError(
                f"patterns: found {left.shape[1]} columns of step {i} and {right.shape[0]} rows "
                f"of step {i + 1}, wanted the same"
            )
    full = (len(patterns) - 1).bit_length()
    if not isinstance(levels, int) or not 0 <= levels <= full:
        raise ValueError(f"levels: found {levels!r}, wanted 0 to {full} for {len(patterns)} layers")


def _check_run(
    patterns: Sequence[Pattern], steps: Sequence[Step], grads: Sequence[Tensor | None]
) -> None:
    n = len(patterns)
    if len(steps) != n:
        raise ValueError(f"steps: found {len(steps)}, wanted {n}")
    if len(grads) != n + 1 or grads[-1] is None:
        raise ValueError(f"grads: found {len(grads)}, wanted {n + 1}, the last of them a tensor")
    sizes = [patterns[0].shape[0], *(p.shape[1] for p in patterns)]
    B = grads[-1].shape[-1]
    for i, (u, N) in enumerate(zip(grads, sizes, strict=True)):
        if u is not None and u.shape != (N, B):
            raise ValueError(
                f"grads: found shape {tuple(u.shape)} at {i}, wanted (N, B) = {(N, B)}"
            )

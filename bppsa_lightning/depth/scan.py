"""The reverse scan over depth: a chain of layers, each with sizes of its own, Jacobians in CSR.

n steps; state i has N_i numbers a sample, B samples. Step i is (A_i, u_i), A_i = J_{i+1}ᵀ of
N_i x N_{i+1}: g_n = u_n, g_i = A_i g_{i+1} + u_i. The tree is that of `bl.reference.blelloch_scan`,
cut off after `levels`, as sizes grow with each product (arXiv:1907.10134, section 3.4).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bppsa_lightning.depth.composition import Composition, Limits
from bppsa_lightning.jacobians.pattern import Pattern
from bppsa_lightning.jacobians.product import DEFAULT_BUDGET, PlanTooLarge, apply_csr


@dataclass(eq=False)
class Step:
    """One layer of a chain.

    Attributes:
        apply: g_{i+1} (N_{i+1}, B) -> A_i g_{i+1} (N_i, B), by whatever is fastest for the layer.
        values: the values of A_i, (nnz,) or (B, nnz) with samples side by side; called, any number
            of times, only where A_i goes into a product.
    """

    apply: Callable[[Tensor], Tensor]
    values: Callable[[], Tensor]


# Of a product: its values, or a step of the chain, as long as it is in no product.
Factor = Tensor | Step


def csr_step(pattern: Pattern, values: Tensor) -> Step:
    """A step whose transposed Jacobian is at hand.

    Args:
        pattern: of A_i, N_i x N_{i+1}.
        values: (nnz,), or (B, nnz) for a batch; any strides (copied unless samples lie side by
            side), float32 or float64, on the CPU or a CUDA device.

    Raises:
        ValueError: `values` has another shape.
    """
    pattern.check_values(values)
    laid = values if values.dim() == 1 else values.t().contiguous().t()
    return Step(lambda g: apply_csr(pattern, laid, g), lambda: laid)


@dataclass(eq=False)
class _Node:
    """A segment of the chain: one step, or two neighbours.

    Attributes:
        composition: of the segment's product; None if it is not formed.
        refusal: why it is not formed.
    """

    first: int
    last: int
    composition: Composition | None
    children: tuple[_Node, ...] = ()
    refusal: str | None = None

    @property
    def is_shortcut(self) -> bool:
        """Whether its composition takes less than the walk over its parts."""
        return not self.children or (
            self.composition is not None and bool(self.composition.products)
        )


@dataclass(eq=False)
class _Segment:
    """A node with the numbers of one backward: A's factors (None if it is not formed) and b."""

    node: _Node
    factors: list[Factor] | None
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
        in_factors: bool = True,
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
            in_factors: whether products with Jacobians that only scale and pick are kept in factors
                (see `jacobians.composition`); False multiplies all of them out, as the paper does.

        Raises:
            ValueError: `patterns` or `levels` do not fit.
        """
        _check(patterns, levels)
        nodes = [_Node(i, i, Composition((pattern,))) for i, pattern in enumerate(patterns)]
        limits = Limits(budget, dtype or torch.get_default_dtype(), batch)
        for _ in range(levels):
            above = []
            for i in range(0, len(nodes) - 1, 2):
                node = _compose(nodes[i], nodes[i + 1], limits, in_factors)
                if node.composition is not None:
                    limits = limits.less([plan for _, plan in node.composition.products])
                above.append(node)
            nodes = above + nodes[2 * len(above) :]
        return LayerScan(tuple(patterns), levels, batch, nodes)

    def run(
        self,
        steps: Sequence[Step],
        grads: Sequence[Tensor | None],
        wanted: Container[int] | None = None,
    ) -> list[Tensor | None]:
        """g_0 … g_n, each (N_i, B).

        Args:
            steps: n of them, of the planned patterns.
            grads: u_0 … u_n, (N_i, B) or None for zeros; u_n must be there.
            wanted: which of g_0 … g_n; None for all. Others may be None.

        Raises:
            ValueError: their numbers or shapes do not fit.
        """
        _check_run(self.patterns, steps, grads)
        self.fallbacks = 0
        gradients: list[Tensor | None] = [*(None for _ in self.patterns), grads[-1]]
        wanted = range(len(gradients)) if wanted is None else wanted
        for node in reversed(self.roots):
            _sweep_down(self._up(node, steps, grads), gradients, wanted)
        return gradients

    def _up(self, node: _Node, steps: Sequence[Step], grads: Sequence[Tensor | None]) -> _Segment:
        """The up-sweep below a root: products of values, and what they do to direct gradients."""
        if not node.children:
            return _Segment(node, [steps[node.first]], grads[node.first])
        left, right = parts = tuple(self._up(child, steps, grads) for child in node.children)
        factors = self._multiplied(node, left.factors, right.factors)
        b = left.b
        if right.b is not None:
            b = _add(_cross(left, right.b), left.b)
        return _Segment(node, factors, b, parts)

    def _multiplied(
        self, node: _Node, left: list[Factor] | None, right: list[Factor] | None
    ) -> list[Factor] | None:
        """The factors of a node from those of its children; None where it is to be walked."""
        if node.composition is None or left is None or right is None:
            return None
        found = multiplied(node.composition, left, right)
        self.fallbacks += found is None
        return found

    @property
    def composition(self) -> Composition | str:
        """Of all steps, where there are as many levels as that takes; or why it is not formed."""
        if len(self.roots) > 1:
            return f"{self.levels} levels leave {len(self.roots)} products"
        [root] = self.roots
        if root.composition is not None:
            return root.composition
        # (Of the smallest part that is not formed: the others are not because of it.)
        return next(why for *_, why in self.nodes() if why is not None).removeprefix("walked: ")

    def composed(self, steps: Sequence[Step]) -> list[Factor] | None:
        """The factors of the product of all steps; None where it left the range of its dtype."""
        self.fallbacks = 0
        [root] = self.roots
        return self._up(root, steps, [None] * (len(steps) + 1)).factors

    def nodes(self) -> list[tuple[int, int, Composition | None, str | None]]:
        """(first step, last step, composition, refusal) of every product, level by level."""
        products: list[tuple[int, int, Composition | None, str | None]] = []
        nodes = self.roots
        while nodes:
            products += [(n.first, n.last, n.composition, n.refusal) for n in nodes if n.children]
            nodes = [child for node in nodes for child in node.children]
        return sorted(products, key=lambda node: (node[1] - node[0], node[0]))

    def describe(self) -> str:
        """A line for each product: nnz, fill-in, FLOPs, factors, or why it is not formed."""
        lines = [f"{len(self.patterns)} steps, {self.levels} levels, {len(self.roots)} roots"]
        for first, last, composition, refusal in self.nodes():
            lines.append(f"  {first}-{last}: {composition.describe() if composition else refusal}")
        return "\n".join(lines)


def _compose(left: _Node, right: _Node, limits: Limits, in_factors: bool) -> _Node:
    node = _Node(left.first, right.last, None, (left, right))
    if left.composition is None or right.composition is None:
        node.refusal = "walked: a part of it is not formed"
        return node
    try:
        node.composition = Composition.of(left.composition, right.composition, limits, in_factors)
    except PlanTooLarge as error:
        node.refusal = f"walked: {error}"
    return node


def values_of(factor: Factor) -> Tensor:
    """(nnz,), or (B, nnz) with samples side by side."""
    return factor.values() if isinstance(factor, Step) else factor


def multiplied(
    composition: Composition, left: Sequence[Factor], right: Sequence[Factor]
) -> list[Factor] | None:
    """The factors of the product of two neighbours; None where it leaves the range of its dtype."""
    factors = [*left, *right]
    for i, plan in composition.products:
        product = plan.multiply(*(values_of(f) for f in factors[i : i + 2]))
        if not _in_range(product):
            return None
        factors[i : i + 2] = [product]
    return factors


def through(patterns: Sequence[Pattern], factors: Sequence[Factor], g: Tensor) -> Tensor:
    """A g, of the factors of A, and g (columns, B)."""
    for pattern, factor in reversed(list(zip(patterns, factors, strict=True))):
        g = factor.apply(g) if isinstance(factor, Step) else apply_csr(pattern, factor, g)
    return g


def _in_range(values: Tensor) -> bool:
    """Whether a product is fit for use. Otherwise its segment is walked, step by step.

    Beyond the largest number, inf * 0 would be NaN where the gradient is finite; all of it near the
    smallest, a gradient that is large enough to survive would lose its digits.

    On a GPU the host waits for the answer.
    """
    if not values.numel():
        return True
    stored = values.t() if values.dim() == 2 and not values.is_contiguous() else values
    low, high = torch.stack(stored.aminmax()).tolist()
    return torch.finfo(values.dtype).tiny ** 0.5 < max(high, -low) < float("inf")


def _cross(segment: _Segment, g: Tensor) -> Tensor:
    """A g of a segment."""
    if segment.factors is None:
        left, right = segment.parts
        return _cross(left, _cross(right, g))
    assert segment.node.composition is not None
    return through(segment.node.composition.factors, segment.factors, g)


def _sweep_down(segment: _Segment, gradients: list[Tensor | None], wanted: Container[int]) -> None:
    """Finds what is wanted inside a segment, and the gradient at its left end.

    A composition in which nothing is multiplied is no shortcut: its parts are walked, as those of
    one that is not formed.

    Args:
        gradients: g_0 … g_n, as far as they are known: that at the segment's right end is.
    """
    first, last = segment.node.first, segment.node.last
    if gradients[first] is None and segment.factors and segment.node.is_shortcut:
        carry = gradients[last + 1]
        assert carry is not None
        gradients[first] = _add(_cross(segment, carry), segment.b)
    inside = any(i in wanted for i in range(first + 1, last + 1))
    if inside or gradients[first] is None:
        for part in reversed(segment.parts):
            _sweep_down(part, gradients, wanted)


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

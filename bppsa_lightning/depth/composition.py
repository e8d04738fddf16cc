"""Products of neighbouring Jacobians, kept in factors wherever multiplying out would only cost.

A matrix *selects* if none of its rows has more than one entry: the transposed Jacobians of
elementwise layers, dropout, flatten, batch norm and of poolings whose windows do not overlap.
Multiplied with one of them, the weights of a layer, which all samples share, would become other
numbers for every sample. A product is therefore kept as

    L · S · R        L and R selecting, S any matrix; each may be missing

and of two neighbours, L₁ S₁ (R₁ L₂) S₂ R₂, only S₁ (R₁ L₂) S₂ is multiplied out; R₁ L₂ selects.
B samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from bppsa_lightning.jacobians.pattern import Pattern
from bppsa_lightning.jacobians.product import PlanTooLarge, ProductPlan, multiply_adds


@dataclass(frozen=True)
class Limits:
    """What the plans of a composition may take.

    Attributes:
        budget: bytes of plans and values together; None for as much as there is.
        dtype: of the values.
        batch: samples.
    """

    budget: int | None
    dtype: torch.dtype
    batch: int

    def less(self, plans: Sequence[ProductPlan]) -> Limits:
        """What is left beside some plans; PlanTooLarge if nothing is."""
        if self.budget is None:
            return self
        sample = self.dtype.itemsize * sum(plan.pattern.nnz for plan in plans)
        taken = sum(plan.bytes for plan in plans) + self.batch * sample
        if taken > self.budget:
            raise PlanTooLarge(
                f"budget: plan and values of {self.batch} samples take {taken / 2**20:,.1f} MiB; "
                f"{self.budget / 2**20:,.1f} MiB are left",
                taken,
            )
        return Limits(self.budget - taken, self.dtype, self.batch)

    def plan(self, a: Pattern, b: Pattern) -> ProductPlan:
        """Plans A @ B within these limits."""
        return ProductPlan.of(a, b, self.budget, self.dtype)


@dataclass(frozen=True, eq=False)
class Composition:
    """How the product of two neighbours is computed and kept.

    Attributes:
        factors: of the product, L, S and R or what there is of them, left to right.
        products: (i, plan), in order: of the factors of both neighbours in a row, those at i and
            i + 1 become one.
    """

    factors: tuple[Pattern, ...]
    products: tuple[tuple[int, ProductPlan], ...] = ()

    @staticmethod
    def of(
        left: Composition, right: Composition, limits: Limits, in_factors: bool = True
    ) -> Composition:
        """The composition of two neighbours.

        Args:
            in_factors: False to multiply out everything.

        Raises:
            PlanTooLarge: a product exceeds the limits.
        """
        factors = [*left.factors, *right.factors]
        products: list[tuple[int, ProductPlan]] = []
        while (product := _next_product(factors, limits, in_factors)) is not None:
            i, plan = product
            limits = limits.less([plan])
            factors[i : i + 2] = [plan.pattern]
            products.append(product)
        return Composition(tuple(factors), tuple(products))

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns) of the product."""
        return self.factors[0].shape[0], self.factors[-1].shape[1]

    @property
    def nnz(self) -> int:
        """Entries of all factors: what one vector is multiplied by."""
        return sum(factor.nnz for factor in self.factors)

    @property
    def flops(self) -> int:
        """Floating-point operations of multiplying, for one sample."""
        return sum(plan.flops for _, plan in self.products)

    def describe(self) -> str:
        """A line for people: what is multiplied, and what is kept as it is."""
        kept = " · ".join(f"({p.shape[0]} x {p.shape[1]}, nnz {p.nnz:,})" for p in self.factors)
        lines = [plan.describe() for _, plan in self.products]
        if len(self.factors) > 1:
            lines.append(f"kept in factors {kept}")
        return "; ".join(lines)


def _next_product(
    factors: Sequence[Pattern], limits: Limits, in_factors: bool
) -> tuple[int, ProductPlan] | None:
    """Which neighbours become one next, and how; None if the factors can stay as they are."""
    for i, (a, b) in enumerate(pairwise(factors)):
        if not in_factors or a.selects == b.selects:
            return i, limits.plan(a, b)
    full = [i for i, factor in enumerate(factors) if not factor.selects]
    if len(full) < 2:
        return None
    # S₁ M S₂: M goes to the side from where less work is left.
    i = full[0]
    a, m, b = factors[i : i + 3]
    try:
        first = limits.plan(a, m)
    except PlanTooLarge:
        return i + 1, limits.plan(m, b)
    try:
        second = limits.plan(m, b)
    except PlanTooLarge:
        return i, first
    left = first.products + multiply_adds(first.pattern, b)
    right = second.products + multiply_adds(a, second.pattern)
    return (i, first) if left < right else (i + 1, second)

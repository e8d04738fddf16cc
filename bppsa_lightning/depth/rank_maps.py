"""Products of sparse Jacobians over ranks: what the layers of whole ranks do to a gradient.

In a stack a gradient enters behind the last layer alone. So the map of a rank's layers is a product
of transposed Jacobians and nothing more; it is kept in factors (`composition`), whose patterns all
ranks know, and whose values are sent. What the last rank sends is the vector that leaves it, and so
is whatever it is joined with.

P ranks, B samples, N numbers a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from bppsa_lightning.depth.composition import Composition, Limits
from bppsa_lightning.depth.scan import Factor, multiplied, through, values_of
from bppsa_lightning.jacobians.pattern import Pattern

# What a factor's values look like: its pattern, and whether each sample has its own.
Factors = tuple[tuple[Pattern, bool], ...]


class RankMap(NamedTuple):
    """Of some ranks, from rank `first` on.

    Attributes:
        factors: their values; None of a map that may not be believed.
        vector: (B, N), what leaves the ranks, if the last one is among them, instead of factors.
        sound: whether it may be believed.
    """

    first: int
    ranks: int
    factors: Sequence[Factor] | None = None
    vector: Tensor | None = None
    sound: bool = True


class RankProducts:
    """Which products are formed: planned once, and again where a pattern changes.

    Args:
        of_ranks: the factors of each rank's own product; of the first and the last rank, which
            form none, not read.
        rank: this one. limits: of plans and values.

    Raises:
        PlanTooLarge: a product that this rank needs exceeds the limits.
    """

    def __init__(self, of_ranks: Sequence[Factors], rank: int, limits: Limits) -> None:
        self._of_ranks, self.last, self._limits = of_ranks, len(of_ranks) - 1, limits
        self._planned: dict[tuple[int, int], tuple[Composition, Factors]] = {}
        ahead = 1
        while rank < self.last and ahead < 2 * self.last:
            self.of(rank + 1, min(ahead, self.last - rank))
            ahead *= 2

    def of(self, first: int, count: int) -> tuple[Composition, Factors] | None:
        """The product of some ranks' layers, and its factors; None where it is a vector."""
        if first + count > self.last:
            return None
        if count == 1:
            factors = self._of_ranks[first]
            return Composition(tuple(pattern for pattern, _ in factors)), factors
        if (first, count) not in self._planned:
            ahead = 1 << ((count - 1).bit_length() - 1)  # as `ranks.reaches` joins them
            left, right = self.of(first, ahead), self.of(first + ahead, count - ahead)
            assert left is not None and right is not None
            plan = Composition.of(left[0], right[0], self._limits)
            self._limits = self._limits.less([product for _, product in plan.products])
            own = [batched for _, batched in (*left[1], *right[1])]
            for i, _ in plan.products:
                own[i : i + 2] = [own[i] or own[i + 1]]
            self._planned[first, count] = plan, tuple(zip(plan.factors, own, strict=True))
        return self._planned[first, count]


class SparseMaps:
    """`ranks.Maps` of the products of one call.

    Args:
        products: as planned.
        like: a tensor of the call's dtype, on its device. entering: N before each rank's layers.
        B: samples.
    """

    def __init__(
        self, products: RankProducts, like: Tensor, entering: Sequence[int], B: int
    ) -> None:
        self._products, self._like, self._entering, self._B = products, like, entering, B

    def sent(self, own: RankMap) -> Sequence[Tensor]:
        sound = self._like.new_full((1,), float(own.sound))
        if own.vector is not None:
            return [own.vector, sound]
        if own.factors is None:
            return [*self.like(own.first, own.ranks)[:-1], sound]
        return [*(_stored(values_of(f)) for f in own.factors), sound]

    def like(self, first: int, count: int) -> Sequence[Tensor]:
        sound = self._like.new_zeros(1)
        found = self._products.of(first, count)
        if found is None:
            return [self._like.new_zeros(self._B, self._entering[first]), sound]
        B = self._B
        return [
            *(self._like.new_zeros((p.nnz, B) if own else (p.nnz,)) for p, own in found[1]), sound
        ]  # fmt: skip

    def read(self, first: int, count: int, tensors: Sequence[Tensor]) -> RankMap:
        *found, sound = tensors
        if not bool(sound):
            vector = found[0] if self._products.of(first, count) is None else None
            return RankMap(first, count, None, vector, False)
        if self._products.of(first, count) is None:
            return RankMap(first, count, vector=found[0])
        return RankMap(first, count, [v.t() if v.dim() == 2 else v for v in found])

    def joined(self, own: RankMap, later: RankMap) -> RankMap:
        first, count = own.first, own.ranks + later.ranks
        if later.vector is not None:
            if own.factors is None or not later.sound:
                nothing = self._like.new_zeros(self._B, self._entering[first])
                return RankMap(first, count, vector=nothing, sound=False)
            found = self._products.of(own.first, own.ranks)
            assert found is not None
            g = through(found[0].factors, own.factors, later.vector.t())
            return RankMap(first, count, vector=g.t().contiguous())
        plan = self._products.of(first, count)
        assert plan is not None
        factors = None
        if own.factors is not None and later.factors is not None:
            factors = multiplied(plan[0], own.factors, later.factors)
        return RankMap(first, count, factors, sound=factors is not None)

    def reached(self, own: RankMap) -> tuple[Tensor, bool]:
        assert own.vector is not None
        return own.vector, own.sound


def _stored(values: Tensor) -> Tensor:
    """(nnz,), or (nnz, B) contiguous."""
    return values.detach() if values.dim() == 1 else values.detach().t().contiguous()

"""Products of sparse Jacobians by fixed plans: symbolic once, numeric each step.

The symbolic part finds the pattern of C = A B and gives each of its multiply-adds a place in its
row of C; the numeric part searches and sorts nothing. Rows whose multiply-adds go to the same
places share them: of a convolution, nearly all rows of a channel do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bppsa_lightning.jacobians.device_copies import OnDevices
from bppsa_lightning.jacobians.pattern import MAX_ENTRIES, Pattern
from bppsa_lightning.ops import jacobians as operators
from bppsa_lightning.ops._checks import check_like, check_values, wrong_shape

DEFAULT_BUDGET = 2**30
DEFAULT_MAX_PRODUCTS = 2**30


class PlanTooLarge(ValueError):
    """A product's plan and values would take more memory, or more work, than allowed.

    Attributes:
        bytes: what they would take; None where the work alone was too much.
    """

    def __init__(self, message: str, bytes: int | None = None) -> None:
        super().__init__(message)
        self.bytes = bytes


@dataclass(frozen=True, eq=False)
class ProductPlan(OnDevices):
    """How C = A B is computed for every A and B of two patterns.

    Plans are made on the CPU; values are multiplied where they are, on a GPU by a copy of the plan.

    Attributes:
        a, b, pattern: of A, B and C.
        products: multiply-adds of one product.
        longest: entries of the longest row of C.
        bytes: memory of the plan, the pattern of C included.
    """

    a: Pattern
    b: Pattern
    pattern: Pattern
    products: int
    longest: int
    program: Tensor
    positions: Tensor
    b_single: bool

    @staticmethod
    def of(
        a: Pattern,
        b: Pattern,
        budget: int | None = DEFAULT_BUDGET,
        dtype: torch.dtype | None = None,
        max_products: int | None = DEFAULT_MAX_PRODUCTS,
    ) -> ProductPlan:
        """The plan of a pair of patterns.

        Args:
            a: (m, k). b: (k, n).
            budget: bytes that the plan and one sample's values of C may take together; None for
                as much as there is.
            dtype: of the values, for the budget; torch's default if None.
            max_products: multiply-adds that the product may take; None for any number. Counted
                before anything else, as the symbolic part takes time in proportion.

        Raises:
            TypeError: `a` or `b` is no pattern.
            ValueError: the patterns do not fit each other.
            PlanTooLarge: a ValueError, before that memory or time is taken: what it would be, and
                what is allowed.
        """
        _check_pair(a, b)
        pair = (
            f"the product of {a.shape[0]} x {a.shape[1]} (nnz {a.nnz:,}) and {b.shape[0]} x "
            f"{b.shape[1]} (nnz {b.nnz:,})"
        )
        products = multiply_adds(a, b)
        if max_products is not None and products > max_products:
            raise PlanTooLarge(
                f"max_products: {pair} takes {products:,} multiply-adds; {max_products:,} are "
                "allowed"
            )
        operands = (a.crow, a.col, b.crow, b.col, b.shape[1])
        *counts, sizes = operators.count_product(*operands)
        nnz, _, own_products, longest = sizes.tolist()
        itemsize = (dtype or torch.get_default_dtype()).itemsize
        position_bytes = (4 if longest > 2**16 else 2) * own_products
        taken = nnz * (4 + itemsize) + position_bytes + 12 * a.shape[0]
        allowed = taken if budget is None else budget
        if taken > allowed or nnz > MAX_ENTRIES:
            limit = f"{_size(allowed)} are allowed" if taken > allowed else "32-bit indices end"
            raise PlanTooLarge(
                f"budget: {pair} takes {_size(taken)}, with {nnz:,} entries; {limit}", taken
            )
        crow, col, program, positions = operators.fill_product(*operands, *counts)
        pattern = Pattern.trusted(crow, col, (a.shape[0], b.shape[1]))
        b_single = bool((b.crow.diff() == 1).all())
        return ProductPlan(a, b, pattern, products, longest, program, positions, b_single)

    @property
    def bytes(self) -> int:
        """Memory of the plan, the pattern of C included."""
        own = (self.program, self.positions)
        return self.pattern.bytes + sum(t.numel() * t.itemsize for t in own)

    @property
    def flops(self) -> int:
        """Floating-point operations of one product: a multiplication and an addition each."""
        return 2 * self.products

    @property
    def fill_in(self) -> float:
        """nnz of C over nnz of A and B together."""
        return self.pattern.nnz / max(1, self.a.nnz + self.b.nnz)

    def multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """The values of C.

        Args:
            a: (nnz of A,), or (B, nnz of A) for a batch. b: likewise of B. One of them may be
                shared by the samples of the other. float32 or float64, both on the CPU or on one
                CUDA device. Either samples lie apart (rows contiguous), or side by side (the
                transpose of a contiguous (nnz, B)): the latter is faster from some four samples on.

        Returns:
            (nnz of C,), or (B, nnz of C), laid out as the operands are. Not differentiable.

        Raises:
            TypeError, ValueError: shapes, dtypes or devices do not fit the plan.
        """
        self._check_values(a, b)
        batched = [t for t in (a, b) if t.dim() == 2]
        side_by_side = bool(batched) and all(t.t().is_contiguous() for t in batched)
        a, b = (t if t.dim() == 2 and side_by_side else t.contiguous() for t in (a, b))
        here = self.on(a.device)
        factors = (here.a.crow, here.a.col, a.detach(), here.b.crow, here.b.col, b.detach())
        program = (here.pattern.crow, here.program, here.positions, here.pattern.nnz, here.longest)
        return operators.multiply_csr(*factors, *program, here.b_single, side_by_side)

    def _check_values(self, a: Tensor, b: Tensor) -> None:
        for name, values, pattern in (("a", a, self.a), ("b", b, self.b)):
            check_values(name, values[:0] if isinstance(values, Tensor) else values)
            pattern.check_values(values, name)
        check_like("b", b, "a", a)
        if a.dim() == b.dim() == 2 and a.shape[0] != b.shape[0]:
            raise ValueError(f"b: found a batch of {b.shape[0]}, wanted a's {a.shape[0]}")

    def describe(self) -> str:
        """One line for people: sizes, nnz, fill-in, FLOPs, memory."""
        m, k, n = *self.a.shape, self.b.shape[1]
        return (
            f"({m} x {k}, nnz {self.a.nnz:,}) ({k} x {n}, nnz {self.b.nnz:,}) -> nnz "
            f"{self.pattern.nnz:,} ({1 - self.pattern.sparsity:.3%}, fill-in {self.fill_in:.1f}x), "
            f"{self.flops:,} FLOPs of {2 * m * k * n:.2e} dense, plan {_size(self.bytes)}"
        )


def _check_pair(a: Pattern, b: Pattern) -> None:
    for name, operand in (("a", a), ("b", b)):
        if not isinstance(operand, Pattern):
            raise TypeError(
                f"{name}: found {type(operand).__name__}, wanted a Pattern, such as "
                "Pattern.of(matrix)"
            )
        if not operand.crow.is_cpu:
            raise ValueError(
                f"{name}: found a pattern on {operand.crow.device}, wanted the one on the CPU "
                "of which it is a copy: plans are made there"
            )
    if a.shape[1] != b.shape[0]:
        raise ValueError(f"b: found {b.shape[0]} rows, wanted {a.shape[1]}, a's columns")


def multiply_adds(a: Pattern, b: Pattern) -> int:
    """Multiply-adds of the product A B."""
    return int(b.crow.diff()[a.col].sum())


def apply_csr(pattern: Pattern, values: Tensor, g: Tensor) -> Tensor:
    """The product A g: g (columns, B) -> (rows, B).

    The values of A are (nnz,), or (B, nnz) with samples side by side. Values and g are float32 or
    float64, of one dtype, on one device, the CPU or a GPU.

    Raises:
        TypeError: `g` has not the values' dtype.
        ValueError: `values` or `g` has another shape, or `g` is on another device.
    """
    pattern.check_values(values)
    if g.dim() != 2 or g.shape[0] != pattern.shape[1]:
        raise wrong_shape("g", g, f"(columns, B) with columns = {pattern.shape[1]}")
    check_like("g", g, "the values", values)
    here = pattern.on(g.device)
    return operators.apply_csr(here.crow, here.col, values, g.contiguous())


def _size(bytes: int) -> str:
    return f"{bytes / 2**20:,.1f} MiB"

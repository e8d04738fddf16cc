"""The pattern of a sparse Jacobian: where its entries are, apart from what they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from bppsa_lightning.jacobians.cache import patterns
from bppsa_lightning.jacobians.device_copies import OnDevices, built_on_the_cpu
from bppsa_lightning.ops._checks import wrong_shape

MAX_ENTRIES = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Pattern(OnDevices):
    """Rows and columns of the entries of a CSR matrix, shared by every sample of a batch.

    Attributes:
        crow: (rows + 1,) int32; the entries of row r are crow[r] … crow[r + 1] - 1.
        col: (nnz,) int32; the column of each entry, ascending within a row, none twice.
        shape: (rows, columns).

    Raises:
        TypeError, ValueError: the indices are not those of a CSR matrix of this shape. Kernels
            follow them as they are: do not change them in place.

    Indices have 32 bits: half the memory and traffic of torch's default, and a pattern of 2^31
    entries would have 8 GiB of values a sample. Patterns are built on the CPU; `on` gives the copy
    of a GPU.
    """

    crow: Tensor
    col: Tensor
    shape: tuple[int, int]

    @property
    def nnz(self) -> int:
        """Number of entries."""
        return self.col.numel()

    @property
    def bytes(self) -> int:
        """Memory of the indices."""
        return 4 * (self.crow.numel() + self.col.numel())

    @property
    def sparsity(self) -> float:
        """Share of the matrix that is zero for sure: 1 - nnz / (rows * columns)."""
        size = self.shape[0] * self.shape[1]
        return 1 - self.nnz / size if size else 0.0

    @cached_property
    def selects(self) -> bool:
        """Whether no row has more than one entry."""
        return bool((self.crow.diff() <= 1).all())

    def __post_init__(self) -> None:
        for name, indices in (("crow", self.crow), ("col", self.col)):
            if not isinstance(indices, Tensor) or indices.dtype != torch.int32:
                found = indices.dtype if isinstance(indices, Tensor) else type(indices).__name__
                raise TypeError(f"{name}: found {found}, wanted a tensor of torch.int32")
            if indices.dim() != 1 or not indices.is_contiguous():
                raise wrong_shape(name, indices, "one dimension, contiguous")
        if self.crow.device != self.col.device:
            raise ValueError(f"col: found on {self.col.device}, wanted on {self.crow.device}")
        if self.crow.numel() != self.shape[0] + 1:
            raise wrong_shape("crow", self.crow, f"(rows + 1,) with rows = {self.shape[0]}")
        if type(self.crow) is not Tensor or not self.crow.is_cpu:
            return  # a copy of one that was looked at
        values = self.crow.new_zeros(()).expand(self.nnz)
        try:
            torch._validate_sparse_csr_tensor_args(self.crow, self.col, values, self.shape)
        except RuntimeError as error:
            rows, columns = self.shape
            raise ValueError(
                f"crow, col: found indices that are no CSR of {rows} x {columns}: {error}"
            ) from error

    def check_values(self, values: Tensor, name: str = "values") -> None:
        """ValueError unless `values` is (nnz,), or (B, nnz) for a batch."""
        if values.dim() not in (1, 2) or values.shape[-1] != self.nnz:
            raise wrong_shape(name, values, f"(nnz,) or (B, nnz) with nnz = {self.nnz}")

    def csr(self, values: Tensor) -> Tensor:
        """The matrix as a torch.sparse_csr tensor.

        Args:
            values: (nnz,), or (B, nnz) for a batch.

        Returns:
            (rows, columns), or (B, rows, columns), on the device of `values`; indices and values
            are shared, not copied.

        Raises:
            ValueError: `values` has another shape.
        """
        self.check_values(values)
        here, shape = self.on(values.device), tuple(self.shape)
        crow, col = here.crow, here.col
        if values.dim() == 2:
            B = values.shape[0]
            crow, col, shape = crow.expand(B, -1), col.expand(B, -1), (B, *shape)
        # The device by name: torch's default device would take them elsewhere.
        return torch.sparse_csr_tensor(
            crow, col, values, shape, device=values.device, check_invariants=False
        )

    @staticmethod
    def trusted(crow: Tensor, col: Tensor, shape: tuple[int, int]) -> Pattern:
        """A pattern of indices that are known to be valid: nobody looks at them."""
        pattern = object.__new__(Pattern)
        pattern.__dict__.update(crow=crow, col=col, shape=shape)
        return pattern

    @staticmethod
    def of(matrix: Tensor) -> Pattern:
        """The pattern of a torch.sparse_csr matrix (rows, columns) on any device.

        Raises:
            TypeError: `matrix` is no sparse CSR tensor.
            ValueError: it is batched, or its indices are not sorted and unique.
        """
        if not isinstance(matrix, Tensor) or matrix.layout != torch.sparse_csr:
            found = matrix.layout if isinstance(matrix, Tensor) else type(matrix).__name__
            raise TypeError(f"matrix: found {found}, wanted a torch.sparse_csr tensor")
        if matrix.dim() != 2:
            raise wrong_shape("matrix", matrix, "(rows, columns)")
        crow, col = matrix.crow_indices(), matrix.col_indices()
        if col.numel() > MAX_ENTRIES:
            raise ValueError(f"matrix: found {col.numel()} entries, wanted at most 2^31 - 1")
        try:
            torch._validate_sparse_csr_tensor_args(crow, col, matrix.values(), matrix.shape)
        except RuntimeError as error:
            raise ValueError(f"matrix: its indices are no valid CSR: {error}") from error
        rows, columns = matrix.shape
        crow, col = (t.to("cpu", torch.int32).contiguous() for t in (crow, col))
        return Pattern.trusted(crow, col, (rows, columns))

    @staticmethod
    def diagonal(n: int) -> Pattern:
        """The pattern of an n x n diagonal matrix."""
        return patterns.get(("diagonal", n), partial(_diagonal, n))

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"Pattern({rows} x {columns}, nnz={self.nnz}, sparsity={self.sparsity:.5f})"


@built_on_the_cpu
def _diagonal(n: int) -> Pattern:
    crow = torch.arange(n + 1, dtype=torch.int32)
    return Pattern.trusted(crow, crow[:-1], (n, n))

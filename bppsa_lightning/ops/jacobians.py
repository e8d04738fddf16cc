"""The operators on sparse Jacobians, by name, and their fake kernels.

Their checked doors are in `bppsa_lightning.jacobians`. Those that build patterns have no fake
kernel: the sizes of their results are not known without the numbers.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Patterns.
convolution_pattern = torch.ops.bppsa.convolution_pattern
pooling_axis = torch.ops.bppsa.pooling_axis
window_pattern = torch.ops.bppsa.window_pattern
count_product = torch.ops.bppsa.count_product
fill_product = torch.ops.bppsa.fill_product
# Values, not differentiable.
apply_csr = torch.ops.bppsa.apply_csr
elementwise_values = torch.ops.bppsa.elementwise_values
max_pool_values = torch.ops.bppsa.max_pool_values
multiply_csr = torch.ops.bppsa.multiply_csr
weight_values = torch.ops.bppsa.weight_values


def _numbers_only(name: str) -> Callable[[Callable[..., Tensor]], None]:
    """Registers an operator's fake kernel, and that it is not differentiable."""

    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        raise NotImplementedError(
            f"bppsa::{name} is not differentiable: a Jacobian's values are numbers, without a graph"
        )

    def register(fake: Callable[..., Tensor]) -> None:
        torch.library.register_fake(f"bppsa::{name}", fake)
        torch.library.register_autograd(f"bppsa::{name}", backward)

    return register


@_numbers_only("weight_values")
def _(weight: Tensor, source: Tensor, first: Tensor, crow: Tensor, entries: int) -> Tensor:
    return weight.new_empty(entries)


@_numbers_only("elementwise_values")
def _(x: Tensor, function: str, slope: float) -> Tensor:
    return torch.empty_like(x)


@_numbers_only("max_pool_values")
def _(x: Tensor, first_y: Tensor, out_y: Tensor, first_x: Tensor, out_x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape[0], out_y.numel() * out_x.numel())


@_numbers_only("multiply_csr")
def _(a_crow: Tensor, a_col: Tensor, a: Tensor, *others: Any) -> Tensor:
    b, entries, side_by_side = others[2], others[-4], others[-1]
    batched = [t for t in (a, b) if t.dim() == 2]
    if not batched:
        return a.new_empty(entries)
    B = batched[0].shape[0]
    return a.new_empty(entries, B).t() if side_by_side and B > 1 else a.new_empty(B, entries)


@_numbers_only("apply_csr")
def _(crow: Tensor, col: Tensor, values: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(crow.numel() - 1, x.shape[1])

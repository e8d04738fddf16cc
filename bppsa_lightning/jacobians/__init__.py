"""Transposed Jacobians of layers, straight into CSR: `bl.jacobians`.

Functions named as PyTorch's give the transposed Jacobian as a `torch.sparse_csr` tensor, rows the
flattened input, columns the flattened output. Those ending in ``_pattern`` give its pattern, built
once a layer and input shape, and what fills in the values of a step or of each sample.
"""

from bppsa_lightning.jacobians.elementwise import (
    batch_norm,
    dropout,
    elementwise_values,
    flatten,
    gelu,
    leaky_relu,
    relu,
    sigmoid,
    silu,
    tanh,
)
from bppsa_lightning.jacobians.pattern import Pattern
from bppsa_lightning.jacobians.pooling import (
    AveragePoolJacobian,
    MaxPoolJacobian,
    adaptive_avg_pool2d,
    adaptive_avg_pool2d_pattern,
    avg_pool2d,
    avg_pool2d_pattern,
    max_pool2d,
    max_pool2d_pattern,
)
from bppsa_lightning.jacobians.product import PlanTooLarge, ProductPlan
from bppsa_lightning.jacobians.weights import (
    WeightJacobian,
    conv1d,
    conv1d_pattern,
    conv2d,
    conv2d_pattern,
    linear,
    linear_pattern,
)

__all__ = [
    "AveragePoolJacobian",
    "MaxPoolJacobian",
    "Pattern",
    "PlanTooLarge",
    "ProductPlan",
    "WeightJacobian",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool2d_pattern",
    "avg_pool2d",
    "avg_pool2d_pattern",
    "batch_norm",
    "conv1d",
    "conv1d_pattern",
    "conv2d",
    "conv2d_pattern",
    "dropout",
    "elementwise_values",
    "flatten",
    "gelu",
    "leaky_relu",
    "linear",
    "linear_pattern",
    "max_pool2d",
    "max_pool2d_pattern",
    "relu",
    "sigmoid",
    "silu",
    "tanh",
]

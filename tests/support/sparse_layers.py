"""Convolutions with a mask: sizes, layouts, and the dense layer that judges them."""

import pytest
import torch
from torch.nn import functional as F

from bppsa_lightning.ops import (
    SparsePattern,
)

# samples, channels in, out, groups, image, kernel, stride, padding, dilation: a vector's multiple,
# less than a vector, one sample, samples that no vector divides, an image of one pixel, phases
# that no tap reaches, padding beyond the kernel.
CONVOLUTIONS = {
    "vgg": (32, 5, 7, 1, (8, 8), (3, 3), 1, 1, 1),
    "one pixel": (32, 9, 6, 1, (1, 1), (3, 3), 1, 1, 1),
    "one sample": (1, 4, 5, 1, (9, 11), (3, 3), 1, 1, 1),
    "odd": (19, 3, 4, 1, (5, 6), (2, 3), 1, (0, 1), 1),
    "few": (3, 2, 3, 1, (2, 2), (1, 1), 1, 0, 1),
    "strided": (8, 4, 6, 1, (9, 8), (3, 2), (2, 3), (1, 0), 1),
    "phases": (16, 3, 4, 1, (7, 7), (1, 2), 3, 0, 1),
    "dilated": (4, 3, 4, 1, (11, 12), (3, 3), 1, (2, 3), (2, 3)),
    "dilated, strided": (7, 3, 4, 1, (12, 12), (3, 3), (2, 3), 2, (3, 2)),
    "groups": (20, 6, 9, 3, (6, 5), (3, 3), 1, 1, 1),
    "depthwise": (16, 8, 8, 8, (7, 6), (3, 3), 2, 1, 1),
    "wide padding": (5, 2, 3, 1, (4, 3), (2, 2), (1, 2), 4, 1),
    "uneven padding": (17, 3, 4, 1, (6, 7), (2, 4), 1, (0, 1, 1, 2), 1),
    "many samples": (150, 3, 4, 1, (3, 3), (3, 3), 1, 1, 1),
}
DENSITIES = (0.0, 0.03, 0.3, 1.0)
DTYPES = {torch.float64: 1e-13, torch.float32: 4e-6}
LAYOUTS = {
    "contiguous": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "samples innermost": lambda x: x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
    "spread": lambda x: torch.stack([x, x], -1)[..., 1],
}
each_convolution = pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
# ReLU, pooling: what may follow in the same pass.
FOLLOWERS = {"relu": (True, False), "pool": (False, True), "relu, pool": (True, True)}
each_follower = pytest.mark.parametrize("relu, pool", FOLLOWERS.values(), ids=FOLLOWERS)


def settings(case):
    B, C, O, groups, size, kernel, stride, padding, dilation = case
    return (B, C, *size), (O, C // groups, *kernel), (stride, padding, dilation, groups)


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def mask_of(shape, density, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator) < density


def dense_conv2d(x, weight, bias, mask, stride, padding, dilation, groups):
    if isinstance(padding, tuple) and len(padding) == 4:
        top, bottom, left, right = padding
        x, padding = F.pad(x, (left, right, top, bottom)), 0
    return F.conv2d(x, weight * mask, bias, stride, padding, dilation, groups)


def followed(output, relu, pool):
    output = output.relu() if relu else output
    return F.max_pool2d(output, 2) if pool else output


def pools(case):
    """Whether a window fits into the output."""
    x_shape, shape, geometry = settings(case)
    return min(SparsePattern.of(mask_of(shape, 1), *geometry).output_size(*x_shape[2:])) >= 2


def gradients(output, grad, inputs):
    return (output.detach(), *torch.autograd.grad(output, inputs, grad))


def leaves(*tensors, dtype=torch.float64, layout=LAYOUTS["contiguous"]):
    x, *others = (t.to(dtype) for t in tensors)
    return [t.detach().requires_grad_() for t in (layout(x), *others)]

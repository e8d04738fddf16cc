"""Diagonal chains: decay (T, B, H), grad (T+1, B, H), their layouts and hard plans."""

import math

import pytest
import torch

from bppsa_lightning.reference import diagonal_scan as oracle
from support.cases import SHAPES

MANY = [*SHAPES, (20, 7, 129), (70, 3, 64)]


def scan(decay, grad, algorithm, chunk=0, levels=0, adjoint=False):
    return torch.ops.bppsa.diagonal_scan(decay, grad, algorithm, chunk, levels, adjoint)


def adjoint_oracle(decay, grad):
    return oracle(decay.flip(0), grad.flip(0)).flip(0)


def chain(T, B, H, dtype=torch.float64, device="cpu", seed=0):
    """decay (T, B, H) in -1 … 1, grad (T+1, B, H)."""
    generator = torch.Generator().manual_seed(seed)
    decay = torch.rand(T, B, H, dtype=torch.float64, generator=generator) * 2 - 1
    grad = torch.randn(T + 1, B, H, dtype=torch.float64, generator=generator)
    return decay.to(device, dtype), grad.to(device, dtype)


def layouts(decay, grad):
    """The same numbers under other strides; then numbers that only strides of 0 can repeat."""
    yield "contiguous", decay, grad
    batch_first = [t.transpose(0, 1).contiguous().transpose(0, 1) for t in (decay, grad)]
    yield "batch first", *batch_first
    time_last = [t.permute(1, 2, 0).contiguous().permute(2, 0, 1) for t in (decay, grad)]
    yield "time last", *time_last
    yield "mixed", decay, batch_first[1]
    wide = [torch.full((*t.shape, 3), math.nan).to(t) for t in (decay, grad)]
    spread = [w[..., 1].copy_(t) for w, t in zip(wide, (decay, grad))]
    yield "spread", *spread
    if decay.numel():
        yield "one decay a sample", decay[..., :1].expand(decay.shape), grad
        yield "one decay a state", decay[:, :1].expand(decay.shape), grad
        yield "constant decay", decay[:1, :1].expand(decay.shape), grad
        yield "constant grad", decay, grad[:1].expand(grad.shape)
        yield (
            "one number",
            decay[:1, :1, :1].expand(decay.shape),
            grad[:1, :1, :1].expand(grad.shape),
        )


HARD = [("linear",), ("chunked", 32), ("chunked", 700), ("blelloch", 0, 5), ("blelloch", 0, 11)]
each_hard_plan = pytest.mark.parametrize("plan", HARD, ids=str)
each_real = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)

"""The one table of cases that every scan kernel is held to, on every device."""

import os

import pytest
import torch

# (T, B, H): empty, single, odd, wider than any register, above a register's multiple.
SHAPES = [
    (0, 2, 3),
    (1, 1, 1),
    (1, 2, 5),
    (2, 3, 4),
    (5, 0, 3),
    (7, 3, 4),
    (13, 2, 20),
    (33, 5, 17),
    (40, 3, 32),
    (9, 2, 65),
    (130, 1, 8),
    (3, 70, 7),
]

DTYPES = {
    torch.float64: 1e-13,
    torch.float32: 3e-6,
    torch.bfloat16: 8e-3,
    torch.float16: 1e-3,
}

needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]


def chain(T, B, H, dtype=torch.float64, device="cpu", gain=1.0, seed=0):
    """jac_t (T, B, H, H) of spectral radius about `gain`, grad (T+1, B, H)."""
    generator = torch.Generator().manual_seed(seed)
    jac_t = torch.randn(T, B, H, H, dtype=torch.float64, generator=generator) * gain / H**0.5
    grad = torch.randn(T + 1, B, H, dtype=torch.float64, generator=generator)
    return jac_t.to(device, dtype), grad.to(device, dtype)


def plans(T):
    """(algorithm, chunk, levels) of everything a kernel can be asked for T steps."""
    full = (T - 1).bit_length() if T > 1 else 0
    yield ("linear", 0, 0)
    yield from (("chunked", c, 0) for c in sorted({1, 2, 3, 5, max(T, 1), T + 1}))
    yield from (("blelloch", 0, level) for level in range(full + 1))


def layouts(jac_t, grad):
    """The same numbers under other strides."""
    yield "contiguous", jac_t, grad
    yield "transposed", jac_t.mT.contiguous().mT, grad
    spread = torch.empty(*jac_t.shape, 2, dtype=jac_t.dtype, device=jac_t.device)[..., 0]
    batch_first = grad.transpose(0, 1).contiguous().transpose(0, 1)
    yield "spread", spread.copy_(jac_t), batch_first
    yield "permuted", jac_t.permute(1, 2, 0, 3).contiguous().permute(2, 0, 1, 3), grad


def relative_error(found, wanted):
    """max |found - wanted| / max |wanted|, computed in float64; 0 for empty tensors."""
    if not wanted.numel():
        return 0.0
    found, wanted = (t.detach().cpu().double() for t in (found, wanted))
    return float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-300))


def with_capability(level):
    """The environment that lowers the CPU kernels to an instruction set."""
    return {**os.environ, "BPPSA_CPU_CAPABILITY": level}

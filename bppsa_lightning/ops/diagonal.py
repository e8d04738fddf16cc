"""Diagonal chains: elementwise recurrences, as those of IndRNN, minGRU and diagonal SSMs.

T steps, B batch, H state. One operator runs in both directions of time: backwards it is the
back-propagation of a chain, forwards the recurrence itself.
"""

import torch
from torch import Tensor

from bppsa_lightning import planner, reference
from bppsa_lightning._context import recorded
from bppsa_lightning.ops._checks import ALL_FLOATS, check_like, check_tensor, wrong_shape
from bppsa_lightning.ops.scan import scan_operator

_scan = scan_operator("diagonal_scan", planner.DIAGONAL, "decay", "(T, B, H)", torch.mul)


def diagonal_scan(
    decay: Tensor, grad: Tensor, algorithm: str = "auto", levels: int | None = None
) -> Tensor:
    """Gradients of a chain with diagonal Jacobians: g_T = u_T, g_i = decay_i * g_{i+1} + u_i.

    Args:
        decay: (T, B, H); ``decay[i]`` is the diagonal of ∂x_{i+1}/∂x_i. Any strides. float32,
            float64, bfloat16 or float16 (the last two are computed in float32).
        grad, algorithm, levels: as for `reverse_scan`.

    Returns:
        g (T+1, B, H), contiguous, of grad's dtype. Differentiable in both arguments, any number
        of times.

    Raises:
        TypeError, ValueError, RuntimeError: as `reverse_scan`.

    What `reverse_scan` computes of ``torch.diag_embed(decay)``, with H numbers a step instead of
    H². For the forward recurrence see `linear_recurrence`.
    """
    return _scan(decay, grad, algorithm, levels, False)


def linear_recurrence(
    decay: Tensor, x: Tensor, initial: Tensor | None = None, algorithm: str = "auto"
) -> Tensor:
    """States of an elementwise linear recurrence: h_t = decay_t * h_{t-1} + x_t.

    Args:
        decay: (T, B, H), or what broadcasts to it: (H,) for a recurrence that does not change.
            Any strides. dtypes as in `diagonal_scan`.
        x: (T, B, H), T >= 1. Same dtype and device. Of batch-first data, pass
            ``x.transpose(0, 1)``.
        initial: (B, H), h_0; None is zeros.
        algorithm: of the scan, forward and backward; see `diagonal_scan`.

    Returns:
        h_1 … h_T (T, B, H), contiguous. Exact, and differentiable in all arguments, any number of
        times: the backward is `diagonal_scan`.

    Raises:
        TypeError, ValueError, RuntimeError: as `diagonal_scan`.
    """
    _check_linear_recurrence(decay, x, initial)
    decay = decay.expand(x.shape)
    if recorded() is not None:
        return reference.linear_recurrence(decay, x, initial)
    if initial is not None:
        x = torch.cat([torch.addcmul(x[:1], decay[:1], initial), x[1:]])
    return _scan(decay[1:], x, algorithm, None, True)


def _check_linear_recurrence(decay: Tensor, x: Tensor, initial: Tensor | None) -> None:
    check_tensor("decay", decay, ALL_FLOATS)
    check_tensor("x", x, ALL_FLOATS)
    if x.dim() != 3 or x.shape[0] < 1 or x.shape[2] < 1:
        raise wrong_shape("x", x, "(T, B, H) with T >= 1 and H >= 1")
    fits = decay.dim() <= 3 and all(
        n in (1, wanted) for n, wanted in zip(decay.shape[::-1], x.shape[::-1], strict=False)
    )
    if not fits:
        raise wrong_shape("decay", decay, f"x's {tuple(x.shape)} or what broadcasts to it")
    check_like("decay", decay, "x", x)
    if initial is None:
        return
    check_tensor("initial", initial, ALL_FLOATS)
    if initial.shape != x.shape[1:]:
        raise wrong_shape("initial", initial, f"(B, H) = {tuple(x.shape[1:])}")
    check_like("initial", initial, "x", x)

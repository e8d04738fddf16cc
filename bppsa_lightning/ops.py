"""The only door to the operators in csrc: checks, fake kernels, autograd formulas.

T steps, B batch, H state, I input. Each operator's formula is written in terms of the operators
themselves, so derivatives of any order exist: the vector-Jacobian product of a reverse scan is a
scan in the other direction, and so is that of an RNN's backward.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from bppsa_lightning import planner
from bppsa_lightning._library import HAS_CUDA_KERNELS

__all__ = ["ScanLog", "cpu_capability", "reverse_scan", "rnn", "scan_log"]

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def cpu_capability() -> str:
    """Instruction set of the CPU kernels in use: "x86_64_v2", "x86_64_v3", "x86_64_v4", "generic".

    Chosen at the first use of a kernel; the environment variable ``BPPSA_CPU_CAPABILITY``
    (``x86-64-v2``, ``x86-64-v3``) lowers it.
    """
    return str(torch.ops.bppsa.cpu_capability())


# --- What a backward did -------------------------------------------------------------------


@dataclass(eq=False)  # two open logs with equal contents are still two
class ScanLog:
    """The scans of the attached layers in one backward pass, in the order of the gradients' flow.

    Attributes:
        scans: (cell, (T, B, H), plan) of each.
    """

    scans: list[tuple[str, tuple[int, int, int], planner.Plan]] = field(default_factory=list)


_open_logs: list[ScanLog] = []


@contextmanager
def scan_log() -> Iterator[ScanLog]:
    """Collects the layers' scans in backward passes run inside the block, on any thread."""
    log = ScanLog()
    _open_logs.append(log)
    try:
        yield log
    finally:
        _open_logs.remove(log)


def _log(cell: str, T: int, B: int, H: int, plan: planner.Plan) -> None:
    for log in _open_logs:
        log.scans.append((cell, (T, B, H), plan))


# --- reverse_scan --------------------------------------------------------------------------


def reverse_scan(
    jac_t: Tensor, grad: Tensor, algorithm: str = "auto", levels: int | None = None
) -> Tensor:
    """Gradients of a chain from its transposed Jacobians: g_T = u_T, g_i = J_{i+1}ᵀ g_{i+1} + u_i.

    Args:
        jac_t: (T, B, H, H); ``jac_t[i]`` is (∂x_{i+1}/∂x_i)ᵀ. Any strides. float32, float64,
            bfloat16 or float16 (the last two are computed in float32).
        grad: (T+1, B, H); u_0 … u_T, the direct gradient of each state. Same dtype and device.
        algorithm: "auto", "linear", "chunked" or "blelloch".
        levels: up-sweep levels of "blelloch", 0 to ceil(log2(T)); None is the full tree. Given
            with "auto", it asks for "blelloch".

    Returns:
        g (T+1, B, H), contiguous, of grad's dtype. Differentiable in both arguments, any number
        of times.

    Raises:
        TypeError: an argument is not a tensor, or of another dtype.
        ValueError: shapes, devices, algorithm or levels do not fit.
        RuntimeError: CUDA tensors, and the CUDA kernels were not built.

    Source: Blelloch scan of arXiv:1907.10134, section 3, generalised to a loss that reads every
    state (u_i ≠ 0).
    """
    if torch.compiler.is_compiling():
        return torch.ops.bppsa.planned_reverse_scan(jac_t, grad, algorithm, levels)
    return _planned_reverse_scan(jac_t, grad, algorithm, levels)


def _planned_reverse_scan(
    jac_t: Tensor, grad: Tensor, algorithm: str, levels: int | None
) -> Tensor:
    _check_reverse_scan(jac_t, grad)
    T, B, H = jac_t.shape[:3]
    plan = planner.choose(T, B, H, jac_t.device, algorithm, levels)
    return torch.ops.bppsa.reverse_scan(jac_t, grad, plan.algorithm, plan.chunk, plan.levels, False)


# Planning is Python, over sizes that torch.compile may hold as symbols: as an operator of its own
# it is taken apart where they have values. The handle must live as long as the registration.
_library = torch.library.Library("bppsa", "FRAGMENT")
_library.define(
    "planned_reverse_scan(Tensor jac_t, Tensor grad, str algorithm, int? levels) -> Tensor"
)
_library.impl("planned_reverse_scan", _planned_reverse_scan, "CompositeImplicitAutograd")


def _check_reverse_scan(jac_t: Tensor, grad: Tensor) -> None:
    for name, tensor in (("jac_t", jac_t), ("grad", grad)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: found {type(tensor).__name__}, wanted a torch.Tensor")
        if tensor.layout != torch.strided:
            raise TypeError(f"{name}: found layout {tensor.layout}, wanted a dense tensor")
        if tensor.dtype not in _DTYPES:
            raise TypeError(
                f"{name}: found dtype {tensor.dtype}, wanted float32, float64, bfloat16 or float16"
            )
    if jac_t.dim() != 4 or jac_t.shape[2] != jac_t.shape[3] or jac_t.shape[2] < 1:
        raise ValueError(
            f"jac_t: found shape {tuple(jac_t.shape)}, wanted (T, B, H, H) with H >= 1"
        )
    T, B, H = jac_t.shape[:3]
    if tuple(grad.shape) != (T + 1, B, H):
        raise ValueError(
            f"grad: found shape {tuple(grad.shape)}, wanted (T+1, B, H) = {(T + 1, B, H)} "
            f"for jac_t of shape {tuple(jac_t.shape)}"
        )
    if grad.dtype != jac_t.dtype:
        raise TypeError(f"grad: found dtype {grad.dtype}, wanted jac_t's {jac_t.dtype}")
    if grad.device != jac_t.device:
        raise ValueError(f"grad: found on {grad.device}, wanted on jac_t's {jac_t.device}")
    if jac_t.is_cuda and not HAS_CUDA_KERNELS:
        raise RuntimeError(
            "jac_t: found on a CUDA device, but bppsa_lightning was built without its CUDA "
            "kernels; rebuild it where an nvcc is on PATH (or CUDACXX names one), or move jac_t "
            "and grad to the CPU"
        )


def _reverse_scan_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    jac_t, _, *ctx.plan, ctx.adjoint = inputs
    ctx.save_for_backward(jac_t, output)


def _reverse_scan_backward(ctx: Any, cotangent: Tensor) -> tuple[Any, ...]:
    jac_t, g = ctx.saved_tensors
    v = torch.ops.bppsa.reverse_scan(jac_t, cotangent, *ctx.plan, not ctx.adjoint)
    grad_jac = None
    if ctx.needs_input_grad[0]:
        row, column = (g[:-1], v[1:]) if ctx.adjoint else (v[:-1], g[1:])
        grad_jac = row.unsqueeze(-1) * column.unsqueeze(-2)
    return grad_jac, v, None, None, None, None


@torch.library.register_fake("bppsa::reverse_scan")
def _(
    jac_t: Tensor, grad: Tensor, algorithm: str, chunk: int, levels: int, adjoint: bool
) -> Tensor:
    return grad.new_empty(grad.shape)


torch.library.register_autograd(
    "bppsa::reverse_scan", _reverse_scan_backward, setup_context=_reverse_scan_setup
)


# --- rnn -----------------------------------------------------------------------------------


def rnn(
    x: Tensor,
    h0: Tensor | None,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    nonlinearity: str = "tanh",
    algorithm: str = "auto",
) -> tuple[Tensor, Tensor]:
    """One layer of a vanilla RNN, fused forward, backward by scan.

    h_t = φ(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh), φ = tanh or relu.

    Args:
        x: (T, B, I), T >= 1, on the CPU, float32 or float64; all tensors share its dtype and
            device.
        h0: (B, H), or None for zeros.
        w_ih: (H, I). w_hh: (H, H). b_ih, b_hh: (H,) or None.
        nonlinearity: "tanh" or "relu".
        algorithm: of the backward scan; see `reverse_scan`.

    Returns:
        output (T, B, H), the state of each step, and h_n (B, H), the last one. Differentiable any
        number of times.

    Raises:
        TypeError: an argument is not a tensor, or of another dtype.
        ValueError: shapes, devices, nonlinearity or algorithm do not fit.

    The backward is the reverse scan over J_tᵀ = W_hhᵀ diag(φ'(z_t)), never held as matrices, then
    one GEMM over time and batch for each parameter.
    """
    _check_rnn(x, h0, w_ih, w_hh, b_ih, b_hh, nonlinearity)
    planner.check_algorithm(algorithm, None)
    x = x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
    w_ih, w_hh = w_ih.contiguous(), w_hh.contiguous()
    h0, b_ih, b_hh = (None if t is None else t.contiguous() for t in (h0, b_ih, b_hh))
    return torch.ops.bppsa.rnn(x, h0, w_ih, w_hh, b_ih, b_hh, nonlinearity, algorithm)


def _check_rnn(
    x: Tensor,
    h0: Tensor | None,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    nonlinearity: str,
) -> None:
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"nonlinearity: found {nonlinearity!r}, wanted 'tanh' or 'relu'")
    if not isinstance(x, Tensor):
        raise TypeError(f"x: found {type(x).__name__}, wanted a torch.Tensor")
    if x.dim() != 3 or x.shape[0] < 1:
        raise ValueError(f"x: found shape {tuple(x.shape)}, wanted (T, B, I) with T >= 1")
    if x.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"x: found dtype {x.dtype}, wanted float32 or float64")
    if x.device.type not in ("cpu", "meta"):
        raise ValueError(f"x: found on {x.device}, wanted on the CPU: no RNN kernel there yet")
    if not isinstance(w_hh, Tensor):
        raise TypeError(f"w_hh: found {type(w_hh).__name__}, wanted a torch.Tensor")
    if w_hh.dim() != 2 or w_hh.shape[0] < 1:
        raise ValueError(f"w_hh: found shape {tuple(w_hh.shape)}, wanted (H, H) with H >= 1")
    B, I, H = x.shape[1], x.shape[2], w_hh.shape[0]
    wanted = {
        "h0": (h0, (B, H), True),
        "w_ih": (w_ih, (H, I), False),
        "w_hh": (w_hh, (H, H), False),
        "b_ih": (b_ih, (H,), True),
        "b_hh": (b_hh, (H,), True),
    }
    for name, (tensor, shape, optional) in wanted.items():
        if tensor is None and optional:
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: found {type(tensor).__name__}, wanted a torch.Tensor")
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: found shape {tuple(tensor.shape)}, wanted {shape}")
        if tensor.dtype != x.dtype:
            raise TypeError(f"{name}: found dtype {tensor.dtype}, wanted x's {x.dtype}")
        if tensor.device != x.device:
            raise ValueError(f"{name}: found on {tensor.device}, wanted on x's {x.device}")


def _rnn_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, h0, w_ih, w_hh, _, _, ctx.nonlinearity, ctx.algorithm = inputs
    ctx.set_materialize_grads(False)
    # Kept only where a gradient needs it: what is not kept may be changed in place.
    want_x, _, want_w_ih, *_ = ctx.needs_input_grad
    ctx.x_shape = x.shape
    ctx.save_for_backward(x if want_w_ih else None, h0, w_ih if want_x else None, w_hh, output[0])


def _outside_autocast(formula: Callable[..., Any]) -> Callable[..., Any]:
    """A backward may be run under autocast; its GEMMs keep the precision of the scan."""

    @wraps(formula)
    def wrapped(*arguments: Any) -> Any:
        if not torch.is_autocast_enabled("cpu"):
            return formula(*arguments)
        with torch.autocast("cpu", enabled=False):
            return formula(*arguments)

    return wrapped


@_outside_autocast
def _rnn_backward(ctx: Any, grad_output: Tensor | None, grad_hn: Tensor | None) -> tuple[Any, ...]:
    if grad_output is None and grad_hn is None:
        return (None,) * 8
    x, h0, w_ih, w_hh, output = ctx.saved_tensors
    T, B, H = output.shape
    plan = planner.choose(T, B, H, output.device, ctx.algorithm)
    _log(f"RNN-{ctx.nonlinearity}", T, B, H, plan)
    grad_z, grad_h0 = torch.ops.bppsa.rnn_backward(
        _row_contiguous(grad_output),
        None if grad_hn is None else grad_hn.contiguous(),
        output,
        w_hh,
        ctx.nonlinearity,
        plan.algorithm,
        plan.chunk,
        plan.levels,
    )
    want_x, want_h0, want_w_ih, want_w_hh, want_b_ih, want_b_hh = ctx.needs_input_grad[:6]
    flat = grad_z.reshape(T * B, H)
    grad_b = flat.sum(0) if want_b_ih or want_b_hh else None
    return (
        (flat @ w_ih).view(ctx.x_shape) if want_x else None,
        grad_h0 if want_h0 else None,
        flat.t() @ x.reshape(T * B, x.shape[-1]) if want_w_ih else None,
        _product_with_previous(grad_z, output, h0) if want_w_hh else None,
        grad_b if want_b_ih else None,
        grad_b if want_b_hh else None,
        None,
        None,
    )


def _product_with_previous(a: Tensor, states: Tensor, first: Tensor | None) -> Tensor:
    """Σ_t a_tᵀ s_{t-1} for a, s (T, B, H), with s_0 = first (B, H) or zeros: (H, H)."""
    T, B, H = a.shape
    total = a[1:].reshape((T - 1) * B, H).t() @ states[:-1].reshape((T - 1) * B, H)
    return total if first is None else torch.addmm(total, a[0].t(), first)


def _row_contiguous(t: Tensor | None) -> Tensor | None:
    return t if t is None or t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()


@torch.library.register_fake("bppsa::rnn")
def _(
    x: Tensor,
    h0: Tensor | None,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    nonlinearity: str,
    algorithm: str,
) -> tuple[Tensor, Tensor]:
    T, B, _ = x.shape
    return x.new_empty((T, B, w_hh.shape[0])), x.new_empty((B, w_hh.shape[0]))


torch.library.register_autograd("bppsa::rnn", _rnn_backward, setup_context=_rnn_setup)


# --- rnn_backward: the scan with the RNN cell ------------------------------------------------
#
# As rows: grad_z_t = s_t * g_t with the slopes s_t = φ'(z_t), and g_{t-1} = grad_z_t W + u_{t-1}.
# With v_t the gradient of grad_z_t and w_t = s_t * v_t that of u_t, its derivative is
# v_{t+1} = w_t Wᵀ + c_{t+1}: the same operator with time reversed, W transposed, slopes given.


def _rnn_backward_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    grad_output, grad_hn, kept, w_hh, ctx.nonlinearity, *ctx.plan = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(grad_output, grad_hn, kept, w_hh, output[0])


@_outside_autocast
def _rnn_double_backward(ctx: Any, c: Tensor | None, c_h0: Tensor | None) -> tuple[Any, ...]:
    if c is None and c_h0 is None:
        return (None,) * 8
    u, u_last, kept, w_hh, grad_z = ctx.saved_tensors
    slope = _slope(kept, ctx.nonlinearity)
    w, _ = torch.ops.bppsa.rnn_backward(
        None if c is None else c.flip(0),
        None if c_h0 is None else c_h0 @ w_hh.t(),
        slope.flip(0),
        w_hh.t().contiguous(),
        "given",
        *ctx.plan,
    )
    w = w.flip(0)
    want_u, want_last, want_kept, want_w_hh = ctx.needs_input_grad[:4]
    grad_kept = None
    if want_kept and ctx.nonlinearity != "relu":
        first = torch.zeros_like(w[:1]) if c_h0 is None else c_h0.unsqueeze(0)
        v = torch.cat([first, w[:-1]]) @ w_hh.t()
        v = v if c is None else v + c
        last = torch.zeros_like(w[:1]) if u_last is None else u_last.unsqueeze(0)
        g = torch.cat([grad_z[1:] @ w_hh, last])
        g = g if u is None else g + u
        grad_kept = v * g * (-2 * kept if ctx.nonlinearity == "tanh" else 1)
    return (
        w if want_u else None,
        w[-1] if want_last else None,
        grad_kept,
        _product_with_previous(grad_z, w, c_h0) if want_w_hh else None,
        None,
        None,
        None,
        None,
    )


def _slope(kept: Tensor, nonlinearity: str) -> Tensor:
    if nonlinearity == "tanh":
        return 1 - kept * kept
    return (kept > 0).to(kept.dtype) if nonlinearity == "relu" else kept


@torch.library.register_fake("bppsa::rnn_backward")
def _(
    grad_output: Tensor | None,
    grad_hn: Tensor | None,
    kept: Tensor,
    w_hh: Tensor,
    nonlinearity: str,
    algorithm: str,
    chunk: int,
    levels: int,
) -> tuple[Tensor, Tensor]:
    return kept.new_empty(kept.shape), kept.new_empty(kept.shape[1:])


torch.library.register_autograd(
    "bppsa::rnn_backward", _rnn_double_backward, setup_context=_rnn_backward_setup
)

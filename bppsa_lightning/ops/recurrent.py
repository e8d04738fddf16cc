"""rnn, gru, lstm: one recurrent layer in one direction, fused forward, backward by scan.

T steps, B batch, I input, H hidden, P state that is put out (H, or less for an LSTM with a
projection), G gates.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any

import torch
from torch import Tensor

from bppsa_lightning import planner, reference
from bppsa_lightning._library import HAS_CUDA_KERNELS, NO_CUDA_KERNELS
from bppsa_lightning.ops.log import record_scan

# name in csrc: (name for people, gates)
_CELLS = {
    "rnn_tanh": ("RNN-tanh", 1),
    "rnn_relu": ("RNN-relu", 1),
    "gru": ("GRU", 3),
    "lstm": ("LSTM", 4),
}
_DTYPES = (torch.float32, torch.float64)


def rnn(
    x: Tensor,
    h0: Tensor | None,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    nonlinearity: str = "tanh",
    algorithm: str = "auto",
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """A layer of a vanilla RNN: h_t = φ(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh), φ = tanh or relu.

    Args:
        x: (T, B, I), T >= 1, float32 or float64; all tensors share its dtype and device.
        h0: (B, H), or None for zeros.
        w_ih: (H, I). w_hh: (H, H). b_ih, b_hh: (H,) or None.
        nonlinearity: "tanh" or "relu".
        algorithm: of the backward scan; see `reverse_scan`.
        reverse: time runs from T-1 down to 0; output[t] is the state after steps T-1 … t.

    Returns:
        output (T, B, H), the state of each step, and h_n (B, H), the last one. Differentiable any
        number of times; second derivatives run `bppsa_lightning.reference`, step by step.

    Raises:
        TypeError: an argument is not a tensor, or of another dtype.
        ValueError: shapes, devices, nonlinearity or algorithm do not fit.
        RuntimeError: on a device the operator has no kernel for.

    The backward is the reverse scan over J_tᵀ = W_hhᵀ diag(φ'(z_t)), never held as matrices;
    parameter gradients are products over (time × batch), computed as the scan goes.
    """
    if nonlinearity not in ("tanh", "relu"):
        raise ValueError(f"nonlinearity: found {nonlinearity!r}, wanted 'tanh' or 'relu'")
    cell = f"rnn_{nonlinearity}"
    return _layer(cell, x, h0, None, w_ih, w_hh, b_ih, b_hh, None, reverse, algorithm)[:2]


def gru(
    x: Tensor,
    h0: Tensor | None,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    algorithm: str = "auto",
    reverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """A layer of gated recurrent units, as `torch.nn.GRU` (gates r, z, n).

    Args:
        x, h0, algorithm, reverse: as for `rnn`.
        w_ih: (3H, I). w_hh: (3H, H). b_ih, b_hh: (3H,) or None.

    Returns:
        output (T, B, H) and h_n (B, H), as `rnn`.

    Raises:
        As `rnn`.
    """
    return _layer("gru", x, h0, None, w_ih, w_hh, b_ih, b_hh, None, reverse, algorithm)[:2]


def lstm(
    x: Tensor,
    h0: Tensor | None,
    c0: Tensor | None,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    w_hr: Tensor | None = None,
    algorithm: str = "auto",
    reverse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """A layer of long short-term memory, as `torch.nn.LSTM` (gates i, f, g, o).

    Args:
        x, algorithm, reverse: as for `rnn`.
        h0: (B, P), or None for zeros. c0: (B, H), or None for zeros.
        w_ih: (4H, I). w_hh: (4H, P). b_ih, b_hh: (4H,) or None.
        w_hr: (P, H), the projection of each state, or None (then P = H).

    Returns:
        output (T, B, P), h_n (B, P) and c_n (B, H), as `rnn`.

    Raises:
        As `rnn`.
    """
    return _layer("lstm", x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr, reverse, algorithm)


@torch.compiler.assume_constant_result
def recurrent_kernels_missing(device: torch.device) -> str | None:
    """Why the recurrent operators cannot run on a device, for people; None if they can."""
    if device.type in ("cpu", "meta"):
        return None
    if device.type != "cuda":
        return f"on {device} the recurrent operators have no kernel"
    return _cuda_kernels_missing(device)


def _architectures() -> list[int]:
    """The compute capabilities that the CUDA kernels were compiled for: 75 is 7.5."""
    return planner.recurrent_architectures()


@lru_cache(maxsize=64)
def _cuda_kernels_missing(device: torch.device) -> str | None:
    if not HAS_CUDA_KERNELS:
        return NO_CUDA_KERNELS
    built = _architectures()
    major, minor = torch.cuda.get_device_capability(device)
    own = 10 * major + minor
    if own >= built[0]:  # its own code, or PTX of an older one
        return None
    return (
        f"{device} has compute capability {major}.{minor}, and the recurrent CUDA kernels were "
        f"built for {', '.join(f'{a // 10}.{a % 10}' for a in built)}: build again with "
        f"`pip install . -C cmake.define.BPPSA_CUDA_RECURRENT_ARCHITECTURES={own}`"
    )


def _layer(
    cell: str,
    x: Tensor,
    h0: Tensor | None,
    c0: Tensor | None,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    w_hr: Tensor | None,
    reverse: bool,
    algorithm: str,
) -> tuple[Tensor, Tensor, Tensor]:
    tensors = (x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr)
    if not _fits(cell, *tensors):
        _explain_misfit(cell, *tensors)
    planner.check_algorithm(algorithm, None)
    return run_layer(cell, tensors, bool(reverse), algorithm)


def run_layer(
    cell: str, tensors: Sequence[Tensor | None], reverse: bool, algorithm: str
) -> tuple[Tensor, Tensor, Tensor]:
    """`rnn`, `gru` or `lstm` for a caller who has checked the arguments.

    Args:
        cell: "rnn_tanh", "rnn_relu", "gru" or "lstm".
        tensors: x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr.

    Returns:
        output, h_n, c_n (empty unless an LSTM's).
    """
    operands: list[Any] = []
    differentiated = False
    for t in tensors:
        if t is not None:
            differentiated = differentiated or t.requires_grad
            if not t.is_contiguous():
                # x may have any strides but the last.
                t = t if not operands and t.stride(-1) == 1 else t.contiguous()
        operands.append(t)
    if differentiated and torch.is_grad_enabled():
        x, w_hh, w_hr = operands[0], operands[4], operands[7]
        T, B, _ = x.shape
        keep = planner.keep(cell, T, B, w_hh.shape[1], x.device)
        if w_hr is not None and x.device.type == "cuda":
            keep = 2  # its kernels need what was projected
        run = torch.ops.bppsa.recurrent if torch.compiler.is_compiling() else _Layer.apply
        return run(cell, *operands, reverse, keep, algorithm)[:3]
    return _forward(cell, *operands, reverse, 0, algorithm)[:3]


def _fits(
    cell: str,
    x: Tensor,
    h0: Tensor | None,
    c0: Tensor | None,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    w_hr: Tensor | None,
) -> bool:
    """Whether all is as documented; cheap, for every call."""
    try:
        T, B, I = x.shape
        GH, P = w_hh.shape
        H = GH // _CELLS[cell][1]
        dtype, device = x.dtype, x.device
        wanted = (
            (h0, (B, P)),
            (c0, (B, H)),
            (w_ih, (GH, I)),
            (b_ih, (GH,)),
            (b_hh, (GH,)),
            (w_hr, (P, H)),
        )
        return (
            T >= 1
            and H >= 1
            and P >= 1
            and H * _CELLS[cell][1] == GH
            and dtype in _DTYPES
            and w_ih is not None
            and w_hh.dtype == dtype
            and w_hh.device == device
            and recurrent_kernels_missing(device) is None
            and (w_hr is not None or P == H)
            and all(
                t.shape == shape and t.dtype == dtype and t.device == device
                for t, shape in wanted
                if t is not None
            )
        )
    except (AttributeError, TypeError, ValueError):
        return False


def _explain_misfit(cell: str, x: Tensor, *tensors: Tensor | None) -> None:
    """Raises the error that says which argument is not as documented."""
    h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr = tensors
    if not isinstance(x, Tensor):
        raise TypeError(f"x: found {type(x).__name__}, wanted a torch.Tensor")
    if x.dim() != 3 or x.shape[0] < 1:
        raise ValueError(f"x: found shape {tuple(x.shape)}, wanted (T, B, I) with T >= 1")
    if x.dtype not in _DTYPES:
        raise TypeError(f"x: found dtype {x.dtype}, wanted float32 or float64")
    missing = recurrent_kernels_missing(x.device)
    if missing:
        raise RuntimeError(f"x: found on {x.device}: {missing}")
    if not isinstance(w_hh, Tensor):
        raise TypeError(f"w_hh: found {type(w_hh).__name__}, wanted a torch.Tensor")
    name, gates = _CELLS[cell]
    G = "" if gates == 1 else str(gates)
    if w_hh.dim() != 2 or w_hh.shape[0] < 1 or w_hh.shape[0] % gates:
        raise ValueError(
            f"w_hh: found shape {tuple(w_hh.shape)}, wanted ({G}H, H) with H >= 1 for {name}"
        )
    B, I, GH, P = x.shape[1], x.shape[2], w_hh.shape[0], w_hh.shape[1]
    H = GH // gates
    if w_hr is None and P != H:
        raise ValueError(f"w_hh: found shape {tuple(w_hh.shape)}, wanted {(GH, H)} for {name}")
    if w_hr is not None and P < 1:
        raise ValueError(
            f"w_hh: found shape {tuple(w_hh.shape)}, wanted ({G}H, P) with P >= 1 beside w_hr"
        )
    wanted = {
        "h0": (h0, (B, P), True),
        "c0": (c0, (B, H), True),
        "w_ih": (w_ih, (GH, I), False),
        "w_hh": (w_hh, (GH, P), False),
        "b_ih": (b_ih, (GH,), True),
        "b_hh": (b_hh, (GH,), True),
        "w_hr": (w_hr, (P, H), True),
    }
    for argument, (tensor, shape, optional) in wanted.items():
        if tensor is None and optional:
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{argument}: found {type(tensor).__name__}, wanted a torch.Tensor")
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{argument}: found shape {tuple(tensor.shape)}, wanted {shape}")
        if tensor.dtype != x.dtype:
            raise TypeError(f"{argument}: found dtype {tensor.dtype}, wanted x's {x.dtype}")
        if tensor.device != x.device:
            raise ValueError(f"{argument}: found on {tensor.device}, wanted on x's {x.device}")
    raise AssertionError("arguments fit after all")


# --- the formula ---------------------------------------------------------------------------

_FIRST, _LAST = 1, 9  # the tensors among the operator's arguments
_NO_GRADIENTS = (None,) * 12


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.cell, *tensors, ctx.reverse, ctx.keep, ctx.algorithm = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[3])
    # Saved only where the first derivative reads it: what is not may be changed in place. The
    # second derivative reads all, and looks itself whether that is still what it was.
    again = ctx.keep == 1 and ctx.cell in ("gru", "lstm")
    wants = ctx.needs_input_grad
    needed = (wants[4] or again, True, True, wants[1] or again, True, again, again, True)
    pairs = list(zip(tensors, needed, strict=True))
    ctx.others = [None if need or t is None else (t, _version(t)) for t, need in pairs]
    ctx.save_for_backward(*(t if need else None for t, need in pairs), output[0], output[3])


def _version(t: Tensor) -> int | None:
    return None if t.is_inference() else t._version


def _backward(
    ctx: Any,
    grad_output: Tensor | None,
    grad_h_n: Tensor | None,
    grad_c_n: Tensor | None,
    _: None,
) -> tuple[Any, ...]:
    if grad_output is None and grad_h_n is None and grad_c_n is None:
        return _NO_GRADIENTS
    *tensors, output, kept = ctx.saved_tensors
    differentiable = torch.is_grad_enabled()
    for i, other in enumerate(ctx.others):
        if other is None:
            continue
        tensors[i], version = other
        # The kernel reads the shapes of these, not what is in them; the second derivative does.
        if differentiable and _version(tensors[i]) != version:
            raise RuntimeError(
                "an input or weight of a recurrent layer was changed in place after its "
                "forward, and a second derivative needs it as it was"
            )
    gradients: tuple[Tensor | None, ...]
    if differentiable:
        gradients = _differentiable_backward(ctx, tensors, (grad_output, grad_h_n, grad_c_n))
    else:
        T, B, P = output.shape
        # On CUDA the state of a projected layer is what is projected, H numbers.
        size = _hidden(ctx.cell, tensors) if output.device.type == "cuda" else P
        plan = planner.choose_recurrent(ctx.cell, T, B, size, output.device, ctx.algorithm)
        record_scan(_CELLS[ctx.cell][0], T, B, size, plan)
        wanted = ctx.needs_input_grad[_FIRST:_LAST]
        if grad_output is not None and grad_output.stride(-1) != 1:
            # Not contiguous(), which leaves an empty tensor's strides as they are.
            grad_output = grad_output.clone(memory_format=torch.contiguous_format)
        results = torch.ops.bppsa.recurrent_backward(
            ctx.cell,
            grad_output,
            None if grad_h_n is None else grad_h_n.contiguous(),
            None if grad_c_n is None or ctx.cell != "lstm" else grad_c_n.contiguous(),
            output,
            kept,
            *tensors,
            ctx.reverse,
            plan.algorithm,
            plan.chunk,
            plan.levels,
            sum(1 << i for i, want in enumerate(wanted) if want),
        )
        gradients = tuple(r if want else None for r, want in zip(results, wanted, strict=True))
    return (None, *gradients, None, None, None)


def _hidden(cell: str, tensors: Sequence[Tensor | None]) -> int:
    w_hh = tensors[4]
    assert w_hh is not None
    return w_hh.shape[0] // _CELLS[cell][1]


def _outside_autocast(formula: Callable[..., Any]) -> Callable[..., Any]:
    """A backward may be run under autocast; its products keep the precision of the forward."""

    @wraps(formula)
    def wrapped(ctx: Any, tensors: list[Tensor | None], *arguments: Any) -> Any:
        assert tensors[0] is not None
        kind = tensors[0].device.type
        if not torch.is_autocast_enabled(kind):
            return formula(ctx, tensors, *arguments)
        with torch.autocast(kind, enabled=False):
            return formula(ctx, tensors, *arguments)

    return wrapped


@_outside_autocast
def _differentiable_backward(
    ctx: Any, tensors: list[Tensor | None], cotangents: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...]:
    """The same gradients as functions of everything they depend on, by plain differentiation."""
    x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr = tensors
    assert x is not None and w_ih is not None and w_hh is not None
    B, P, H = x.shape[1], w_hh.shape[1], w_ih.shape[0] // _CELLS[ctx.cell][1]
    last = 0 if ctx.reverse else -1
    with torch.enable_grad():
        h0 = x.new_zeros(B, P) if h0 is None else h0
        outputs: list[Tensor]
        if ctx.cell == "lstm":
            c0 = x.new_zeros(B, H) if c0 is None else c0
            h, c = reference.lstm(x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr, ctx.reverse)
            outputs = [h, h[last], c[last]]
        else:
            if ctx.cell == "gru":
                h = reference.gru(x, h0, w_ih, w_hh, b_ih, b_hh, ctx.reverse)
            else:
                phi = ctx.cell.removeprefix("rnn_")
                h = reference.rnn(x, h0, w_ih, w_hh, b_ih, b_hh, phi, ctx.reverse)
            outputs = [h, h[last]]
        pairs = [(o, c) for o, c in zip(outputs, cotangents, strict=False) if c is not None]
        wanted = ctx.needs_input_grad[_FIRST:_LAST]
        gradients = iter(
            torch.autograd.grad(
                [o for o, _ in pairs],
                [t for t, want in zip(tensors, wanted, strict=True) if want and t is not None],
                [c for _, c in pairs],
                create_graph=True,
                allow_unused=True,
            )
        )
    return tuple(next(gradients) if want else None for want in wanted)


_forward = torch.ops.bppsa.recurrent.default


class _Layer(torch.autograd.Function):
    """The formula without the layers of a registered operator's: a third of a short call's time."""

    # One method for both: torch takes 25 us to call a setup_context.
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, ...]:
        output = _forward(*arguments)
        _setup(ctx, arguments, output)
        return output

    backward = staticmethod(_backward)


torch.library.register_autograd("bppsa::recurrent", _backward, setup_context=_setup)


@torch.library.register_fake("bppsa::recurrent")
def _(
    cell: str,
    x: Tensor,
    h0: Tensor | None,
    c0: Tensor | None,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    w_hr: Tensor | None,
    reverse: bool,
    keep: int,
    algorithm: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    T, B, _ = x.shape
    H, P = w_hh.shape[0] // _CELLS[cell][1], w_hh.shape[1]
    cuda = x.device.type == "cuda"
    units = 1 if cuda else 16 // x.dtype.itemsize
    padded = (H + units - 1) // units * units
    lstm = (0, 1, 6 if cuda and w_hr is not None else 5)
    kept = {"gru": (0, 0, 4), "lstm": lstm}.get(cell, (0, 0, 0))[keep] * padded
    return (
        x.new_empty((T, B, P)),
        x.new_empty((B, P)),
        x.new_empty((B if cell == "lstm" else 0, H)),
        x.new_empty((T, B, kept)),
    )


@torch.library.register_fake("bppsa::recurrent_backward")
def _(
    cell: str,
    grad_output: Tensor | None,
    grad_h_n: Tensor | None,
    grad_c_n: Tensor | None,
    output: Tensor,
    kept: Tensor,
    x: Tensor,
    h0: Tensor | None,
    c0: Tensor | None,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None,
    b_hh: Tensor | None,
    w_hr: Tensor | None,
    reverse: bool,
    algorithm: str,
    chunk: int,
    levels: int,
    wanted: int,
) -> tuple[Tensor, ...]:
    B, P, H = x.shape[1], w_hh.shape[1], w_hh.shape[0] // _CELLS[cell][1]
    shapes = (
        x.shape,
        (B, P),
        (B, H) if cell == "lstm" else (0,),
        w_ih.shape,
        w_hh.shape,
        *((0,) if t is None else t.shape for t in (b_ih, b_hh, w_hr)),
    )
    return tuple(x.new_empty(s if wanted >> i & 1 else (0,)) for i, s in enumerate(shapes))

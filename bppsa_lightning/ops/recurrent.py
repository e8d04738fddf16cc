"""One recurrent layer in one direction, a function for each cell: fused forward, backward by scan.

T steps, B batch, I input, H hidden, P state that is put out (H, or less for an LSTM with a
projection), G gates.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from bppsa_lightning import planner
from bppsa_lightning._cells import CELLS, Cell
from bppsa_lightning._context import is_transformed, recorded
from bppsa_lightning._library import missing_recurrent_kernels
from bppsa_lightning.ops._checks import check_like, check_shape, check_tensor, wrong_shape
from bppsa_lightning.ops._recorded import recorded_layer
from bppsa_lightning.ops._recurrent_autograd import (
    Operands,
    Ragged,
    RaggedPlan,
    RecurrentFunction,
    laid_out,
    request_of,
    run_forward,
    run_ragged_forward,
)
from bppsa_lightning.ops._recurrent_transforms import transformed_layer

_Layer = tuple[Tensor, Tensor, Tensor]

# A layer over the ranks of a group: set by `bppsa_lightning.recurrent`, which knows how.
over_ranks: Callable[[str, Operands, bool, str, ProcessGroup], _Layer] | None = None


def rnn(
    x: Tensor,
    h0: Tensor | None,
    w_ih: Tensor | None,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    nonlinearity: str = "tanh",
    algorithm: str = "auto",
    reverse: bool = False,
    group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """A layer of a vanilla RNN: h_t = φ(W_ih x_t + b_ih + W_hh h_{t-1} + b_hh), φ = tanh or relu.

    Args:
        x: (T, B, I), T >= 1, float32 or float64; all tensors share its dtype and device.
        h0: (B, H), or None for zeros.
        w_ih: (H, I). None: x, (T, B, H), takes the place of W_ih x, so that it may be normalised,
            or come from a convolution.
        w_hh: (H, H). b_ih, b_hh: (H,) or None.
        nonlinearity: "tanh" or "relu".
        algorithm: of the backward scan; see `reverse_scan`.
        reverse: time runs from T-1 down to 0; output[t] is the state after steps T-1 … t.
        group: ranks that hold the sequence's parts in their order, T steps each (T may differ, and
            be 0), and all call alike; None for one process. h0 is read where the sequence begins;
            output is of this rank's steps, h_n the same on all ranks, and gradients of weights are
            this rank's terms of a sum over ranks. `algorithm` may be "speculative" as well:
            docs/ranks.md. Differentiable once.

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
    operands = Operands(x, h0, None, w_ih, w_hh, b_ih, b_hh)
    return _checked_layer(f"rnn_{nonlinearity}", operands, reverse, algorithm, group)[:2]


def gru(
    x: Tensor,
    h0: Tensor | None,
    w_ih: Tensor | None,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    algorithm: str = "auto",
    reverse: bool = False,
    group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """A layer of gated recurrent units, as `torch.nn.GRU` (gates r, z, n).

    Args:
        x, h0, algorithm, reverse, group: as for `rnn`.
        w_ih: (3H, I), or None, as for `rnn`. w_hh: (3H, H). b_ih, b_hh: (3H,) or None.

    Returns:
        output (T, B, H) and h_n (B, H), as `rnn`.

    Raises:
        TypeError, ValueError, RuntimeError: as for `rnn`.
    """
    operands = Operands(x, h0, None, w_ih, w_hh, b_ih, b_hh)
    return _checked_layer("gru", operands, reverse, algorithm, group)[:2]


def ligru(
    x: Tensor,
    h0: Tensor | None,
    w_ih: Tensor | None,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    algorithm: str = "auto",
    reverse: bool = False,
    group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor]:
    """A layer of light gated recurrent units (Li-GRU): no reset gate, and a relu for tanh.

    h_t = z h_{t-1} + (1 - z) n, z = σ(W_iz x_t + b_iz + W_hz h_{t-1} + b_hz), n likewise with relu.

    Args:
        x, h0, algorithm, reverse, group: as for `rnn`.
        w_ih: (2H, I), rows in the order z, n, or None, as for `rnn`. w_hh: (2H, H). b_ih, b_hh:
            (2H,) or None.

    Returns:
        output (T, B, H) and h_n (B, H), as `rnn`.

    Raises:
        TypeError, ValueError, RuntimeError: as for `rnn`.

    Source: Ravanelli et al., arXiv:1803.10225, equations 4. Their batch normalisation of the
    input's products is the caller's: normalise W x, and pass it as x, without w_ih.
    """
    operands = Operands(x, h0, None, w_ih, w_hh, b_ih, b_hh)
    return _checked_layer("ligru", operands, reverse, algorithm, group)[:2]


def lstm(
    x: Tensor,
    h0: Tensor | None,
    c0: Tensor | None,
    w_ih: Tensor | None,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    w_hr: Tensor | None = None,
    algorithm: str = "auto",
    reverse: bool = False,
    group: ProcessGroup | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """A layer of long short-term memory, as `torch.nn.LSTM` (gates i, f, g, o).

    Args:
        x, algorithm, reverse, group: as for `rnn`.
        h0: (B, P), or None for zeros. c0: (B, H), or None for zeros.
        w_ih: (4H, I), or None, as for `rnn`. w_hh: (4H, P). b_ih, b_hh: (4H,) or None.
        w_hr: (P, H), the projection of each state, or None (then P = H).

    Returns:
        output (T, B, P), h_n (B, P) and c_n (B, H), as `rnn`.

    Raises:
        TypeError, ValueError, RuntimeError: as for `rnn`.
    """
    operands = Operands(x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr)
    return _checked_layer("lstm", operands, reverse, algorithm, group)


def peephole_lstm(
    x: Tensor,
    h0: Tensor | None,
    c0: Tensor | None,
    w_ih: Tensor | None,
    w_hh: Tensor,
    w_c: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    w_hr: Tensor | None = None,
    algorithm: str = "auto",
    reverse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """A layer of long short-term memory with peepholes: as `lstm`, but that gates see c.

    To the sums of the gates i and f, w_c adds c_{t-1}, and to that of o c_t, each unit its own.

    Args:
        x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr, algorithm, reverse: as for `lstm`.
        w_c: (3H,), the peepholes of the gates i, f, o.

    Returns:
        output (T, B, P), h_n (B, P) and c_n (B, H), as `lstm`.

    Raises:
        TypeError, ValueError, RuntimeError: as for `lstm`.

    Source: Gers and Schmidhuber, "Recurrent nets that time and count", IJCNN 2000; with w_hr, Sak
    et al., arXiv:1402.1128.
    """
    operands = Operands(x, h0, c0, w_ih, w_hh, b_ih, b_hh, w_hr)
    _check(CELLS["lstm"], operands, 1)
    check_tensor("w_c", w_c)
    check_shape("w_c", w_c, (w_hh.shape[0] // 4 * 3,))
    check_like("w_c", w_c, "x", x)
    i, f, o = w_c.chunk(3)
    bias = b_ih if b_hh is None else b_hh if b_ih is None else b_ih + b_hh
    # In the place of b_hh, for all four gates.
    operands = operands._replace(b_ih=bias, b_hh=torch.cat([i, f, torch.zeros_like(i), o]))
    return _checked_layer("peephole", operands, reverse, algorithm, None)


def _checked_layer(
    cell: str, operands: Operands, reverse: bool, algorithm: str, group: ProcessGroup | None
) -> _Layer:
    _check(CELLS[cell], operands, 1 if group is None else 0)
    if group is None or algorithm != planner.SPECULATIVE:
        planner.check_algorithm(algorithm, None)
    if group is not None:
        if not isinstance(group, ProcessGroup):
            raise TypeError(f"group: found {type(group).__name__}, wanted a ProcessGroup, or None")
        assert over_ranks is not None
        return over_ranks(cell, operands, bool(reverse), algorithm, group)
    return run_layer(cell, operands, bool(reverse), algorithm)


def run_layer(
    cell: str,
    operands: Operands,
    reverse: bool = False,
    algorithm: str = "auto",
    plan: planner.Plan | None = None,
    ragged: Ragged | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`rnn`, `gru`, `ligru` or `lstm` for a caller who has checked the arguments.

    Args:
        cell: a name of `_cells.CELLS`.
        plan: of the backward; None to plan it here by `algorithm`.
        ragged: on a CPU, not in reverse: where samples end, if x lets c stand still in what
            follows, and nobody reads output or h_n there. A linear scan passes over it.

    Returns:
        output, h_n, c_n (empty unless an LSTM's).
    """
    if is_transformed():
        return transformed_layer(cell, operands, reverse, algorithm)
    if recorded() is not None:
        return recorded_layer(cell, operands, reverse)
    operands, differentiated = laid_out(operands)
    differentiated = differentiated and torch.is_grad_enabled()
    if plan is None and torch.compiler.is_compiling():
        # Sizes may be symbols: the backward is planned later.
        saved = planner.saved(request_of(cell, operands, algorithm)) if differentiated else 0
        return torch.ops.bppsa.recurrent(cell, *operands, reverse, int(saved), algorithm)[:3]
    if not differentiated and ragged is not None:
        return run_ragged_forward(cell, operands, 0, ragged)[:3]
    if not differentiated:
        return run_forward(cell, *operands, reverse, 0, algorithm)[:3]
    plan = plan or planner.plan(request_of(cell, operands, algorithm))
    if ragged is not None and plan.algorithm == "linear":
        how = RaggedPlan(plan, ragged)
        return RecurrentFunction.apply(cell, *operands, reverse, plan.saved, how)[:3]
    return RecurrentFunction.apply(cell, *operands, reverse, plan.saved, plan)[:3]


def _check(cell: Cell, operands: Operands, least: int) -> None:
    """Raises the error that says which argument is not as documented."""
    x = operands.x
    check_tensor("x", x)
    if x.dim() != 3 or x.shape[0] < least:
        raise wrong_shape("x", x, f"(T, B, I) with T >= {least}")
    missing = missing_recurrent_kernels(x.device)
    if missing:
        raise RuntimeError(f"x: found on {x.device}: {missing}")
    GH, P = _checked_w_hh(cell, operands)
    (_, B, I), H = x.shape, GH // cell.gates
    if operands.w_ih is None and I != GH:
        raise wrong_shape("x", x, f"{(*x.shape[:2], GH)}, as w_ih is None")
    shapes = (B, P), (B, H), (GH, I), (GH, P), (GH,), (GH,), (P, H)
    for name, tensor, shape in zip(Operands._fields[1:], operands[1:], shapes, strict=True):
        if tensor is not None:
            check_tensor(name, tensor)
            check_shape(name, tensor, shape)
            check_like(name, tensor, "x", x)


def _checked_w_hh(cell: Cell, operands: Operands) -> tuple[int, int]:
    """Its shape."""
    w_hh, G = operands.w_hh, "" if cell.gates == 1 else str(cell.gates)
    check_tensor("w_hh", w_hh)
    if w_hh.dim() != 2 or w_hh.shape[0] < 1 or w_hh.shape[0] % cell.gates:
        raise wrong_shape("w_hh", w_hh, f"({G}H, H) with H >= 1 for {cell.label}")
    GH, P = w_hh.shape
    H = GH // cell.gates
    if operands.w_hr is None and P != H:
        raise wrong_shape("w_hh", w_hh, f"{(GH, H)} for {cell.label}")
    if operands.w_hr is not None and P < 1:
        raise wrong_shape("w_hh", w_hh, f"({G}H, P) with P >= 1 beside w_hr")
    return GH, P

"""What the operators count in `torch.utils.flop_counter`, and so in Lightning's model summary.

FLOPs are those of the matrix products that PyTorch's own layer takes, two for each multiplication
and addition, whatever algorithm computes them; elementwise work counts nothing, as in PyTorch's
formulas. What is done for surviving weights only, and products of sparse Jacobians, count what they
multiply.
"""

from collections.abc import Sequence
from math import prod
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from bppsa_lightning.ops.sparse_pattern import output_size

COUNTER = "torch.utils.flop_counter"
Shape = Sequence[int]


def register(counter: ModuleType) -> None:
    """Registers the formulas of all operators that multiply matrices.

    Args:
        counter: the module `torch.utils.flop_counter`.
    """
    operators = torch.ops.bppsa
    if operators.recurrent in counter.flop_registry:  # by this package, imported before
        return
    for formula, names in _FORMULAS.items():
        counter.register_flop_formula([getattr(operators, name) for name in names])(formula)
    counter.register_flop_formula(operators.multiply_csr, get_raw=True)(_multiply_csr)


def _recurrent(
    _cell: str, x: Shape, _h0: Any, _c0: Any, w_ih: Shape | None, w_hh: Shape, _b_ih: Any,
    _b_hh: Any, w_hr: Shape | None, *_: Any, **_out: Any,
) -> int:  # fmt: skip
    weights = filter(None, (w_ih, w_hh, w_hr))
    return 2 * x[0] * x[1] * sum(map(prod, weights))


def _recurrent_backward(
    _cell: str, _grad: Any, _grad_h: Any, _grad_c: Any, _output: Any, _kept: Any, x: Shape,
    _h0: Any, _c0: Any, w_ih: Shape | None, w_hh: Shape, _b_ih: Any, _b_hh: Any,
    w_hr: Shape | None, *others: Any, **_out: Any,
) -> int:  # fmt: skip
    wanted = _wanted(others, of=8)
    steps = _backward_of_steps(x[0], x[1], w_ih, w_hh, *wanted[:2], *wanted[3:5])
    if w_hr is not None:
        steps += x[0] * x[1] * prod(w_hr) * (1 + wanted[7])
    return 2 * steps


def _recurrent_backward_into(*arguments: Any, **_out: Any) -> int:
    """Writes the gradient of x into its 15th argument; wanted are h0, c0 and the weights'."""
    wanted = arguments[15] << 1 | (arguments[14] is not None)
    return _recurrent_backward(*arguments[:14], wanted)


def _regularised(
    _cell: str, x: Shape, _h0: Any, _c0: Any, w_hh: Shape, _b_hh: Any, _norm_hh: Any, _norm_c: Any,
    _b_c: Any, w_ih: Shape | None, *_: Any, **_out: Any,
) -> int:  # fmt: skip
    return 2 * x[0] * x[1] * sum(map(prod, filter(None, (w_ih, w_hh))))


def _regularised_backward(
    _cell: str, _grad: Any, _grad_h: Any, _grad_c: Any, output: Shape, _saved: Any, _x: Any,
    _h0: Any, _c0: Any, w_hh: Shape, _b_hh: Any, _norm_hh: Any, _norm_c: Any, _b_c: Any,
    w_ih: Shape | None, *others: Any, **_out: Any,
) -> int:  # fmt: skip
    wanted = _wanted(others, of=11)
    return 2 * _backward_of_steps(
        output[0], output[1], w_ih, w_hh, wanted[0], wanted[1], wanted[8], wanted[3]
    )


def _backward_of_steps(
    T: int, B: int, w_ih: Shape | None, w_hh: Shape, x: bool, h0: bool, of_ih: bool, of_hh: bool
) -> int:
    """Multiplications; the flags are whether the gradients of x, h0 and the weights are wanted."""
    carried = T if h0 else max(T - 1, 0)
    inputs = 0 if w_ih is None else T * prod(w_ih) * (x + of_ih)
    return B * (inputs + prod(w_hh) * (carried + T * of_hh))


def _linear(x: Shape, weight: Shape, *_: Any, **_out: Any) -> int:
    return 2 * prod(x[:-1]) * prod(weight)


def _linear_backward(grad: Shape, _x: Any, weight: Shape, wanted: int, **_out: Any) -> int:
    return 2 * prod(grad[:-1]) * prod(weight) * sum(_wanted([wanted], of=2))


def _scan(jacobians: Shape, *_: Any, **_out: Any) -> int:
    return 2 * prod(jacobians)


def _apply_csr(_crow: Any, _col: Any, values: Shape, x: Shape, **_out: Any) -> int:
    return 2 * values[-1] * x[1]


def _multiply_csr(_a_crow: Any, a_col: Tensor, a: Tensor, b_crow: Tensor, *others: Any,
                  **_out: Any) -> int:  # fmt: skip
    b = others[1]
    products = int(b_crow.diff()[a_col.long()].sum())
    return 2 * products * max(t.shape[0] if t.dim() == 2 else 1 for t in (a, b))


def _sparse_conv2d(x: Shape, values: Shape, *others: Any, **_out: Any) -> int:
    return _of_survivors(x, values, others[6:10])


def _sparse_conv2d_backward(_grad: Any, _output: Any, _places: Any, x: Shape, values: Shape,
                            *others: Any, **_out: Any) -> int:  # fmt: skip
    return _of_survivors(x, values, others[5:9]) * sum(_wanted(others, of=2))


def _of_survivors(x: Shape, values: Shape, geometry: Sequence[Any]) -> int:
    return 2 * values[0] * x[0] * prod(output_size(x[2:], *geometry))


def _wanted(arguments: Sequence[Any], of: int) -> list[bool]:
    """Of a backward's inputs, whether the gradient is wanted: the bits of its last argument."""
    return [bool(arguments[-1] >> i & 1) for i in range(of)]


_FORMULAS = {
    _recurrent: ("recurrent", "recurrent_into", "recurrent_windows"),
    _recurrent_backward: ("recurrent_backward", "planned_recurrent_backward"),
    _recurrent_backward_into: ("recurrent_backward_into", "recurrent_windows_backward"),
    _regularised: ("regularised",),
    _regularised_backward: ("regularised_backward",),
    _linear: ("linear",),
    _linear_backward: ("linear_backward",),
    _scan: ("reverse_scan", "planned_reverse_scan"),
    _apply_csr: ("apply_csr",),
    _sparse_conv2d: ("sparse_conv2d",),
    _sparse_conv2d_backward: ("sparse_conv2d_backward",),
}

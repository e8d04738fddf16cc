"""One recurrent layer, forward and backward, by PyTorch and by the kernels: results by name.

The results are "output", "h_n", an LSTM's "c_n", and "grad_<operand>" of each operand, on the CPU.

T steps, B batch, I input, H state, P state that is put out, N steps of all samples.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from bppsa_lightning import ops
from bppsa_lightning._cells import CELLS
from bppsa_lightning.attach import attach
from bppsa_lightning.calibration.cuda.cases import Case

Tensors = dict[str, Tensor]
_WEIGHTS = {
    "w_ih": "weight_ih_l0", "w_hh": "weight_hh_l0", "b_ih": "bias_ih_l0", "b_hh": "bias_hh_l0",
    "w_hr": "weight_hr_l0",
}  # fmt: skip


def drawn(case: Case, seed: int = 0) -> tuple[Tensors, Tensors]:
    """The operands of a case, and the gradients that flow in at its results; float64.

    All are float32 numbers, so that no reference begins with a rounding of its own.
    """
    generator = torch.Generator().manual_seed(case.T + 7 * case.B + 31 * case.H + 997 * seed)

    def some(*size: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(size, generator=generator) * scale).double()

    cell, H, P = CELLS[case.cell], case.H, case.P or case.H
    rows, scale = cell.gates * H, 0.7 / math.sqrt(H)
    operands = {"x": some(case.T, case.B, case.I)}
    if case.initial:
        operands["h0"] = some(case.B, P)
        if cell.has_c:
            operands["c0"] = some(case.B, H)
    operands["w_ih"] = some(rows, case.I, scale=1 / math.sqrt(case.I))
    operands["w_hh"] = some(rows, P, scale=scale)
    if case.bias:
        operands |= {"b_ih": some(rows, scale=0.3), "b_hh": some(rows, scale=0.3)}
    if case.P:
        operands["w_hr"] = some(P, H, scale=scale)
    incoming = {"h_n": some(case.B, P)}
    if cell.has_c:
        incoming["c_n"] = some(case.B, H)
    if case.every:
        incoming["output"] = some(case.T, case.B, P)
    if case.lengths:
        operands["x"] = _packed(case, operands["x"]).data
        incoming["output"] = _packed(case, some(case.T, case.B, P)).data
    return operands, incoming


def by_pytorch(case: Case, operands: Tensors, incoming: Tensors, dtype: torch.dtype) -> Tensors:
    """By PyTorch's own layer, on the CPU."""
    t = _leaves(operands, dtype, torch.device("cpu"))
    layer = _layer(case, dtype)
    x = t["x"].flip(0) if case.reverse else t["x"]
    found = _called(case, layer, t, x)
    if case.reverse:
        found["output"] = found["output"].flip(0)
    return _with_gradients(case, found, t, incoming)


def by_kernels(case: Case, operands: Tensors, incoming: Tensors, device: torch.device) -> Tensors:
    """By this package's kernels of a device, as the case says."""
    dtype = getattr(torch, case.dtype)
    t = _leaves(operands, dtype, device)
    with torch.set_grad_enabled(case.backward):
        if case.lengths:
            layer = _layer(case, dtype).to(device)
            (chain,) = attach(layer, case.algorithm)
            results = _called(case, layer, t, t["x"])
            if not chain.calls:
                raise RuntimeError(f"left to PyTorch: {chain.reason}")
            return _with_gradients(case, results, t, incoming)
        given = ops.Operands(**{name: t.get(name) for name in ops.Operands._fields})  # type: ignore[arg-type]
        found = ops.run_layer(case.cell, given, case.reverse, case.algorithm, case.plan)
    names = ("output", "h_n", "c_n")[: 2 + CELLS[case.cell].has_c]
    return _with_gradients(case, dict(zip(names, found, strict=False)), t, incoming)


def _leaves(operands: Tensors, dtype: torch.dtype, device: torch.device) -> Tensors:
    return {name: t.to(device, dtype).requires_grad_() for name, t in operands.items()}


def _layer(case: Case, dtype: torch.dtype) -> nn.RNNBase:
    kind = {"GRU": nn.GRU, "LSTM": nn.LSTM}.get(CELLS[case.cell].kind, nn.RNN)
    more: dict[str, object] = {"proj_size": case.P} if case.P else {}
    if kind is nn.RNN:
        more["nonlinearity"] = case.cell.removeprefix("rnn_")
    layer: nn.RNNBase = kind(case.I, case.H, bias=case.bias, dtype=dtype, **more)
    return layer


def _called(case: Case, layer: nn.RNNBase, t: Tensors, x: Tensor) -> Tensors:
    """The results of a module's call with the operands as its weights and states."""
    weights = {_WEIGHTS[name]: w for name, w in t.items() if name in _WEIGHTS}
    input = PackedSequence(x, _packed(case).batch_sizes) if case.lengths else x
    states = tuple(t[name][None] for name in ("h0", "c0") if name in t)
    hx = (states if len(states) == 2 else states[0]) if states else None
    output, last = torch.func.functional_call(layer, weights, (input, hx))
    found = {"output": output.data if case.lengths else output}
    last = last if isinstance(last, tuple) else (last,)
    return found | {name: s[0] for name, s in zip(("h_n", "c_n"), last, strict=False)}


def _packed(case: Case, x: Tensor | None = None) -> PackedSequence:
    """The samples of a case with different lengths, from T down."""
    lengths = [max(case.T - 3 * b, 1) for b in range(case.B)]
    return pack_padded_sequence(torch.zeros(case.T, case.B, 1) if x is None else x, lengths)  # type: ignore[arg-type]


def _with_gradients(case: Case, found: Tensors, t: Tensors, incoming: Tensors) -> Tensors:
    results = {name: value.detach() for name, value in found.items()}
    if case.backward:
        results |= _gradients(found, t, incoming)
    return {name: value.cpu() for name, value in results.items()}


def _gradients(found: Tensors, t: Tensors, incoming: Tensors) -> Iterator[tuple[str, Tensor]]:
    outputs = [found[name] for name in incoming]
    cotangents = [g.to(o) for g, o in zip(incoming.values(), outputs, strict=True)]
    gradients = torch.autograd.grad(outputs, list(t.values()), cotangents)
    return zip([f"grad_{name}" for name in t], gradients, strict=True)

"""bl.ops.linear: against torch in float64; layouts, derivatives, transforms, compile, who computes.

Letters: T steps, B batch, I input, O result.
"""

import random
import warnings
from unittest.mock import patch

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from bppsa_lightning.ops import linear

OURS = linear.__globals__  # of its module, whose name the function has taken
SHIPPED = {name: OURS[name] for name in ("_LEAST", "_has_kernel")}
F64 = {"dtype": torch.float64}


@pytest.fixture(autouse=True)
def _ours_for_little_work():
    with patch.dict(OURS, _LEAST=0, _has_kernel=lambda: True):
        yield


def drawn(T, B, I, O, dtype=torch.float64, bias=True, batch_first=False, seed=0):  # noqa: E741
    generator = torch.Generator().manual_seed(seed)
    shapes = ((B, T, I) if batch_first else (T, B, I)), (O, I), (O,) if bias else None
    tensors = [None if s is None else torch.randn(s, generator=generator) for s in shapes]
    tensors = [None if t is None else t.to(dtype).requires_grad_() for t in tensors]
    return (tensors[0].transpose(0, 1) if batch_first else tensors[0]), *tensors[1:]


def gradients(function, x, *others, seed=1):
    output = function(x, *others)
    given = [t for t in (x, *others) if t is not None]
    generator = torch.Generator().manual_seed(seed)
    grad = torch.randn(output.shape, generator=generator).to(output)
    return [output, *torch.autograd.grad(output, given, grad)]


def sizes_of_sums(x, weight, bias, grad):
    """The largest sum of absolute values behind each of `gradients`, which rounding goes by."""
    x, weight, grad = (t.detach().abs().flatten(0, -2) for t in (x, weight, grad))
    found = [x @ weight.t(), grad @ weight, grad.t() @ x, grad.sum(0)]
    return [1 + s.max() for s in found[: 4 if bias is not None else 3]]


@pytest.mark.parametrize("seed", range(80))
def test_random_layers_equal_those_of_torch(seed):
    r = random.Random(seed)
    T, B = r.choice([(1, 1), (1, 7), (5, 1), (3, 4), (130, 3), (3, 130), (40, 16), (300, 1)])
    I, O = (r.choice([1, 2, 3, 4, 5, 8, 13, 16, 31, 64, 100, 129, 300]) for _ in range(2))  # noqa: E741
    dtype = r.choice([torch.float32, torch.float64])
    operands = drawn(T, B, I, O, dtype, r.random() < 0.5, r.random() < 0.5, seed)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(r.choice([1, 2, 3]))
        found = gradients(linear, *operands)
        again = gradients(linear, *operands)
    finally:
        torch.set_num_threads(threads)
    wide = [None if t is None else t.detach().double().requires_grad_() for t in operands]
    wanted = gradients(functional.linear, *wide)
    sizes = sizes_of_sums(*wide, wanted[0])
    assert "linear" in found[0].grad_fn.name() or T * B == 1  # or the view behind it
    for a, b, w, size in zip(found, again, wanted, sizes, strict=True):
        assert torch.equal(a, b)
        assert a.dtype == dtype and a.shape == w.shape
        assert (a - w).abs().max() < size * (1e-6 if dtype == torch.float32 else 1e-14)


@pytest.mark.parametrize("shape", [(0, 3), (4, 0)])
def test_no_rows(shape):
    x, weight, bias = drawn(1, 1, 5, 6)
    x = torch.empty(*shape, 5, **F64, requires_grad=True)
    output = linear(x, weight, bias)
    assert output.shape == (*shape, 6)
    output.sum().backward()
    assert x.grad.shape == x.shape
    assert not weight.grad.any() and not bias.grad.any()


def test_rows_of_a_packed_sequence_and_views():
    x, weight, bias = drawn(7, 2, 5, 6)
    for view in (x[:, 0], x[::2], x[:, :1], x.transpose(1, 2)[:, :, :1].expand(7, 5, 5), x[3]):
        for w in (weight, weight.t().contiguous().t()):
            torch.testing.assert_close(linear(view, w, bias), functional.linear(view, w, bias))


def test_derivatives_of_any_order():
    operands = drawn(3, 2, 4, 5)
    torch.autograd.gradcheck(linear, operands)
    torch.autograd.gradgradcheck(linear, operands)


@pytest.mark.parametrize(
    "wanted", [(True, False, False), (False, True, False), (False, False, True)]
)
def test_only_gradients_that_are_wanted(wanted):
    operands = [
        t.detach().requires_grad_(w) for t, w in zip(drawn(3, 2, 4, 5), wanted, strict=True)
    ]
    plain = [t.detach().clone().requires_grad_(w) for t, w in zip(operands, wanted, strict=True)]
    linear(*operands).square().sum().backward()
    functional.linear(*plain).square().sum().backward()
    for t, p in zip(operands, plain, strict=True):
        assert (t.grad is None) == (p.grad is None)
        if p.grad is not None:
            torch.testing.assert_close(t.grad, p.grad)


def test_operator_passes_opcheck():
    for bias in (True, False):
        torch.library.opcheck(torch.ops.bppsa.linear.default, drawn(3, 2, 4, 5, bias=bias))


def test_in_a_graph_for_any_number_of_steps():
    operands = drawn(3, 2, 4, 5)
    graphs = []

    def count(graph, inputs):
        graphs.append([n.target for n in graph.graph.nodes if n.op == "call_function"])
        return graph

    compiled = torch.compile(linear, fullgraph=True, dynamic=True, backend=count)
    for T in (3, 8, 9000):
        x = torch.randn(T, 2, 4, **F64)
        torch.testing.assert_close(compiled(x, *operands[1:]), linear(x, *operands[1:]))
    assert graphs == [[torch.ops.bppsa.linear.default]]


def test_under_transforms():
    x, weight, bias = (t.detach() for t in drawn(3, 2, 4, 5))
    per_sample = torch.vmap(linear, in_dims=(1, None, None), out_dims=1)(x, weight, bias)
    torch.testing.assert_close(per_sample, functional.linear(x, weight, bias))
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        found = jacobian(linear, argnums=1)(x, weight, bias)
        torch.testing.assert_close(found, jacobian(functional.linear, argnums=1)(x, weight, bias))


def test_a_trace_has_pytorchs_own(tmp_path):
    operands = [t.detach() for t in drawn(3, 2, 4, 5)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of its own age
        traced = torch.jit.trace(linear, operands)
        traced.save(str(tmp_path / "traced.pt"))
        loaded = torch.jit.load(str(tmp_path / "traced.pt"))
    assert "aten::linear" in {node.kind() for node in traced.graph.nodes()}
    torch.testing.assert_close(loaded(*operands), functional.linear(*operands))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision_and_under_autocast_it_is_pytorchs(dtype):
    x, weight, bias = drawn(3, 2, 4, 5, torch.float32)
    half = [t.detach().to(dtype) for t in (x, weight, bias)]
    assert torch.equal(linear(*half), functional.linear(*half))
    with torch.autocast("cpu", dtype):
        found = linear(x, weight, bias)
    assert found.dtype == dtype


@pytest.mark.parametrize(
    "shapes", [((3, 2, 4), (5, 3), None), ((3, 2, 4), (5, 4), (4,)), ((3, 2, 4), (5, 4, 1), None)]
)
def test_wrong_shapes_are_pytorchs_errors(shapes):
    operands = [None if s is None else torch.zeros(s) for s in shapes]
    with pytest.raises(RuntimeError) as theirs:
        functional.linear(*operands)
    with pytest.raises(RuntimeError) as ours:
        linear(*operands)
    assert str(ours.value) == str(theirs.value)


@patch.dict(OURS, SHIPPED)
def test_little_work_and_large_weights_are_pytorchs():
    def is_ours(T, I, O):  # noqa: E741
        with FlopCounterMode(display=False) as counter:
            linear(torch.zeros(T, 4, I), torch.zeros(O, I))
        [(operator, flops)] = counter.get_flop_counts()["Global"].items()
        assert flops == 2 * T * 4 * I * O
        return operator is torch.ops.bppsa.linear

    assert not is_ours(1, 16, 16)
    assert not is_ours(4, 1024, 1025)
    assert is_ours(300, 64, 64) == OURS["_has_kernel"]()


@pytest.mark.parametrize("arguments", [(None, torch.ones(2, 3)), (torch.ones(4, 3), None)])
def test_what_is_no_tensor_is_named(arguments):
    with pytest.raises(TypeError, match="must be Tensor, not NoneType"):
        linear(*arguments)

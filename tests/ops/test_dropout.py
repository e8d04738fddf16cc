"""bl.ops.dropout: PyTorch's results, gradients and generator, bit by bit; what is left to it."""

import os
import signal
import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import bppsa_lightning as bl
from bppsa_lightning.ops import dropout as run
from bppsa_lightning.ops.dropout import _is_ours, draws_as_torch

draw = torch.ops.bppsa.bernoulli.default
DTYPES = [torch.float32, torch.float64]
ours = pytest.mark.skipif(
    not draws_as_torch(), reason="PyTorch's dropout draws other numbers on this processor"
)


def both(x, p, odd=0, of=lambda y: (y * y).sum()):
    """Results, gradient and the generator's state: of PyTorch's dropout, and of ours."""
    found = []
    for drop in (functional.dropout, run):
        torch.manual_seed(11)
        torch.rand(odd)
        leaf = x.detach().clone().requires_grad_()
        y = drop(leaf, p)
        gradient = torch.autograd.grad(of(y), leaf)[0] if y.numel() else y
        found.append((y, gradient, torch.get_rng_state(), torch.randn(3)))
    return found


def same_bits(a, b):
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [0, 1, 4095, 4096, 4097, 30_001])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.999, 1.0])
@pytest.mark.parametrize("odd", [0, 1, 624, 1247])
def test_the_bits_are_pytorchs(dtype, n, p, odd):
    x = torch.randn(n, dtype=dtype)
    if n > 9:
        x[:9] = torch.tensor([0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-40, -1e-40, 3e38, 1])
    for stock, own in zip(*both(x, p, odd), strict=True):
        assert same_bits(stock, own)


@ours
def test_they_are_drawn_by_the_operator():
    """As is every size from 4096 on; on several threads too."""
    x = torch.randn(70, 9, 200, dtype=torch.float32)
    assert _is_ours(x, 0.3)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for stock, own in zip(*both(x, 0.3), strict=True):
                assert same_bits(stock, own)
    finally:
        torch.set_num_threads(before)


@ours
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.transpose(0, 1),
        lambda x: x.permute(2, 0, 3, 1),
        lambda x: x.unsqueeze(2).transpose(1, 2).transpose(0, 3),
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x.flatten(1).t(),
    ],
)
def test_numbers_are_drawn_in_the_order_of_memory(view, dtype):
    """As behind a batch_first layer, whose output is a transposed view."""
    x = view(torch.randn(5, 24, 7, 10, dtype=dtype))
    assert not x.is_contiguous() and _is_ours(x, 0.3)
    (stock, *others), (own, *found) = both(x, 0.3)
    assert same_bits(stock.contiguous(), own.contiguous()) and strides(own) == strides(stock)
    for one, other in zip(others, found, strict=True):
        assert same_bits(one.contiguous(), other.contiguous())


def strides(x):
    """Of the dimensions that have any."""
    return [stride for stride, size in zip(x.stride(), x.shape) if size > 1]


def test_random_sequences_of_draws():
    """Between draws of other kinds, which leave the generator anywhere in its 624 words."""
    choice = torch.Generator().manual_seed(5)

    def some(n):
        return int(torch.randint(n, (), generator=choice))

    plan = [(some(2000), some(9000), (1 + some(998)) / 1000) for _ in range(300)]
    found = []
    for drop in (functional.dropout, run):
        torch.manual_seed(3)
        results = []
        for others, n, p in plan:
            results += [torch.rand(others), torch.randn(others % 7), drop(torch.ones(n), p)]
        found.append(torch.cat(results))
    assert torch.equal(*found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_second_derivatives(dtype):
    x = torch.randn(5000, dtype=dtype, requires_grad=True)
    found = []
    for drop in (functional.dropout, run):
        torch.manual_seed(2)
        (g,) = torch.autograd.grad((drop(x, 0.4) ** 3).sum(), x, create_graph=True)
        found.append(torch.autograd.grad((g**2).sum(), x)[0])
    assert torch.equal(*found)


def test_gradients_of_a_batch_of_cotangents():
    x = torch.randn(4096, requires_grad=True)
    cotangents = torch.randn(3, 4096)
    found = []
    for drop in (functional.dropout, run):
        torch.manual_seed(2)
        y = drop(x, 0.4)
        found += torch.autograd.grad(y, x, cotangents, is_grads_batched=True)
    assert torch.equal(*found)


def test_under_checkpointing_the_mask_is_drawn_again():
    x = torch.randn(8000, requires_grad=True)
    for reentrant in (False, True):
        torch.manual_seed(0)
        (plain,) = torch.autograd.grad((run(x, 0.5) ** 2).sum(), x)
        torch.manual_seed(0)
        y = torch.utils.checkpoint.checkpoint(lambda t: run(t, 0.5), x, use_reentrant=reentrant)
        x.grad = None
        (y**2).sum().backward()
        assert torch.equal(x.grad, plain)


@ours
def test_numbers_that_another_thread_draws_meanwhile_are_not_drawn_twice(monkeypatch):
    # (ops.dropout is the function, which hides the module of its name.)
    module = __import__("sys").modules["bppsa_lightning.ops.dropout"]
    calls = []

    def interrupted(state, size, p):
        mask = draw(state, size, p)
        if not calls:
            calls.append(torch.rand(5))  # as of another thread
        return mask

    monkeypatch.setattr(module, "_draw", interrupted)
    x = torch.ones(5000)
    torch.manual_seed(1)
    own = run(x, 0.5)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(5), calls[0])
    assert torch.equal(functional.dropout(x, 0.5), own)


@ours
def test_beside_a_thread_that_never_stops_drawing(monkeypatch):
    module = __import__("sys").modules["bppsa_lightning.ops.dropout"]

    def interrupted(state, size, p):
        torch.rand(5)
        return draw(state, size, p)

    monkeypatch.setattr(module, "_draw", interrupted)
    torch.manual_seed(1)
    own = run(torch.ones(5000), 0.5)
    torch.manual_seed(1)
    torch.rand(5), torch.rand(5), torch.rand(5)
    assert torch.equal(functional.dropout(torch.ones(5000), 0.5), own)


@pytest.mark.parametrize(
    "x",
    [
        torch.randn(64, 300)[:, :200],
        torch.randn(64, 1).expand(64, 99),
        torch.randn(9000)[::2],
        torch.randn(9000, dtype=torch.bfloat16),
        torch.randn(9000, dtype=torch.float16),
    ],
    ids=["parts of rows", "one for many", "strided", "bfloat16", "float16"],
)
def test_what_is_left_to_pytorch(x):
    assert not _is_ours(x, 0.5)
    for stock, own in zip(*both(x, 0.5, of=lambda y: y.abs().sum()), strict=True):
        assert torch.equal(stock, own)


@pytest.mark.filterwarnings(
    "ignore:`torch.jit:FutureWarning", "ignore:`torch.jit:DeprecationWarning"
)
def test_under_transforms_and_modes_it_is_pytorchs():
    x = torch.randn(3, 5000)
    rows = torch.func.vmap(lambda t: run(t, 0.5), randomness="different")(x)
    assert not torch.equal(rows[0] == 0, rows[1] == 0)
    _, tangent = torch.func.jvp(lambda t: run(t, 0.5), (x,), (x,))
    assert set((tangent / x).round(decimals=4).unique().tolist()) == {0.0, 2.0}
    with FakeTensorMode() as mode:
        assert run(mode.from_tensor(x), 0.5).shape == x.shape
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda t: run(t, 0.5))(x)
    assert "bppsa" not in graph.code
    traced = torch.jit.trace(lambda t: run(t, 0.5), x, check_trace=False)
    assert "aten::dropout" in str(traced.graph)


@pytest.mark.slow
def test_compiled_whole():
    compiled = torch.compile(lambda t: run(t, 0.5), fullgraph=True, backend="aot_eager")
    share = (compiled(torch.ones(9000)) == 0).float().mean()
    assert 0.45 < share < 0.55


def test_where_pytorch_draws_other_numbers_it_is_left_to_it(monkeypatch):
    module = __import__("sys").modules["bppsa_lightning.ops.dropout"]
    monkeypatch.setattr(module, "draws_as_torch", lambda: False)
    assert not _is_ours(torch.ones(9000), 0.5)


@pytest.mark.parametrize("p", [-0.1, 1.1])
def test_a_wrong_probability_is_named(p):
    with pytest.raises(ValueError, match="dropout probability"):
        run(torch.ones(9000), p)


def test_what_is_no_tensor_is_named():
    with pytest.raises(TypeError, match="list"):
        run([1.0] * 9000, 0.5)


@pytest.mark.parametrize("cell", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_between_attached_layers_the_noise_is_pytorchs(cell, batch_first):
    torch.manual_seed(0)
    stock = getattr(torch.nn, cell)(
        6, 20, 3, dropout=0.3, bidirectional=True, batch_first=batch_first, dtype=torch.float64
    )
    model = torch.nn.Sequential(stock)
    assert len(bl.attach(model)) == 1
    x = torch.randn(16, 12, 6, dtype=torch.float64)
    torch.manual_seed(7)
    y, _ = stock(x)
    gradients = torch.autograd.grad(y.square().sum(), list(stock.parameters()))
    after = torch.get_rng_state()
    bl.detach(model)
    torch.manual_seed(7)
    want, _ = stock(x)
    torch.testing.assert_close(y, want)
    wanted = torch.autograd.grad(want.square().sum(), list(stock.parameters()))
    torch.testing.assert_close(gradients, wanted)
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (torch.get_rng_state()[:100], "state: wanted that of a generator"),
        (torch.get_rng_state().int(), "state: wanted that of a generator"),
        (torch.get_rng_state().fill_(255), "state: it is no generator's"),
        (torch.get_rng_state().zero_(), "state: it is no generator's"),
    ],
    ids=["short", "int", "255", "0"],
)
def test_a_state_that_is_none_is_named(state, message):
    with pytest.raises(RuntimeError, match=message):
        draw(state, [3], 0.5)


def test_wrong_operands_are_named():
    x, mask = torch.ones(4), torch.ones(4, dtype=torch.bool)
    masked = torch.ops.bppsa.masked.default
    for arguments, message in (
        ((x, mask[:3], 2.0), "mask: wanted a contiguous bool"),
        ((x, x, 2.0), "mask: wanted a contiguous bool"),
        ((torch.ones(8)[::2], mask, 2.0), "x: wanted a contiguous tensor"),
        ((x.half(), mask, 2.0), "x: wanted float32 or float64"),
    ):
        with pytest.raises(RuntimeError, match=message):
            masked(*arguments)
    with pytest.raises(RuntimeError, match=r"p: found 1\.5"):
        draw(torch.get_rng_state(), [3], 1.5)


@ours
def test_the_result_may_be_changed_in_place():
    """A view that an operator made inside could not."""
    x = torch.randn(80, 60, requires_grad=True)
    y = run(x, 0.5)
    assert _is_ours(x, 0.5) and not y._is_view()
    found = []
    for drop in (functional.dropout, run):
        torch.manual_seed(0)
        y = drop(x, 0.5)
        y.mul_(2)[0].zero_()
        found.append(torch.autograd.grad(y.sum(), x)[0])
    assert torch.equal(*found)


@ours
@pytest.mark.parametrize("n", [4096, 50_000])
def test_threads_that_draw_at_the_same_time_draw_different_numbers(n):
    x = torch.ones(n)

    def draws(drop, threads, calls=200):
        torch.manual_seed(0)
        masks = [[] for _ in range(threads)]

        def work(mine):
            for _ in range(calls // threads):
                mine.append(bytes(drop(x, 0.5)[:256].bool().numpy()))

        running = [threading.Thread(target=work, args=(mine,)) for mine in masks]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return sorted(sum(masks, [])), torch.get_rng_state()

    (alone, state), (together, after) = draws(functional.dropout, 1), draws(run, 4)
    assert together == alone and torch.equal(after, state)


@ours
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_process_that_forks_while_another_thread_draws():
    module = __import__("sys").modules["bppsa_lightning.ops.dropout"]
    with module._drawing:
        child = os.fork()
        if not child:
            signal.alarm(20)  # in place of waiting forever
            run(torch.ones(5000), 0.5)
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nested.nested_tensor([torch.randn(64, 64), torch.randn(64, 64)]),
        lambda: torch._efficientzerotensor((64, 64)),
        lambda: torch.eye(64).repeat(2, 2).to_sparse_csr(),
    ],
    ids=["nested", "zeros", "sparse"],
)
def test_tensors_that_are_no_numbers_in_a_row_are_pytorchs(make):
    assert not _is_ours(make(), 0.5)

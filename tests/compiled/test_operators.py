"""bl.ops in a compiled function: one graph for all sizes, planned when it runs; bl.scan."""

import pytest
import torch
import torch.fx.experimental._config

import bppsa_lightning as bl


def weights(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return 0.3 * torch.randn(*shape, dtype=torch.float64, generator=generator)


W, U = weights(24, 3).requires_grad_(), weights(24, 8).requires_grad_()


def both(x):
    return torch.cat([x[:1], x]) @ W[:8].T


CALLS = {
    "gru": lambda x: bl.ops.gru(x, None, W, U)[0],
    "reverse_scan": lambda x: bl.ops.reverse_scan(U[:8].expand(*x.shape[:2], 8, 8), both(x)),
    "diagonal_scan": lambda x: bl.ops.diagonal_scan((x @ W[:8].T).sigmoid(), both(x)),
}


@pytest.mark.parametrize("name", CALLS)
def test_one_graph_for_all_sizes(name):
    call = CALLS[name]
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    options = torch._dynamo.config.patch(error_on_recompile=True)
    with options, torch.fx.experimental._config.patch(use_duck_shape=False):
        for T, B in ((9, 5), (12, 5), (14, 7)):
            x = weights(T, B, 3)
            found, wanted = compiled(x), call(x)
            torch.testing.assert_close(found, wanted)
            leaves = (W,) if name == "diagonal_scan" else (W, U)
            pairs = (torch.autograd.grad(y.square().sum(), leaves) for y in (found, wanted))
            torch.testing.assert_close(*pairs)


@pytest.mark.parametrize("name, dims", [("reverse_scan", (3, 3)), ("diagonal_scan", (3,))])
def test_planned_scans_follow_torchs_rules(name, dims):
    jacobians, grad = weights(4, 2, *dims).requires_grad_(), weights(5, 2, 3).requires_grad_()
    operator = getattr(torch.ops.bppsa, f"planned_{name}").default
    torch.library.opcheck(operator, (jacobians, grad, "auto", None, False))


def test_planned_backward_follows_torchs_rules():
    tensors = weights(4, 2, 3), None, None, W.detach(), U.detach(), None, None, None
    output, _, _, kept = torch.ops.bppsa.recurrent.default("gru", *tensors, False, 2, "auto")
    arguments = "gru", output.cos(), None, None, output, kept, *tensors, False, "auto", 0b11001
    operator = torch.ops.bppsa.planned_recurrent_backward.default
    torch.library.opcheck(operator, arguments, test_utils=("test_schema", "test_faketensor"))


def test_bl_scan_runs_beside_the_graph():
    def step(h, x):
        h = torch.tanh(h @ U[:8].T + x @ W[:8].T)
        return h, h

    def call(x):
        return bl.scan(step, x.new_zeros(x.shape[1], 8), x * 2)[1].sin()

    torch._dynamo.reset()
    x = weights(9, 5, 3)
    torch.testing.assert_close(torch.compile(call, backend="aot_eager")(x), call(x))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="scan"):
        torch.compile(call, backend="aot_eager", fullgraph=True)(x)

"""Attached recurrent layers of every cell: long, repeated, copied, changed, compiled."""

import copy
import pickle

import pytest
import torch
from support.cases import relative_error
from support.recurrent_modules import (
    CELLS,
    F32,
    Summed,
    assert_close,
    assert_same,
    assert_scanned,
    pack,
    pair,
    results,
    tensor,
)
from torch import nn
from torch.nn.utils import parametrizations, prune

pytestmark = pytest.mark.usefixtures("accelerate_everything")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("cell", CELLS)
def test_an_empty_batch(cell, dtype):
    """Its incoming gradient is an expanded number, which calls itself contiguous."""
    _, module = pair(cell, dtype, num_layers=2)
    x = torch.empty(5, 0, 3, dtype=dtype, requires_grad=True)
    output, _ = module(x)
    output.sum().backward()
    assert x.grad.shape == (5, 0, 3)
    assert all(p.grad is not None and not p.grad.any() for p in module.parameters())
    assert_scanned(module)


@pytest.mark.parametrize("cell", ["RNN-tanh", "GRU", "LSTM"])
def test_more_steps_than_a_grid_has_blocks(cell):
    """PyTorch's own backward takes minutes there: the judge of gradients is the chain in parts."""
    stock, module = pair(cell, F32)
    x = tensor(65_537, 1, 3).float()
    output, states = module(x)
    with torch.no_grad():
        assert relative_error(output, stock(x)[0]) < 1e-4
    (output.mean() + output[-1].sum()).backward()
    whole = {name: p.grad.clone() for name, p in module.named_parameters()}
    module.zero_grad()
    outputs, states = [], None
    for part in x.split(30_000):
        output, states = module(part, states)
        outputs.append(output)
    (torch.cat(outputs).mean() + output[-1].sum()).backward()
    assert_close(whole, {name: p.grad for name, p in module.named_parameters()}, 1e-3)
    assert_scanned(module, calls=4)


@pytest.mark.parametrize("cell", CELLS)
def test_called_several_times_in_one_step(cell):
    stock, module = pair(cell, bidirectional=True, num_layers=2)

    def run(m):
        first, states = m(tensor(6, 2, 3))
        second, _ = m(tensor(4, 2, 3), states)
        third, _ = m(pack(tensor(4, 2, 3), [4, 2]))
        (first.sum() + second.square().sum() + third.data.sin().sum()).backward()
        return {name: p.grad for name, p in m.named_parameters()}

    assert_close(run(module), run(stock))
    assert_scanned(module, calls=3)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_derivatives_of_derivatives(cell, packed):
    def run(m):
        x = tensor(5, 3, 3).requires_grad_()
        output, states = m(pack(x, [5, 2, 1]) if packed else x)
        output = output.data if packed else output
        states = states if isinstance(states, tuple) else (states,)
        loss = output.square().sum() + sum(s.sin().sum() for s in states)
        inner = [x, m.weight_hh_l0]
        penalty = sum(g.square().sum() for g in torch.autograd.grad(loss, inner, create_graph=True))
        (loss + penalty).backward()
        return {"x": x.grad} | {name: p.grad for name, p in m.named_parameters()}

    stock, module = pair(cell, bidirectional=True)
    assert_close(run(module), run(stock))
    assert_scanned(module)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_without_gradients(cell, packed, mode):
    stock, module = pair(cell, bidirectional=True, num_layers=2)
    x = pack(tensor(6, 3, 3), [6, 6, 2]) if packed else tensor(6, 3, 3)
    with mode():
        assert_close(results(module, x, None, {}), results(stock, x, None, {}))
    assert_scanned(module)


CHANGES = {
    "pruned": lambda m: prune.l1_unstructured(m, "weight_hh_l1_reverse", 0.5),
    "weight norm": lambda m: parametrizations.weight_norm(m, "weight_ih_l1"),
    "orthogonal": lambda m: parametrizations.orthogonal(m, "weight_hh_l0_reverse"),
    "replaced": lambda m: setattr(m, "bias_hh_l0", nn.Parameter(2 * m.bias_hh_l0.detach())),
    "assigned": lambda m: m.load_state_dict(
        {name: 2 * value for name, value in m.state_dict().items()}, assign=True
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("cell", CELLS)
def test_weights_that_change_after_attach(cell, change):
    stock, module = pair(cell, bidirectional=True, num_layers=2)
    for m in (stock, module):
        torch.manual_seed(3)
        CHANGES[change](m)
    assert_same(stock, module, tensor(6, 3, 3))


@pytest.mark.parametrize("how", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
@pytest.mark.parametrize("cell", CELLS)
def test_copies_are_attached_on_their_own(cell, how):
    stock, module = pair(cell, num_layers=2, algorithm="chunked")
    other = how(module)
    assert other.forward is not module.forward and other.forward.module is other
    assert other.forward.algorithm == "chunked"
    assert_same(stock, other, tensor(6, 3, 3))
    assert module.forward.calls == 0 and module.weight_hh_l0.grad is None


@pytest.mark.parametrize("cell", CELLS)
def test_compiled_without_a_break(cell):
    """Given leave to see recurrent layers, torch.compile makes one graph of a model."""
    stock, module = (Summed(m) for m in pair(cell, num_layers=2, bidirectional=True))
    with torch._dynamo.config.patch(allow_rnn=True):
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        compiled(tensor(6, 3, 3)).backward()
    stock(tensor(6, 3, 3)).backward()
    found, wanted = ({n: p.grad for n, p in m.named_parameters()} for m in (module, stock))
    assert_close(found, wanted)
    assert module.layer.forward.shape == (6, 3, 4)


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("sees_layers", [True, False])
def test_compiled_for_changing_sizes_it_compiles_once_or_twice(dynamic, sees_layers):
    """With leave to see recurrent layers, or without, when the call is left out of the graph."""
    _, module = pair("GRU")
    model, graphs = Summed(module), []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph.forward

    with torch._dynamo.config.patch(allow_rnn=sees_layers, error_on_recompile=dynamic is True):
        torch._dynamo.reset()
        compiled = torch.compile(model, dynamic=dynamic, backend=backend)
        for T in (5, 9, 12, 20, 33, 50):
            for B in (2, 3, 4):
                compiled(tensor(T, B, 3)).backward()
    assert len(graphs) <= 3
    assert module.forward.fallback_calls == 0 and module.forward.shape == (50, 4, 4)

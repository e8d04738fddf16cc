"""Every option of nn.RNN, nn.GRU and nn.LSTM, attached, against PyTorch's own.

Options meet in pairs: each value of each option with each value of every other, in as few cases
as a greedy choice finds.
"""

import copy

import pytest
import torch
from support.cases import relative_error
from support.recurrent_modules import (
    OPTIONS,
    assert_close,
    assert_scanned,
    build,
    outcome,
    pairwise,
    scanned,
)

import bppsa_lightning as bl

pytestmark = pytest.mark.usefixtures("accelerate_everything")


ids = pytest.mark.parametrize(
    "case", pairwise(OPTIONS), ids=lambda c: "-".join(map(str, c.values()))
)


@ids
@pytest.mark.filterwarnings("ignore:dropout option adds dropout after all but last:UserWarning")
def test_options_meet(case):
    stock = build(case)
    module = scanned(stock)
    assert_close(outcome(case, module), outcome(case, stock))
    assert_scanned(module)


@ids
@pytest.mark.filterwarnings("ignore:dropout option adds dropout after all but last:UserWarning")
def test_float32_is_as_close_to_the_truth_as_pytorch(case):
    stock = build(case)
    truth = outcome(case, copy.deepcopy(stock))
    module = scanned(stock)
    wanted, found = (outcome(case, m, torch.float32) for m in (stock, module))
    assert_scanned(module)
    for name, value in truth.items():
        if value is None or wanted[name] is None:
            continue
        assert found[name].dtype == torch.float32
        allowed = 2 * relative_error(wanted[name], value) + 1e-6
        assert relative_error(found[name], value) <= allowed, name


def test_a_nonlinearity_that_is_changed_is_pytorchs():
    stock = torch.nn.RNN(3, 4).double()
    ours = copy.deepcopy(stock)
    bl.attach(ours, "linear")
    x = torch.randn(9, 2, 3, dtype=torch.float64)
    for mode in ("RNN_TANH", "RNN_RELU", "RNN_TANH"):
        stock.mode = ours.mode = mode
        assert relative_error(ours(x)[0], stock(x)[0]) < 1e-12
    assert (ours.forward.calls, ours.forward.fallback_calls) == (2, 1)


@pytest.mark.parametrize("call", [{"inputs": None}, {}, {"h0": None}])
def test_a_call_by_other_arguments_names_forward_as_pytorchs_error_does(call):
    def error(layer):
        with pytest.raises(TypeError) as found:
            layer(**call)
        return str(found.value).removeprefix("LSTM.")

    layer = torch.nn.LSTM(3, 4)
    wanted = error(layer)
    bl.attach(layer)
    assert error(layer) == wanted and wanted.startswith("forward() ")

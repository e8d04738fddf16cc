"""Wrong calls of bl.ops.rnn, gru and lstm name argument, found and wanted."""

import pytest
import torch
from support.recurrent_cases import SIZES, each_cell, spread
from support.recurrent_layers import (
    CELLS,
    NAMES,
    draw,
    ours,
)

import bppsa_lightning as bl

WRONG = {  # the argument, what it is changed to, the error
    "no tensor": ("x", lambda t: [1.0], TypeError, "x: found list, wanted a torch.Tensor"),
    "two dimensions": ("x", lambda t: t[0], ValueError, r"x: found shape \(5, 3\), wanted"),
    "no steps": ("x", lambda t: t[:0], ValueError, "x: found .* with T >= 1"),
    "integers": ("x", lambda t: t.long(), TypeError, "x: found dtype torch.int64"),
    "other dtype": ("w_ih", lambda t: t.float(), TypeError, "w_ih: found dtype torch.float32"),
    "other dtype of w_hh": ("w_hh", lambda t: t.float(), TypeError, "w_hh: found dtype"),
    "no weights": ("w_hh", lambda t: None, TypeError, "w_hh: found NoneType, wanted a torch"),
    "h0 of one sample": ("h0", lambda t: t[:1], ValueError, "h0: found shape"),
    "a wide h0": ("h0", lambda t: torch.cat([t, t], 1), ValueError, "h0: found shape"),
    "h0 on another device": ("h0", lambda t: t.to("meta"), ValueError, "h0: found on meta"),
    "a short bias": ("b_ih", lambda t: t[:-1], ValueError, "b_ih: found shape"),
    "a bias as a list": ("b_hh", lambda t: t.tolist(), TypeError, "b_hh: found list"),
    "narrow w_ih": ("w_ih", lambda t: t[:, :2], ValueError, "w_ih: found shape"),
    "w_hh of one dimension": ("w_hh", lambda t: t[0], ValueError, "w_hh: found shape"),
    "w_hh of no units": ("w_hh", lambda t: t[:0], ValueError, "w_hh: found shape"),
    "w_hh of other rows": ("w_hh", lambda t: t[:-1], ValueError, "w_hh: found shape|w_hr"),
}


@each_cell
@pytest.mark.parametrize("name, change, error, message", WRONG.values(), ids=WRONG.keys())
def test_wrong_calls_name_argument_found_and_wanted(cell, name, change, error, message):
    tensors = draw(cell, SIZES["some"])
    with pytest.raises(error, match=message):
        ours(cell, tensors | {name: change(tensors[name])})


@each_cell
def test_an_input_that_is_not_of_the_gates_without_w_ih(cell):
    tensors = draw(cell, SIZES["some"]) | {"w_ih": None}
    T, B, I = tensors["x"].shape
    rows = len(tensors["w_hh"])
    with pytest.raises(ValueError, match=rf"x: found shape \({T}, {B}, {I}\), wanted "
                       rf"\({T}, {B}, {rows}\), as w_ih is None"):  # fmt: skip
        ours(cell, tensors)


def test_w_ih_that_is_no_tensor():
    tensors = draw(CELLS["GRU"], SIZES["some"]) | {"w_ih": [1.0]}
    with pytest.raises(TypeError, match="w_ih: found list, wanted a torch.Tensor"):
        ours(CELLS["GRU"], tensors)


def test_wrong_settings_name_argument_found_and_wanted():
    x, h0, w_ih, w_hh, *_ = draw(CELLS["RNN-tanh"], SIZES["some"]).values()
    with pytest.raises(ValueError, match="nonlinearity: found 'gelu', wanted"):
        bl.ops.rnn(x, h0, w_ih, w_hh, nonlinearity="gelu")
    with pytest.raises(ValueError, match="algorithm: found 'fast', wanted"):
        bl.ops.rnn(x, h0, w_ih, w_hh, algorithm="fast")
    with pytest.raises(TypeError, match="algorithm: found int, wanted str"):
        bl.ops.rnn(x, h0, w_ih, w_hh, algorithm=3)


@pytest.mark.parametrize("name", ["c0", "w_hr"])
def test_wrong_calls_of_an_lstm(name):
    cell = CELLS["LSTM projected"]
    tensors = draw(cell, SIZES["some"])
    for change, error, said in (
        (lambda t: t[:-1], ValueError, "found shape"),
        (lambda t: t.float(), TypeError, "found dtype torch.float32"),
        (lambda t: t.to("meta"), ValueError, "found on meta"),
        (lambda t: 3.0, TypeError, "found float"),
    ):
        with pytest.raises(error, match=f"{name}: {said}"):
            ours(cell, tensors | {name: change(tensors[name])})
    w_hr = tensors.pop("w_hr")
    with pytest.raises(ValueError, match=r"w_hh: found shape \(16, 2\), wanted \(16, 4\)"):
        ours(cell, tensors)
    # Once, the kernel took an empty projection for none, and wrote the states over c_n.
    nothing = tensors | {"h0": None, "w_hh": tensors["w_hh"][:, :0], "w_hr": w_hr[:0]}
    with pytest.raises(ValueError, match=r"w_hh: found shape \(16, 0\), wanted .* P >= 1"):
        ours(cell, nothing)


@each_cell
def test_kernel_arguments_are_checked_below_python_too(cell):
    tensors = draw(cell, SIZES["some"])

    def forward(keep=2, **changed):
        operands = [{**tensors, **changed}.get(name) for name in NAMES]
        return torch.ops.bppsa.recurrent(cell.name, *operands, False, keep, "auto")

    h0, w_hh, b_ih, w_ih = (tensors[name] for name in ("h0", "w_hh", "b_ih", "w_ih"))
    for changed in (
        {"h0": h0[:1]},
        {"w_hh": w_hh.float()},
        {"b_ih": b_ih[:1]},
        {"w_ih": spread(w_ih)},
    ):
        with pytest.raises(RuntimeError, match=f"{next(iter(changed))}: wanted"):
            forward(**changed)
    with pytest.raises(RuntimeError, match="keep: found 3"):
        forward(keep=3)
    output, _, _, kept = forward()
    operands = [tensors.get(name) for name in NAMES]
    rest = (output, kept, *operands, False)
    backward = torch.ops.bppsa.recurrent_backward
    with pytest.raises(RuntimeError, match="grad_output: wanted"):
        backward(cell.name, output[1:], None, None, *rest, "linear", 0, 0, 1)
    with pytest.raises(RuntimeError, match="algorithm: found 'fast'"):
        backward(cell.name, output, None, None, *rest, "fast", 0, 0, 1)
    with pytest.raises(RuntimeError, match="chunk: found 0"):
        backward(cell.name, output, None, None, *rest, "chunked", 0, 0, 1)

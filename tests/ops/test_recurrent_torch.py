"""bl.ops.rnn, gru and lstm in torch's machinery: opcheck, torch.compile, threads, the log."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support.helpers import assert_close, assert_identical
from support.recurrent_cases import SIZES, each_algorithm, each_cell, each_keep
from support.recurrent_layers import (
    CELLS,
    NAMES,
    cotangents,
    draw,
    ours,
    results,
)

import bppsa_lightning as bl


@each_cell
@each_keep
def test_opcheck_of_the_forward(cell, keep):
    tensors = draw(cell, (5, 2, 3, 4))
    operands = [tensors[name].requires_grad_() if name in tensors else None for name in NAMES]
    without = [None if name in ("h0", "c0", "b_ih") else t for name, t in zip(NAMES, operands)]
    forward = torch.ops.bppsa.recurrent.default
    torch.library.opcheck(forward, (cell.name, *operands, False, keep, "auto"))
    torch.library.opcheck(forward, (cell.name, *without, True, keep, "linear"))


@each_cell
@each_keep
def test_opcheck_of_the_backward(cell, keep):
    tensors = draw(cell, (5, 2, 3, 4))
    operands = [tensors.get(name) for name in NAMES]
    output, _, _, kept = torch.ops.bppsa.recurrent(cell.name, *operands, False, keep, "auto")
    incoming = [cotangents(cell, tensors).get(name) for name in ("output", "h_n", "c_n")]
    everything = sum(1 << i for i, t in enumerate(operands) if t is not None)
    for given, wanted in ((incoming, everything), ([incoming[0], None, None], 0b11001)):
        arguments = (*given, output, kept, *operands, False, "chunked", 2, 0, wanted)
        torch.library.opcheck(torch.ops.bppsa.recurrent_backward.default, (cell.name, *arguments))


@each_cell
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiles_whole(cell, dynamic):
    compiles_whole(cell, dynamic, "aot_eager")


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_compiles_whole_by_inductor(dynamic):
    compiles_whole(CELLS["LSTM projected"], dynamic, "inductor")


def compiles_whole(cell, dynamic, backend):
    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, dynamic=dynamic, backend=backend)
    for T in (5, 9):
        tensors = draw(cell, (T, 2, 3, 4))
        incoming = cotangents(cell, tensors)
        wanted = results(ours, cell, tensors, incoming)
        assert_close(results(compiled, cell, tensors, incoming), wanted, 1e-12)


@each_cell
@each_algorithm
def test_the_same_bits_every_time_and_in_two_threads(cell, algorithm):
    def run(_):
        tensors = draw(cell, (100, 16, 2, 20), torch.float32)
        return results(ours, cell, tensors, cotangents(cell, tensors), algorithm=algorithm)

    first = run(0)
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(run, range(4)):
            assert_identical(found, first)


@each_cell
def test_logs_each_backward(cell):
    tensors = draw(cell, SIZES["some"])
    P = tensors["w_hh"].shape[1]
    with bl.ops.scan_log() as log:
        results(ours, cell, tensors, cotangents(cell, tensors), algorithm="chunked")
    ((name, size, plan),) = log.scans
    assert CELLS[name].name == cell.name and size == (7, 5, P) and plan.algorithm == "chunked"

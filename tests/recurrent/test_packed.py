"""Samples of different lengths: a `PackedSequence` in and out, as in PyTorch.

T steps, B batch.
"""

import numpy as np
import pytest
import torch
from support.cases import relative_error
from support.recurrent_modules import (
    CELLS,
    assert_close,
    assert_same,
    assert_scanned,
    pack,
    pair,
    results,
    tensor,
)
from torch.nn.utils import rnn as rnn_utils
from torch.utils.flop_counter import FlopCounterMode

import bppsa_lightning as bl
from bppsa_lightning import ops
from bppsa_lightning.recurrent import packed, rows

pytestmark = pytest.mark.usefixtures("accelerate_everything")


@pytest.mark.parametrize("algorithm", ["auto", "linear", "chunked", "blelloch"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_every_algorithm_on_sequences_of_any_length(cell, bidirectional, algorithm):
    stock, module = pair(cell, algorithm=algorithm, num_layers=2, bidirectional=bidirectional)
    lengths = [5, 33, 1, 18, 33]
    assert_same(stock, module, pack(tensor(33, 5, 3), lengths, enforce_sorted=False))


@pytest.mark.parametrize("cell", CELLS)
def test_a_packed_sequence_comes_back_as_it_went_in(cell):
    sequences = [tensor(length, 3, seed=length) for length in (4, 7, 1, 7)]
    stock, module = pair(cell, bidirectional=True)
    x = rnn_utils.pack_sequence(sequences, enforce_sorted=False)
    (wanted, _), (found, _) = stock(x), module(x)
    assert type(found) is rnn_utils.PackedSequence
    for field in ("batch_sizes", "sorted_indices", "unsorted_indices"):
        assert torch.equal(getattr(found, field), getattr(wanted, field)), field
    unpacked = [dict(enumerate(rnn_utils.unpack_sequence(o))) for o in (found, wanted)]
    assert_close(*unpacked)


def test_a_packed_sequence_of_the_user_s_own_making():
    stock, module = pair(num_layers=2, bidirectional=True)
    x = rnn_utils.PackedSequence(tensor(6, 3), torch.tensor([3, 2, 1]))
    assert_same(stock, module, x)
    assert module.forward.shape == (3, 3, 4)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("short", [[3, 2], [12] * 5 + [3, 2] * 4], ids=["few", "many"])
def test_nothing_comes_from_behind_the_end_of_a_sequence(bidirectional, waits, short, monkeypatch):
    """Behind the short sample's end its relu states would leave float32's range.

    Then its scan is done again; but not where to look would be to wait, as on a GPU.
    """
    monkeypatch.setattr(packed, "check_syncs", lambda device: waits)
    stock, module = pair("RNN-relu", torch.float32, bias=False, bidirectional=bidirectional)
    for rnn in (stock, module):
        for name, parameter in rnn.named_parameters():
            if "weight_hh" in name:
                parameter.data.copy_(4 * torch.ones(4, 4))
    x = tensor(300, 1 + len(short), 3).float()
    x[:, 0] = 0  # the long sample rests
    x = pack(x, [300, *short], enforce_sorted=False)
    assert all(v.isfinite().all() for v in results(stock, x, None, {}).values())
    stock.zero_grad()
    assert_same(stock, module, x, tolerance=1e-5)


def test_a_held_cell_is_exact_however_long():
    """c_n of a short sample crosses the padding of a long one, and so does its gradient."""
    stock, module = pair(bidirectional=True, bias=False)
    assert_same(stock, module, pack(tensor(500, 3, 3), [500, 499, 1]))
    stock, module = pair(dtype=torch.float32)
    x = pack(tensor(500, 2, 3).float(), [500, 1])
    wanted, found = stock(x)[1][1], module(x)[1][1]
    assert relative_error(found[0, 1], wanted[0, 1]) < 1e-6


@pytest.mark.parametrize("given", [False, True])
def test_few_long_sequences_among_many_short_ones(given):
    """More than padding is worth: samples are scanned in groups."""
    stock, module = pair(num_layers=2, bidirectional=True)
    lengths = [1] * 20 + [200] + [40, 41] + [2] * 20
    hx = (tensor(4, 43, 4), tensor(4, 43, 4, seed=2)) if given else None
    leaves = {str(i): s.requires_grad_() for i, s in enumerate(hx or ())}
    wanted = results(stock, pack(tensor(200, 43, 3), lengths, enforce_sorted=False), hx, leaves)
    wanted = {k: v.clone() for k, v in wanted.items()}
    for state in leaves.values():
        state.grad = None
    x = pack(tensor(200, 43, 3), lengths, enforce_sorted=False)
    with bl.ops.scan_log() as log:
        assert_close(results(module, x, hx, leaves), wanted)
    assert_scanned(module)
    steps = [(T, B) for _, (T, B, _), _ in log.scans]
    assert sorted(set(steps)) == [(2, 40), (41, 2), (200, 1)] and len(steps) == 12


@pytest.fixture
def ragged_calls(monkeypatch):
    """What kernels were told of samples' ends."""
    calls = []

    def told(run):
        def spy(*arguments, **named):
            calls.append(named.get("ragged") or (arguments[5] if len(arguments) > 5 else None))
            return run(*arguments, **named)

        return spy

    monkeypatch.setattr(ops, "run_layer", told(ops.run_layer))
    monkeypatch.setattr(rows, "_LEAST_WORK", 1)
    return calls


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", CELLS)
def test_padding_of_many_samples_is_passed_over(cell, bidirectional, threads, ragged_calls):
    stock, module = pair(cell, num_layers=2, bidirectional=bidirectional)
    lengths = torch.randint(1, 60, (19,), generator=torch.Generator().manual_seed(2)).tolist()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_same(stock, module, pack(tensor(max(lengths), 19, 3), lengths, enforce_sorted=False))
    finally:
        torch.set_num_threads(before)
    assert ragged_calls and all(told is not None for told in ragged_calls)
    assert {told.groups for told in ragged_calls} == {threads}
    assert all(sorted(told.lengths.tolist()) == sorted(lengths) for told in ragged_calls)


@pytest.mark.parametrize("lengths", [[20] * 10 + [19] * 9, [20, 5, 3, 1]], ids=["alike", "few"])
def test_little_padding_or_few_samples_are_not_passed_over(lengths, ragged_calls):
    stock, module = pair("LSTM")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert_same(stock, module, pack(tensor(20, len(lengths), 3), lengths))
    finally:
        torch.set_num_threads(before)
    assert ragged_calls == [None] * len(ragged_calls)


def test_padding_is_passed_over_where_it_takes_longer_than_to_say_so():
    lengths, threads = np.array([40, 9, 8, 7, 1] * 10), torch.get_num_threads()
    lengths[::-1].sort()
    assert len(lengths) > 2 * threads
    saved = 40 * 50 - 10 * (40 + 16 + 8 + 8 + 8)
    assert not rows.passes_over(lengths, 0)
    assert not rows.passes_over(lengths, rows._LEAST_WORK // saved)
    assert rows.passes_over(lengths, rows._LEAST_WORK // saved + 1)


def test_modes_see_the_operator_that_they_know(ragged_calls):
    stock, module = pair("GRU")
    lengths = list(range(30, 11, -1))
    x = pack(tensor(30, 19, 3), lengths)
    with FlopCounterMode(display=False) as counter:
        module(x)
    assert counter.get_total_flops() > 0 and ragged_calls == [None]

"""Checks that several ranks make together: `python rank_checks.py RANKS CHECK …`.

T steps, B samples, H state, P ranks.
"""

import itertools
import os
import pickle
import signal
import sys
from copy import deepcopy
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import bppsa_lightning as bl
from bppsa_lightning import reference
from bppsa_lightning._replacement import replacement_of
from bppsa_lightning.ranks import DenseMaps, Exchange, Map, Spans, carry
from bppsa_lightning.recurrent.divided import DividedLayer
from support.cases import chain, relative_error
from support.exchange_checks import gathers, out_of_step, threads, wholes
from support.of_ranks import begin
from support.rank_cases import packed_span

__all__ = ["gathers", "out_of_step", "threads", "wholes"]  # to be named, too


def group():
    return dist.group.WORLD


def attached(kind, algorithm, sharded=False, name="layer"):
    torch.manual_seed(0)
    module = nn.ModuleDict({name: kind(2, 5)}).double()
    bl.attach(module, algorithm, group=group(), sharded=sharded)
    return module[name]


def rounds(rank, P):
    """The backward by a scan of maps takes no more than twice the logarithm of rounds."""
    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        layer = attached(kind, "blelloch")
        counts = replacement_of(layer, bl.Chain).divided.exchange.counts
        x = torch.randn(40, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        loss = layer(x)[0].pow(2).sum()
        before = counts.rounds
        loss.backward()
        most = 2 * (P - 1).bit_length()
        assert 0 < counts.rounds - before <= most, (counts, most)


def reverse_scan(rank, P):
    """Gradients, and theirs, are those of one process."""
    for algorithm in ("auto", "linear", "blelloch"):
        for lengths in ([4] * P, [0, 3] + [1] * (P - 2), [2] * (P - 1) + [0]):
            T = sum(lengths)
            jac_t, grad = chain(T, 2, 5, gain=0.9)
            own = Spans(lengths).of(rank)
            states = slice(own.start, own.stop + (rank == P - 1))
            J, u = jac_t[own].clone().requires_grad_(), grad[states].clone().requires_grad_()
            g = bl.ops.reverse_scan(J, u, algorithm, group=group())
            jac_t.requires_grad_(), grad.requires_grad_()
            wanted = reference.reverse_scan(jac_t, grad)
            assert relative_error(g, wanted[states]) < 1e-12
            weights = torch.linspace(-1, 1, wanted.numel(), dtype=torch.float64).view_as(wanted)
            (g * weights[states]).sum().backward()
            (wanted * weights).sum().backward()
            assert relative_error(u.grad, grad.grad[states]) < 1e-12
            assert relative_error(J.grad, jac_t.grad[own]) < 1e-12
    half = bl.ops.reverse_scan(J.detach().bfloat16(), u.detach().bfloat16(), group=group())
    assert half.dtype == torch.bfloat16


def unsound(rank, P):
    """A map that overflows is walked, by the ranks that it concerns."""
    exchange = Exchange(group())
    huge = torch.eye(2).mul(2.0**40).expand(1, 2, 2)
    b = torch.ones(1, 2)
    own = Map.of(torch.zeros(1, 2, 2) if exchange.is_last else huge, b)

    def pull(behind):
        left = own(behind)
        return left, left

    found, _ = carry(exchange, DenseMaps(own), own, torch.zeros_like(b), pull)
    wanted = b
    for _ in range(P - 1 - rank):
        wanted = wanted * 2.0**40 + 1
    assert torch.equal(found, wanted), (found, wanted)


def another_shape(rank, P):
    """One rank brings another batch: all say so, and which."""
    layer = attached(nn.GRU, "linear")
    x = torch.randn(40, 3 + (rank == 1), 2, dtype=torch.float64)
    try:
        layer(x)
    except ValueError as error:
        assert "layer: rank 1 of the chain brought its batch = 4, rank 0 3" in str(error), error
    else:
        raise AssertionError("no error")


def another_algorithm(rank, P):
    layer = attached(nn.RNN, "linear" if rank else "blelloch")
    try:
        layer(torch.randn(40, 3, 2, dtype=torch.float64))
    except ValueError as error:
        assert "its algorithm" in str(error), error
    else:
        raise AssertionError("no error")


def empty_spans(rank, P):
    """Only one rank holds steps, of a batch or of a sample without one."""
    for holder, sizes in itertools.product((0, P - 1), ((7, 2, 2), (7, 2))):
        layer, alone = attached(nn.LSTM, "blelloch", sharded=True), attached(nn.LSTM, "linear")
        bl.detach(alone)
        own = Spans([7 * (r == holder) for r in range(P)]).of(rank)
        x = torch.randn(sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        (output, last), (wanted, wanted_last) = layer(x[own]), alone(x)
        for have, want in zip((output, *last), (wanted[own], *wanted_last), strict=True):
            assert relative_error(have, want) < 1e-12
        output.pow(2).sum().backward(), wanted.pow(2).sum().backward()
        for have, want in zip(layer.parameters(), alone.parameters(), strict=True):
            dist.all_reduce(have.grad)
            assert relative_error(have.grad, want.grad) < 1e-10


def second_backward(rank, P):
    """As PyTorch: refused, but with retain_graph the same once more."""
    layer = attached(nn.GRU, "speculative")
    x = torch.randn(64 * P, 1, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    loss = layer(x)[0].pow(2).sum()
    loss.backward(retain_graph=True)
    once = layer.weight_hh_l0.grad.clone()
    loss.backward()
    assert relative_error(layer.weight_hh_l0.grad, 2 * once) < 1e-12
    try:
        loss.backward()
    except RuntimeError as error:
        assert "second time" in str(error)
    else:
        raise AssertionError("no error")


def empty_batch(rank, P):
    for algorithm in ("auto", "blelloch"):
        layer = attached(nn.LSTM, algorithm)
        x = torch.randn(64 * P, 0, 2, dtype=torch.float64, requires_grad=True)
        output, (h, c) = layer(x)
        (output.sum() + h.sum() + c.sum()).backward()
        assert output.shape == (64 * P, 0, 5) and h.shape == c.shape == (1, 0, 5)
        assert x.grad.shape == x.shape and not layer.weight_hh_l0.grad.any()


def copied(rank, P):
    """A copy is divided as well; a pickle is refused."""
    layer = attached(nn.GRU, "linear", sharded=True)
    copy = deepcopy(layer)
    x = torch.randn(3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
    assert torch.equal(layer(x)[0], copy(x)[0])
    chain = replacement_of(copy, bl.Chain)
    assert chain is not replacement_of(layer, bl.Chain) and "divided over" in bl.explain(copy)
    try:
        pickle.dumps(layer)
    except TypeError as error:
        assert "cannot be pickled" in str(error)
    else:
        raise AssertionError("no error")


def too_short(rank, P):
    """Every rank computes the whole, and says so."""
    layer = attached(nn.GRU, "auto")
    x = torch.randn(64 * P - 1, 2, 2, dtype=torch.float64)
    output, _ = layer(x)
    assert len(output) == 64 * P - 1
    said = bl.explain(layer)
    assert f"{64 * P - 1} steps were not divided: fewer than 64 for each of {P} ranks" in said, said
    assert "divided over" not in said
    layer(torch.randn(64 * P, 2, 2, dtype=torch.float64))
    assert f"divided over {P} ranks, 64 to 64 steps each" in bl.explain(layer)


def looks_again(rank, P):
    """What short spans could not show is looked for in longer ones."""
    layer = attached(nn.GRU, "speculative")
    for T, found in ((20, "it remembers more than 10 steps"), (2000, "all ranks begin at once")):
        layer(torch.randn(T * P, 2, 2, dtype=torch.float64))
        assert found in (said := bl.explain(layer)), said


def autocast(rank, P):
    """Mixed precision: the same results as one process has under it."""
    dtypes = torch.float32, torch.bfloat16  # the second is what a layer before this one puts out
    for kind, dtype in itertools.product((nn.RNN, nn.GRU, nn.LSTM), dtypes):
        found = []
        for group_of in (group(), None):
            torch.manual_seed(0)
            layer, x = kind(3, 8), torch.randn(150 * P, 2, 3).to(dtype)
            bl.attach(layer, "speculative" if group_of else "linear", group=group_of)
            with torch.autocast("cpu", torch.bfloat16):
                output, _ = layer(x)
            output.float().sum().backward()
            found.append((output, layer.weight_hh_l0.grad))
        (ours, of_ours), (theirs, of_theirs) = found
        assert ours.dtype == theirs.dtype
        assert relative_error(ours, theirs) < 1e-2 and relative_error(of_ours, of_theirs) < 1e-4


def operators(rank, P):
    """One layer in one direction, without a module: as one process has it."""
    for kind, op in ((nn.RNN, bl.ops.rnn), (nn.GRU, bl.ops.gru), (nn.LSTM, bl.ops.lstm)):
        for algorithm in ("auto", "linear", "blelloch", "speculative"):
            for reverse, lengths in ((False, [40] * P), (True, [3] * (P - 1) + [0])):
                torch.manual_seed(0)
                stock = kind(2, 5).double()
                x = torch.randn(sum(lengths), 3, 2, dtype=torch.float64)
                weights = [p.detach().clone().requires_grad_() for p in stock.parameters()]
                own = x[Spans(lengths).of(rank)].clone().requires_grad_()
                x.requires_grad_()
                zeros = [None] * (2 if kind is nn.LSTM else 1)
                output, *last = op(
                    own, *zeros, *weights, algorithm=algorithm, reverse=reverse, group=group()
                )
                wanted, wanted_last = stock(x.flip(0) if reverse else x)
                wanted = wanted.flip(0) if reverse else wanted
                wanted_last = wanted_last if kind is nn.LSTM else (wanted_last,)
                assert relative_error(output, wanted[Spans(lengths).of(rank)]) < 1e-12
                for have, want in zip(last, wanted_last, strict=True):
                    assert relative_error(have, want[0]) < 1e-12
                (output.pow(2).sum() + last[0].sum()).backward()
                (wanted.pow(2).sum() + wanted_last[0].sum()).backward()
                assert relative_error(own.grad, x.grad[Spans(lengths).of(rank)]) < 1e-10
                for have, want in zip(weights, stock.parameters(), strict=True):
                    dist.all_reduce(have.grad)
                    assert relative_error(have.grad, want.grad) < 1e-10


def ends_of_spans(rank, P):
    """What the next rank warms up on comes with the first message, once it is known how much."""
    for batches in ([2, 2, 2], [2, 3, 3], [2, 2, 1]):
        layer, alone = attached(nn.GRU, "speculative", sharded=True), attached(nn.GRU, "linear")
        bl.detach(alone)
        counts = replacement_of(layer, bl.Chain).divided.exchange.counts
        own, rounds = Spans.equal(300 * P, P).of(rank), []
        for k, B in enumerate(batches):
            data = torch.Generator().manual_seed(k)
            x = torch.randn(300 * P, B, 2, dtype=torch.float64, generator=data)
            before = counts.rounds
            output, _ = layer(x[own])
            rounds.append(counts.rounds - before)
            assert relative_error(output, alone(x)[0][own]) < 1e-12
        asked = [1, *(int(a != b) for a, b in zip(batches, batches[1:]))]
        assert rounds == asked, rounds


def followed_in_turn(rank, P):
    """A loss of the last span alone: each rank has nothing to follow until the next one has."""
    for kind, behind in itertools.product((nn.RNN, nn.GRU, nn.LSTM), (False, True)):
        layer, alone = attached(kind, "speculative", sharded=True), attached(kind, "linear")
        bl.detach(alone)
        x, own = torch.randn(200 * P, 2, 2, dtype=torch.float64), Spans.equal(200 * P, P).of(rank)
        part, x = x[own].clone().requires_grad_(), x.requires_grad_()
        for module, given, share in ((layer, part, rank == P - 1), (alone, x, True)):
            output, last = module(given)
            (last[0].sum() if behind else output[-200:].pow(2).sum() * share).backward()
        divided = replacement_of(layer, bl.Chain).divided
        assert divided.ways[0].backward == "follow" and divided.reports[0].backward_passes == P - 1
        assert (part.grad - x.grad[own]).abs().max() <= 1e-10 * x.grad[own].abs().max()
        for have, want in zip(layer.parameters(), alone.parameters(), strict=True):
            dist.all_reduce(have.grad)
            assert relative_error(have.grad, want.grad) < 1e-10


def broken_off(rank, P):
    """A call that fails on all ranks before they are known to have come for the same."""
    for sharded in (False, True):
        layers = [attached(nn.GRU, "linear", sharded) for _ in range(2)]
        x = torch.randn(40, 3, 2, dtype=torch.float64)
        for layer in layers:
            with (
                mock.patch.object(DividedLayer, "_engine", side_effect=MemoryError),
                pytest.raises(MemoryError),
            ):
                layer(x)
        first, second = (layer(x)[0] for layer in layers)
        assert torch.equal(first, second)


def packed_spans(rank, P):
    """Samples that end early, and in any rank's span, forwards and backwards."""
    lengths = torch.tensor([9, 40 * P, 3, 25 * P, 25 * P])
    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        for algorithm in ("auto", "linear", "blelloch"):
            for spans in (Spans.equal(40 * P, P), Spans([0, *[5] * (P - 2), 40 * P - 5 * (P - 2)])):
                torch.manual_seed(0)
                alone = kind(2, 5, num_layers=2, bidirectional=True).double()
                ours = deepcopy(alone)
                bl.attach(ours, algorithm, group=group(), sharded=True)
                x = torch.randn(40 * P, 5, 2, dtype=torch.float64)
                hx = [torch.randn(4, 5, 5, dtype=torch.float64) for _ in range(2)]
                hx = tuple(hx) if kind is nn.LSTM else hx[0]
                whole = pack_padded_sequence(x, lengths, enforce_sorted=False)
                own = spans.of(rank)
                span = packed_span(x[own], lengths, own.start)
                output, last = ours(span, hx)
                wanted, wanted_last = alone(whole, hx)
                assert torch.equal(output.batch_sizes, whole.batch_sizes[own])
                before = int(whole.batch_sizes[: own.start].sum())
                mine = slice(before, before + len(output.data))
                assert relative_error(output.data, wanted.data[mine]) < 1e-12
                for have, want in zip(last, wanted_last, strict=True):
                    assert relative_error(have, want) < 1e-12
                output.data.pow(2).sum().backward()
                wanted.data.pow(2).sum().backward()
                for have, want in zip(ours.parameters(), alone.parameters(), strict=True):
                    dist.all_reduce(have.grad)
                    assert relative_error(have.grad, want.grad) < 1e-10
    assert "as samples end at different steps" in bl.explain(ours)
    bare, _ = ours(PackedSequence(span.data, span.batch_sizes))  # of how many samples, others know
    assert torch.equal(bare.data, ours(span)[0].data)


def mixed_up_packs(rank, P):
    """What are no parts of one packed sequence: every rank says so."""
    x = torch.randn(40 * P, 3, 2, dtype=torch.float64)
    lengths, own = torch.tensor([40 * P, 50, 30]), Spans.equal(40 * P, P).of(rank)
    right = packed_span(x[own], lengths, own.start)
    data, sizes, order, back = right
    more = PackedSequence(x[:, 0].repeat(3, 1)[:120], torch.full((40,), 3), order, back)
    fewer = PackedSequence(x[:40, 0], torch.ones(40, dtype=torch.int64), torch.tensor([0]))
    narrow = PackedSequence(data[:, :1], sizes, order, back)
    for wrong, message in (
        (more, "rank 1 of the chain brought a PackedSequence whose first step has 3 samples"),
        (fewer, "rank 1 of the chain brought a PackedSequence of 1 samples"),
        (x[own], "rank 1 of the chain brought packed input = 0, rank 0 1"),
        (narrow, "layer: found shapes nn.GRU rejects"),
    ):
        layer = attached(nn.GRU, "linear", sharded=True)
        if wrong is narrow and rank != 1:
            continue
        try:
            layer(wrong if rank == 1 else right)
        except ValueError as error:
            assert message in str(error), error
        else:
            raise AssertionError("no error")


def wrong_states_of_packs(rank, P):
    """An LSTM's hx that is no pair, and a step's count without its row: an error, no crash."""
    layer = attached(nn.LSTM, "linear", sharded=True)
    x, sizes = torch.randn(5, 2, dtype=torch.float64), torch.ones(5, dtype=torch.int64)
    none = PackedSequence(x[:0], torch.zeros(1, dtype=torch.int64))
    right = PackedSequence(x, sizes)
    for given in ((right, x.new_zeros(1, 1, 5)), (right, (None, None)), (none, None)):
        try:
            layer(*given)
        except ValueError as error:
            assert str(error).startswith("layer: found "), error
        else:
            raise AssertionError("no error")


def raises(rank, P):
    layer = attached(nn.GRU, "blelloch")
    layer(torch.randn(40, 3, 2, dtype=torch.float64))
    if rank == 1:
        raise KeyError("what a user's code does wrong")
    layer(torch.randn(40, 3, 2, dtype=torch.float64))


def dies(rank, P):
    layer = attached(nn.GRU, "linear")
    x = torch.randn(40, 3, 2, dtype=torch.float64)
    layer(x)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(100):
        layer(x)


def main():
    P, *names = sys.argv[1:]
    rank = begin(int(P), seconds=20)
    for name in names:
        globals()[name](rank, int(P))
        print(f"{name}: fine", flush=True)
        dist.barrier()


if __name__ == "__main__":
    main()

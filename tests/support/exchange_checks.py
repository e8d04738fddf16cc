"""What `rank_checks.py` checks of the exchange of messages itself.

P ranks.
"""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from bppsa_lightning._gloo import let_threads_wait
from bppsa_lightning.ranks import Exchange


def threads(rank, P):
    """Gloo's threads do not take the core from whoever works on it (`_gloo`)."""
    fresh = dist.new_group()
    own = [t for t in Path("/proc/self/task").iterdir() if "gloo" in (t / "comm").read_text()]
    Exchange(fresh)
    assert own and all(os.sched_getscheduler(int(t.name)) == os.SCHED_BATCH for t in own)
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert let_threads_wait(fresh) == 0, "once"


def gathers(rank, P):
    """All ranks have what all have, small or large."""
    exchange = Exchange(dist.group.WORLD)
    for backwards in (False, True):
        towards = exchange.towards(backwards)
        for size in (1, 7, 1 << 15):
            own = torch.full((size,), float(towards.rank))
            [found] = towards.gather(own)
            assert torch.equal(found, torch.arange(P, dtype=own.dtype)[:, None].expand(P, size))
            sent = own if towards.rank == 1 else torch.empty(size)
            assert torch.equal(towards.of_rank(1, sent), torch.ones(size))
            # What was begun is not what else is sent meanwhile.
            gather = towards.begin_gather(own + 1)
            towards.pass_on([own + 100], [own])
            towards.sum([own])
            assert torch.equal(gather()[0], found + 1)
            # Of several dtypes, as one message: negated and conjugated views, and nothing at all.
            z = torch.complex(own, own + 1).conj()
            kinds = [z, z.imag, own.half()[::2], torch.empty(0), torch.tensor(towards.rank)]
            found = towards.gather(*kinds)
            of_all = [[None] * P for _ in kinds]
            for have, want, each in zip(found, of_all, kinds, strict=True):
                dist.all_gather_object(want, each.resolve_neg().resolve_conj())
                want = torch.stack(want[:: -1 if backwards else 1])
                assert torch.equal(have, want) and have.dtype == want.dtype, (have, want)


def wholes(rank, P):
    """All ranks have what each has a part of; parts differ in length, or hold nothing."""
    exchange = Exchange(dist.group.WORLD)
    for backwards in (False, True):
        towards = exchange.towards(backwards)
        for lengths in ([3] * P, range(P), [0] * P, [*range(P, 1, -1), 1 << 15]):
            steps = torch.arange(2.0 * sum(lengths)).view(-1, 2)
            for whole in (steps, steps.bfloat16(), steps.expand(3, -1, -1).movedim(0, -1)):
                own = whole.split(list(lengths))[towards.rank]
                found = towards.whole(own, list(lengths))
                assert torch.equal(found, whole) and found.dtype == whole.dtype
                assert found.is_contiguous()


def out_of_step(rank, P):
    """Ranks that gather different things end, and say so."""
    exchange = Exchange(dist.new_group(), "gru")
    exchange.gather(torch.zeros(3))
    with pytest.raises(RuntimeError, match=r"gru: .*found a message of .* bytes, wanted one of"):
        exchange.gather(torch.zeros(3 + rank))

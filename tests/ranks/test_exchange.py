"""What goes over the process group: rounds, errors, and the scan of a chain that lies on ranks."""

import subprocess
import sys
import textwrap

import pytest
from support import forked

SCRIPT = forked.TESTS / "support" / "rank_checks.py"
CHECKS = (
    "rounds", "reverse_scan", "unsound", "another_shape", "another_algorithm", "empty_spans",
    "second_backward", "empty_batch", "copied", "too_short", "autocast", "threads", "gathers",
    "operators", "ends_of_spans", "followed_in_turn", "packed_spans", "mixed_up_packs",
    "wrong_states_of_packs", "out_of_step", "broken_off", "wholes",
    "looks_again",
)  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks(tmp_path, ranks):
    """All checks of `support/rank_checks.py`, in one start of processes."""
    said = forked.run(tmp_path, SCRIPT, ranks, *CHECKS, ranks=ranks, timeout=300)
    for check in CHECKS:
        assert said.count(f"{check}: fine") == ranks


@pytest.mark.parametrize("ends", ["dies", "raises"])
def test_a_rank_that_ends(tmp_path, ends):
    """The others end with an error that names the layer and the rank."""
    with pytest.raises(AssertionError, match=r"layer: rank [02] waited for .*rank"):
        forked.run(tmp_path, SCRIPT, 3, ends, ranks=3, timeout=60)


def test_a_destroyed_group_ends_before_python_does():
    """Its threads would ask Python to free tensors, and abort the process, now and then."""
    script = """
        import atexit, weakref
        import torch.distributed as dist
        from torch import nn

        @atexit.register  # and so called last
        def told():
            print("ended" if group() is None else "kept")

        import bppsa_lightning as bl

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        group = weakref.ref(dist.group.WORLD)
        layer = nn.GRU(2, 3)
        bl.attach(layer, group=dist.group.WORLD)
        dist.destroy_process_group()
        assert group() is not None
    """
    run = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


def test_a_rank_may_end_while_another_is_held_up(tmp_path):
    """It has what it needs: the other, held up after it sent, still gets what was sent to it."""
    script = """
        import sys, time
        import torch
        import torch.distributed as dist
        from bppsa_lightning.ranks import Exchange, mail

        rank, store = int(sys.argv[1]), dist.FileStore(sys.argv[2], 2)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        exchange = Exchange(dist.group.WORLD)
        exchange.gather(torch.zeros(3))
        if rank == 0:
            send = mail.Mail._send
            mail.Mail._send = lambda *given: (send(*given), time.sleep(3))
        print(exchange.gather(torch.full((1,), float(rank)))[0].flatten().tolist())
    """
    run = [sys.executable, "-c", textwrap.dedent(script)]
    ranks = [
        subprocess.Popen(
            [*run, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert said == ["[0.0, 1.0]\n"] * 2

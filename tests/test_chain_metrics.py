"""Trainer(strategy="bppsa_chain"): what is logged together, and what processes wait for."""

import pytest
import torch
from support import forked
from support.chain_metrics import BATCH, SAMPLES

SCRIPT = forked.TESTS / "support" / "chain_metrics.py"
FOUR = pytest.mark.slow


@pytest.mark.parametrize(
    ("processes", "chain"), [(2, 2), (2, 1), pytest.param(4, 2, marks=FOUR)], ids=str
)
def test_chains_count_each_sample_once(tmp_path, processes, chain):
    forked.run(tmp_path, SCRIPT, tmp_path, processes, chain, ranks=processes)
    chains = processes // chain
    for rank in range(processes):
        left = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name in ("called", "updated", "n", "train_n_epoch", "copied"):
            assert left[name] == SAMPLES, name
        assert left["train_n_step"] == left["each"] == chains * BATCH
        assert left["mean"] == pytest.approx((SAMPLES - 1) / 2)
        assert left["gathered"] == ([chains, 3] if chains > 1 else [3])
        assert left["votes"] == [False, True]  # all processes, of which one is for it
        assert left["timeouts"] == [77, 77]
        assert left["restored"]

"""The planner: valid plans, the critical path it estimates, and that it reads the machine."""

import pytest
import torch

from bppsa_lightning import planner
from bppsa_lightning.planner import Machine, Plan, choose, estimate

CPU = torch.device("cpu")
stock_is_faster = planner._stock_is_faster  # before conftest.py puts another in its place
# A machine of free overheads: what is left is the table of work and depth.
IDEAL = Machine(10**6, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, groups=False)


@pytest.mark.parametrize("T", [0, 1, 2, 3, 7, 64, 1000, 30_000])
@pytest.mark.parametrize("B, H", [(0, 1), (1, 1), (16, 20), (256, 512)])
@pytest.mark.parametrize("algorithm", planner.ALGORITHMS)
def test_every_plan_can_be_carried_out(T, B, H, algorithm):
    plan = choose(T, B, H, CPU, algorithm)
    assert plan.algorithm in planner.ALGORITHMS[1:]
    assert algorithm in ("auto", plan.algorithm)
    assert plan.seconds >= 0 and plan.reason
    assert (plan.chunk >= 1) == (plan.algorithm == "chunked")
    assert 0 <= plan.levels <= planner.max_levels(T)
    jac_t, grad = (
        torch.zeros(min(T, 70), min(B, 2), 3, 3),
        torch.zeros(min(T, 70) + 1, min(B, 2), 3),
    )
    torch.ops.bppsa.reverse_scan(jac_t, grad, plan.algorithm, plan.chunk, plan.levels, False)


def test_depth_is_that_of_the_table():
    """With workers to spare: n; 2C + n/C; 2L + n/2^L, in steps, a product counting H steps."""
    T, H = 1024, 8
    step, product = H * H, H * H * (H + 1)
    assert estimate(Plan("linear"), T, 1, H, IDEAL) == T * step
    assert estimate(Plan("chunked", chunk=32), T, 1, H, IDEAL) == 32 * product + (30 + 32) * step
    seconds = estimate(Plan("blelloch", levels=4), T, 1, H, IDEAL)
    # Level 1 composes its pairs of steps; levels 2 to 4 one product each; then the way down.
    assert seconds == (2 + 3) * product + 64 * step + (2 + 3) * step


def test_parallel_scans_pay_where_workers_would_idle_and_only_there(monkeypatch):
    monkeypatch.setattr(planner, "_workers", lambda device: 2)
    assert choose(10_000, 1, 20, CPU).algorithm == "linear"
    assert choose(10_000, 256, 4, CPU).algorithm == "linear"
    monkeypatch.setattr(planner, "_workers", lambda device: 192)
    assert choose(10_000, 1, 4, CPU).algorithm != "linear"
    assert choose(10_000, 1, 512, CPU).algorithm == "linear"
    assert "192 workers" in choose(10_000, 1, 4, CPU).reason


def test_levels_ask_for_a_tree_and_asked_for_chunks_are_composed():
    assert choose(100, 2, 3, CPU, "auto", 3) == choose(100, 2, 3, CPU, "blelloch", 3)
    assert choose(100, 2, 3, CPU, "blelloch").levels == 7
    for T in (4, 5, 64, 1000):
        assert T / choose(T, 2, 3, CPU, "chunked").chunk >= 4


def test_calls_that_are_left_to_pytorch_are_those_that_were_slower(monkeypatch):
    monkeypatch.setattr(planner, "_stock_is_faster", stock_is_faster)
    for cell, T, B, H in (("rnn_tanh", 1, 16, 20), ("gru", 1, 1, 64), ("lstm", 10, 1, 256)):
        assert f"T={T}, B={B}, H={H}" in planner.hand_over(cell, T, B, H, CPU)
    for cell in ("rnn_tanh", "rnn_relu", "gru", "lstm"):
        for T, B, H in ((1000, 16, 20), (10_000, 1, 20), (1000, 16, 128), (10, 16, 20)):
            assert planner.hand_over(cell, T, B, H, CPU) is None
    assert "cuDNN" in planner.hand_over("gru", 1000, 16, 20, torch.device("cuda"))


def test_every_gate_is_kept_unless_that_takes_much_memory():
    assert planner.keep("lstm", 1000, 16, 20, CPU) == 2
    assert planner.keep("lstm", 30_000, 16, 20, CPU) == 1
    assert planner.keep("lstm", 30_000, 16, 20, torch.device("cuda")) == 2
    assert planner.keep("lstm", 1000, 64, 256, CPU) == 2

"""The planner: valid plans, the critical path it estimates, and that it reads the machine."""

import json
from pathlib import Path

import pytest
import torch
from support import gpus
from support.cases import chain, relative_error
from support.recurrent_layers import GATES

from bppsa_lightning import planner
from bppsa_lightning.planner import Plan, Request, Saved
from bppsa_lightning.planner import choose as choosing
from bppsa_lightning.planner import cost_cuda as gpu
from bppsa_lightning.planner.cost_dense import Machine, estimate
from bppsa_lightning.reference import reverse_scan

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
RECORD = Path(__file__).parents[2] / "experiments" / "records" / "h200_recurrent.json"
ROWS = json.loads(RECORD.read_text())["rows"]
OPERATORS = {"RNN": "rnn_tanh", "GRU": "gru", "LSTM": "lstm"}
# A machine of free overheads: what is left is the table of work and depth.
IDEAL = Machine(10**6, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, groups=False)


def choose(T, B, H, device, algorithm="auto", levels=None):
    return planner.plan(Request(planner.DENSE, T, B, H, device, algorithm, levels))


def fallback_reason(*size, **more):
    return planner.fallback_reason(Request(*size, **more))


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
    jac_t, grad = chain(min(T, 1000), min(B, 2), 3)
    levels = min(plan.levels, planner.max_levels(len(jac_t)))
    found = torch.ops.bppsa.reverse_scan(jac_t, grad, plan.algorithm, plan.chunk, levels, False)
    assert relative_error(found, reverse_scan(jac_t, grad)) < 1e-12


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
    monkeypatch.setattr(choosing, "workers", lambda device: 2)
    assert choose(10_000, 1, 20, CPU).algorithm == "linear"
    assert choose(10_000, 256, 4, CPU).algorithm == "linear"
    monkeypatch.setattr(choosing, "workers", lambda device: 192)
    assert choose(10_000, 1, 4, CPU).algorithm != "linear"
    assert choose(10_000, 1, 512, CPU).algorithm == "linear"
    assert "fastest on 192 cores" in choose(10_000, 1, 4, CPU).reason


def test_levels_ask_for_a_tree_and_asked_for_chunks_are_composed():
    assert choose(100, 2, 3, CPU, "auto", 3) == choose(100, 2, 3, CPU, "blelloch", 3)
    assert choose(100, 2, 3, CPU, "blelloch").levels == 7
    for T in (4, 5, 64, 1000):
        assert T / choose(T, 2, 3, CPU, "chunked").chunk >= 4


def test_calls_that_are_left_to_pytorch_are_those_that_were_slower():
    for cell, T, B, H in (
        ("rnn_tanh", 1, 16, 20),
        ("gru", 1, 1, 64),
        ("lstm", 10, 1, 256),
        ("lstm", 1, 256, 64),
    ):
        assert f"seq_len {T}, batch {B}, hidden {H}: " in fallback_reason(cell, T, B, H, CPU)
    for cell in GATES:
        for T, B, H in ((1000, 16, 20), (10_000, 1, 20), (1000, 16, 128), (10, 16, 20)):
            assert fallback_reason(cell, T, B, H, CPU) is None


def test_the_record_of_different_lengths_is_of_the_calls_that_are_scanned_now():
    """And none of them was slower than stock, but for what a measurement scatters."""
    path = Path(__file__).parents[2] / "experiments" / "records" / "packed_recurrent_cpu.json"
    for row in json.loads(path.read_text())["rows"]:
        T, B, N = row["T"], row["B"], row["N"]
        cell = {"RNN": "rnn_tanh"}.get(row["cell"], row["cell"].lower())
        spread = {"total_steps": N, "padded_steps": T} if T * B != N else {}
        scanned = fallback_reason(cell, T, B, row["H"], CPU, **spread) is None
        assert scanned == row["scanned"], row
        assert not scanned or row["ratio"] > 0.98, row


def test_short_calls_of_different_lengths_are_left_to_pytorch():
    """Their rows are moved to padded tensors and back, which takes longer than a few steps do."""

    def left(cell, T, N):
        return fallback_reason(cell, T, 8, 20, CPU, total_steps=N, padded_steps=T)

    assert "batch 8, hidden 20, different lengths" in left("gru", 3, 20)
    assert left("gru", 4, 31) is None and left("gru", 4, 15) is not None
    assert left("lstm", 4, 31) is not None and left("lstm", 5, 39) is None
    for cell in GATES:
        assert left(cell, 100, 500) is None and left(cell, 100, 110) is None
        assert fallback_reason(cell, 10, 8, 20, CPU) is None
    assert left("rnn_tanh", 10, 73) is not None and left("rnn_relu", 14, 95) is None


def test_every_gate_is_kept_unless_that_takes_much_memory():
    assert planner.saved(Request("lstm", 1000, 16, 20, CPU)) == Saved.GATES
    assert planner.saved(Request("lstm", 30_000, 16, 20, CPU)) == Saved.STATES
    assert planner.saved(Request("lstm", 30_000, 16, 20, CUDA)) == Saved.GATES
    assert planner.saved(Request("lstm", 30_000, 256, 64, CUDA)) == Saved.STATES
    assert planner.saved(Request("lstm", 1000, 64, 256, CPU)) == Saved.GATES


# --- recurrent layers on CUDA ------------------------------------------------------------------


def name(plan):
    return f"c{plan.chunk}" if plan.chunk else plan.algorithm


each_row = pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: "{cell}-B{B}-T{T}-H{H}".format_map(row)
)


@each_row
def test_the_plan_on_cuda_costs_little_more_than_the_best_measured(row):
    layer = gpu.CudaLayerSize(OPERATORS[row["cell"]], row["T"], row["B"], row["H"])
    plan = gpu.choose(layer, "auto")
    chosen = row["plans"][name(plan)]["backward"]
    best = min(times["backward"] for times in row["plans"].values())
    # Short calls last as long as the host takes, up to 0.02 ms more for the first plan of a turn.
    assert chosen <= 1.1 * best or (row["T"] <= 300 and chosen <= best + 2e-5)
    assert plan.seconds == pytest.approx(chosen, rel=0.2) or row["T"] <= 300


@each_row
def test_cudnn_takes_over_exactly_where_it_was_measured_to_be_faster(row):
    layer = gpu.CudaLayerSize(OPERATORS[row["cell"]], row["T"], row["B"], row["H"])
    ours = row["plans"][name(gpu.choose(layer, "auto"))]["both"]
    why = gpu.fallback_reason(layer, 1, 1)
    assert (why is not None) == (ours > row["stock"]["both"])
    if why:
        assert f"hidden {row['H']}" in why and RECORD.name in why


@pytest.mark.parametrize("cell", GATES)
def test_plans_on_cuda_can_be_carried_out(cell, monkeypatch):
    gpus.claim(monkeypatch)
    for T in (1, 2, 7, 64, 1000, 100_000):
        for B, H in ((0, 4), (1, 1), (16, 20), (300, 33), (16, 1000)):
            for algorithm in planner.ALGORITHMS:
                plan = planner.plan(Request(cell, T, B, H, CUDA, algorithm))
                assert algorithm in ("auto", plan.algorithm) and plan.reason
                assert plan.algorithm != "chunked" or 1 <= plan.chunk <= T
                assert plan.algorithm != "blelloch" or plan.levels == planner.max_levels(T)
                assert algorithm != "auto" or H <= gpu.MOST_COMPOSED or plan.algorithm == "linear"
    assert "walked" in planner.plan(Request(cell, 1000, 16, 64, CUDA, "chunked")).reason
    with pytest.raises(ValueError, match="algorithm"):
        planner.plan(Request(cell, 10, 1, 1, CUDA, "fast"))


def test_what_was_not_measured_beside_cudnn_goes_to_it(monkeypatch):
    gpus.claim(monkeypatch, gpus.with_every_kernel())

    def left(T=1000, B=16, H=20, cell="gru", **more):
        spread = dict(zip(("total_steps", "padded_steps"), more.pop("spread", ())))
        return fallback_reason(cell, T, B, H, CUDA, **more, **spread)

    assert left() is None and left(B=2000) is None
    assert left(I=512) is None  # its products are few beside T steps
    assert "again in every step" in left(H=300)
    assert "float16" in left(H=65, dtype=torch.float16)
    assert left(H=64, dtype=torch.float16) is None and left(H=64, dtype=torch.bfloat16) is None
    assert "float64" in left(H=33, dtype=torch.float64)
    assert left(dtype=torch.bfloat16) is None and left(dtype=torch.float64) is None
    # One block walks a sample: a batch beyond the multiprocessors is walked in turns.
    assert left(H=100, B=16, cell="rnn_tanh") is None
    assert "batch 1000" in left(H=100, B=1000, cell="rnn_tanh")
    # With a projection cuDNN launches kernels for every step; our products are few beside T steps,
    # and many beside the states of a large batch.
    assert left(cell="lstm", P=10) is None and left(B=256, H=128, cell="lstm", P=120) is None
    assert "cuDNN" in left(B=8000, H=128, cell="lstm", P=120)
    # So it does with samples of different lengths; ours moves rows about, which takes longer than
    # a few steps.
    assert left(T=3000, spread=(30_000, 3000)) is None and left(spread=(9000, 1000)) is None
    assert "cuDNN" in left(T=10, spread=(100, 10)) and left(T=100, spread=(1000, 100)) is None
    assert left(B=256, H=64, cell="rnn_tanh", spread=(1000 + 255, 1001)) is None
    # cuDNN may run two directions side by side.
    assert left(H=64, cell="lstm") is None
    assert "bidirectional" in left(H=64, cell="lstm", directions=2)
    # No choice where cuDNN fails or is switched off, but for what the kernels do not hold.
    assert left(T=70_000, H=300) is None
    assert "at most 2048" in left(T=70_000, H=2049, cell="lstm")
    assert "at most 1024" in left(T=70_000, H=1025, cell="lstm", dtype=torch.float64)
    assert "at most 4096" in left(T=70_000, H=5000, cell="rnn_relu")
    assert left(T=70_000, H=4096, cell="rnn_tanh", dtype=torch.float64) is None
    with torch.backends.cudnn.flags(enabled=False):
        assert left(H=128) is None
    assert left(H=128) is not None
    # Where blocks cannot share a sample.
    assert left(H=256, cell="lstm") is None
    gpus.claim(monkeypatch, gpus.with_every_kernel(), clusters=False)
    assert "above 128" in left(H=256, cell="lstm") and left(H=64, cell="lstm") is None
    assert left(H=256, cell="rnn_tanh") is None


def test_products_of_chunks_have_a_limit():
    """Chunks of 8 steps of a long and large batch would take 12 GB."""
    layer = gpu.CudaLayerSize("lstm", 30_000, 256, 32)
    for algorithm in ("auto", "chunked"):
        plan = gpu.choose(layer, algorithm)
        products = 0 if plan.algorithm == "linear" else -(-layer.T // plan.chunk)
        assert products * 256 * 64 * 65 * 4 <= 2**30


def test_fewer_multiprocessors_compose_less():
    assert gpu.choose(gpu.CudaLayerSize("rnn_tanh", 1000, 64, 20), "auto").algorithm == "chunked"
    small = gpu.CudaLayerSize("rnn_tanh", 1000, 64, 20, processors=20)
    assert gpu.choose(small, "auto").algorithm == "linear"

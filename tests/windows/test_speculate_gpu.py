"""Windows on a CUDA device: steps in Python, and windows that miss there and are repaired."""

import pytest
import torch
from support.cases import needs_gpu
from support.windows import assert_as_exact, leaves, loop, run
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.recurrent.engines import LayerEngine, PytorchEngine
from bppsa_lightning.recurrent.in_place import KernelsAtOnce
from bppsa_lightning.steps import scans_of
from bppsa_lightning.windows import Cut, Levels, Report, look, speculate

DEVICE = "cuda"
CELLS = {"rnn_tanh": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
pytestmark = [
    *needs_gpu,  # (cuDNN says so where it walks weights that are nobody's module's)
    pytest.mark.filterwarnings("ignore:RNN module weights are not part:UserWarning"),
]


class Walk:
    """An engine as a step for `run`: walked as it is, or in windows; the last call's report."""

    def __init__(self, engine, cut=None, levels=None):
        self.engine, self.cut, self.levels = engine, cut, levels

    def parameters(self):
        return self.engine.tensors

    def __call__(self, _, init, xs):
        if self.cut is None:
            [y], last = self.engine([xs], list(init))
        else:
            self.report = Report()
            [y], last = speculate(self.engine, [xs], list(init), self.cut, self.levels, self.report)
        return tuple(last), y


# T, windows, warm-up, and the gain of the recurrent weights: all meet; some miss; most do.
CUTS = {
    "all meet": (4000, 16, 200, 1.0),
    "after a head": (4003, 16, 200, 1.0),
    "some miss": (4000, 40, 22, 1.0),
    "none meets": (1000, 20, 1, 1.5),
}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("kind", [LayerEngine, PytorchEngine])
@pytest.mark.parametrize("case", CUTS.values(), ids=CUTS)
def test_windows_are_as_exact_as_walks(cell, kind, case):
    T, windows, warm, gain = case
    torch.manual_seed(0)
    layer = CELLS[cell](3, 12).to(DEVICE)
    weights = [w.detach() for w in layer.parameters()]
    weights[1].mul_(gain)
    x = torch.randn(T, 2, 3).to(DEVICE)
    init = tuple(torch.randn(2, 12).to(DEVICE) for _ in range(2 if cell == "lstm" else 1))

    def results(engine, dtype=torch.float32, cut=None):
        own = [w.detach().to(dtype).requires_grad_() for w in weights]
        engine = engine(cell, own)
        levels = look(engine, [x], list(init), 300).levels if cut else None
        walk = Walk(engine, cut, levels)
        return run(walk, walk, *leaves((init, x), dtype)), walk

    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        found, walk = results(kind, cut=Cut(T, windows, T // windows, warm))
        walks = [results(engine)[0] for engine in (LayerEngine, PytorchEngine)]
        true, _ = results(LayerEngine, torch.float64)
    if warm == 200:
        assert walk.report.missed == 0
    elif kind is LayerEngine:  # cuDNN's rounding is up to 100 times ours: there all may have met
        assert walk.report.missed
    assert_as_exact(found, walks, true, slack=1e-6)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("hidden", [12, 40, 200])  # a warp, a block, and a cluster a sample
@pytest.mark.parametrize("warm", [0, 9, 50])
def test_one_launch_writes_the_walks_of_all_windows(cell, dtype, hidden, warm):
    """Bit by bit; and the verdicts are those of plain torch."""
    torch.manual_seed(0)
    B, cut = 3, Cut(203, 4, 50, warm)
    weights = [p.detach() for p in CELLS[cell](1, hidden).to(DEVICE, dtype).parameters()]
    x = torch.randn(B, 203, 1, device=DEVICE, dtype=dtype).transpose(0, 1)
    state = [torch.randn(B, hidden).to(x) for _ in range(1 + (cell == "lstm"))]
    begun = state
    if not warm:
        begun = [torch.cat([s, torch.randn(3 * B, hidden).to(x)]) for s in state]
    levels = Levels(tuple(torch.full_like(s[0], 1e-3) for s in state), (1.0,) * len(state))
    engine = LayerEngine(cell, weights)
    sequence = engine.in_place([x], state, weights, True)
    assert isinstance(sequence, KernelsAtOnce)
    last, met = sequence.walk_windows(cut, begun, levels)
    first = state
    for k, start in enumerate(cut.starts):
        own = slice(k * B, (k + 1) * B)
        if k:
            first = [s[own].contiguous() for s in begun] if not warm else None
        if first is None:
            zeros = [torch.zeros_like(s) for s in state]
            _, first = engine([x[start - warm : start]], zeros)
        begin, end = start if k else 0, start + 50
        [y], after = engine([x[begin:end]], first)
        assert torch.equal(sequence.output[begin:end], y)
        assert all(torch.equal(a[own], b) for a, b in zip(last, after, strict=True))
        if k:
            before = [s[own.start - B : own.start].unsqueeze(0) for s in last]
            assert [met[k - 1]] == levels.met([s.unsqueeze(0) for s in first], before)


class LayerNormGRU(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.of_x, self.of_h = nn.Linear(inputs, 3 * hidden), nn.Linear(hidden, 3 * hidden)
        self.norm = nn.LayerNorm(3 * hidden)

    def forward(self, h, x):
        r, z, n = self.of_x(x).chunk(3, -1)
        a, b, c = self.norm(self.of_h(h)).chunk(3, -1)
        z = torch.sigmoid(z + b)
        h = (1 - z) * torch.tanh(n + torch.sigmoid(r + a) * c) + z * h
        return h, h


@pytest.mark.parametrize("B", [1, 3])
def test_any_loop(B):
    torch.manual_seed(0)
    step = LayerNormGRU(4, 8).to(DEVICE)
    init = torch.randn(B, 8).to(DEVICE).requires_grad_()
    xs = torch.randn(1200, B, 4).to(DEVICE).requires_grad_()

    def windows(step, init, xs):
        return bl.scan(step, init, xs, algorithm="speculative")

    found = run(windows, step, init, xs)
    assert "all met" in str(scans_of(step.parameters())[-1])
    walked = run(loop, step, *leaves((init, xs)))
    true = run(loop, step.double(), *leaves((init, xs), torch.float64))
    assert_as_exact(found, [walked], true)

"""Windows of time over the recurrent kernels of csrc/cuda, run thread by thread on the host.

Letters: T steps, B batch, I input, H state, K windows.
"""

import pytest
import torch
from support.emulated_recurrent import Case, emulate
from support.emulated_windows import NAMES, EmulatedWindows
from support.emulation import compiled, needs_gxx
from support.windows import assert_as_exact, leaves, run
from torch import nn

from bppsa_lightning import ops
from bppsa_lightning.planner import Saved
from bppsa_lightning.recurrent.engines import LayerEngine
from bppsa_lightning.recurrent.in_place import KernelsAtOnce
from bppsa_lightning.windows import Cut, Levels, Report, look, speculate

pytestmark = needs_gxx
CELLS = {"rnn_tanh": nn.RNN, "rnn_relu": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


@pytest.fixture(scope="module")
def library():
    return compiled("recurrent")


class Emulated(torch.autograd.Function):
    """One layer by the emulated kernels: the forward, and again with what its backward is given."""

    @staticmethod
    def forward(ctx, library, cell, *tensors):
        ctx.library, ctx.cell = library, cell
        ctx.save_for_backward(*tensors)
        zeros = torch.zeros_like(tensors[1])
        found = Emulated.run(library, cell, tensors, {"h_n": zeros})
        states = [found["h_n"], *([found["c_n"]] if cell == "lstm" else [])]
        return found["output"], *states

    @staticmethod
    def backward(ctx, *gradients):
        incoming = {
            name: g.contiguous()
            for name, g in zip(("output", "h_n", "c_n"), gradients, strict=False)
            if g is not None
        }
        found = Emulated.run(ctx.library, ctx.cell, ctx.saved_tensors, incoming)
        names = (n for n, t in zip(NAMES, ctx.saved_tensors, strict=True) if t is not None)
        each = [found[f"grad_{name}"] for name in names]
        given = iter(each)
        return None, None, *(None if t is None else next(given) for t in ctx.saved_tensors)

    @staticmethod
    def run(library, cell, tensors, incoming):
        named = {n: t.detach() for n, t in zip(NAMES, tensors, strict=True) if t is not None}
        named = {n: t if n == "x" else t.contiguous() for n, t in named.items()}
        case = Case(cell, False, named, incoming)
        return emulate(library, case, next(iter(named.values())).dtype).found


class EmulatedEngine(LayerEngine):
    """The kernels of a GPU; a call costs as much as there."""

    call = 1000.0
    library = None

    def __call__(self, xs, state):
        h0, c0 = (*state, None)[:2]
        output, *last = Emulated.apply(self.library, self.cell, xs[0], h0, c0, *self.weights)
        return [output], last


class AtOnceEngine(EmulatedEngine):
    """The same, all windows in one launch."""

    def _in_place(self, x):
        return None if self.weights[-1] is not None else KernelsAtOnce


class Walk:
    """An engine as a step for `run`: walked as it is, or in windows."""

    def __init__(self, engine, cut=None, levels=None):
        self.engine, self.cut, self.levels, self.report = engine, cut, levels, Report()

    def parameters(self):
        return self.engine.tensors

    def __call__(self, _, init, xs):
        if self.cut is None:
            [y], last = self.engine([xs], list(init))
        else:
            [y], last = speculate(self.engine, [xs], list(init), self.cut, self.levels, self.report)
        return tuple(last), y


def drawn(cell, T, B, I, H, dtype=torch.float32, gain=1.0):
    """Operands of a layer, and its first state."""
    torch.manual_seed(T + 7 * B + 31 * H)
    more = {"nonlinearity": "relu"} if cell == "rnn_relu" else {}
    w_ih, w_hh, *biases = [p.detach() for p in CELLS[cell](I, H, **more).parameters()]
    state = [torch.randn(B, H) for _ in range(1 + (cell == "lstm"))]
    tensors = [torch.randn(T, B, I), state[0], state[1] if cell == "lstm" else None]
    tensors = [*tensors, w_ih, gain * w_hh, *biases]
    return ops.Operands(*(None if t is None else t.to(dtype) for t in tensors))


def states_of(operands):
    return [s for s in operands[1:3] if s is not None]


def levels_of(state, level=1e-6):
    return Levels(tuple(torch.full_like(s[0], level) for s in state), (1.0,) * len(state), 30.0)


each_cell = pytest.mark.parametrize("cell", CELLS)
# What a forward keeps: of a cell that needs its output alone, nothing.
KEPT = {"rnn_tanh": Saved.NOTHING, "rnn_relu": Saved.NOTHING, "gru": Saved.GATES}
each_kept = pytest.mark.parametrize(
    "cell, saved",
    [*KEPT.items(), ("gru", Saved.STATES), ("lstm", Saved.STATES), ("lstm", Saved.GATES)],
)
# T, B, H, K, warm-up: with and without a head; no warm-up, one longer than rounds, the whole span.
CUTS = [(24, 2, 5, 4, 0), (29, 1, 20, 3, 1), (61, 3, 5, 5, 9), (40, 2, 33, 8, 5), (34, 2, 9, 2, 17)]


@each_kept
@pytest.mark.parametrize("sizes", CUTS, ids=str)
@pytest.mark.parametrize("dtype, I", [(torch.float32, 1), (torch.float32, 3), (torch.float64, 1)])
def test_one_launch_writes_the_walks_of_all_windows(cell, saved, sizes, dtype, I, library):
    """Bit by bit what each window's own walks write; in one launch, x where it lies."""
    T, B, H, K, warm = sizes
    kernels, operands = EmulatedWindows(library, grid_limit=5), drawn(cell, T, B, I, H, dtype)
    operands = operands._replace(x=operands.x.transpose(0, 1).contiguous().transpose(0, 1))
    state, cut = states_of(operands), Cut(T, K, T // K, warm)
    begun = [torch.cat([s, torch.randn((K - 1) * B, H).to(dtype)]) for s in state]
    given = operands._replace(h0=begun[0], c0=(*begun, None)[1]) if not warm else operands
    output, kept = kernels.recurrent_room(cell, operands, saved)
    first, last, met = kernels.recurrent_windows(
        cell, given, output, kept, (cut.head, K, cut.span, warm), *levels_of(state)[:2]
    )
    assert kernels.launches.count("forward") == 1 and len(kernels.launches) <= 2 + len(state)

    def walk(begin, end, state):
        part = operands._replace(x=operands.x[begin:end], h0=state[0], c0=(*state, None)[1])
        room = kernels.recurrent_room(cell, part, saved)
        cut = (0, 1, end - begin, 0)
        return *room, kernels.recurrent_windows(cell, part, *room, cut, *levels_of(state)[:2])[1]

    kept_places = _places(cell, kept, saved, T, B, H)
    for k, start in enumerate(cut.starts):
        own = slice(k * B, (k + 1) * B)
        if k and warm:
            state = walk(start - warm, start, [torch.zeros_like(s) for s in state])[2]
            assert all(torch.equal(a[own], b) for a, b in zip(first, state, strict=True))
        elif k:
            state = [s[own] for s in begun]
        begin, end = start if k else 0, start + cut.span
        of_output, of_kept, ends = walk(begin, end, state)
        assert torch.equal(of_output, output[begin:end])
        parts = _places(cell, of_kept, saved, end - begin, B, H)
        for a, b in zip(parts, kept_places, strict=True):
            assert torch.equal(a, b[begin:end])
        assert all(torch.equal(a[own], b) for a, b in zip(last, ends, strict=True))
    pairs = [
        (a[B:].unflatten(0, (-1, B)), b[:-B].unflatten(0, (-1, B))) for a, b in zip(first, last)
    ]
    assert [bool(good) for good in met] == levels_of(state).met_in_torch(*zip(*pairs)).tolist()


def _places(cell, kept, saved, T, B, H):
    """The parts of what a forward kept (csrc/cuda/recurrent.cu), time first."""
    flat, sizes = kept.flatten(), []
    if saved == Saved.GATES and cell in ("gru", "lstm"):
        sizes.append(4 * T * B * H)
    if saved != Saved.NOTHING and cell == "lstm":
        sizes.append(T * B * H)
    assert sum(sizes) == len(flat)
    return [part.reshape(T, -1) for part in flat.split(sizes)] if sizes else []


@each_kept
@pytest.mark.parametrize("sizes", CUTS, ids=str)
@pytest.mark.parametrize("loss", ["every", "last"])
def test_gradients_of_windows_are_those_of_the_walk(cell, saved, sizes, loss, library):
    """Where windows are given the true gradients; where they guess, the verdicts are as told."""
    T, B, H, K, back = sizes
    kernels, operands = EmulatedWindows(library), drawn(cell, T, B, 2, H, torch.float64)
    state, cut = states_of(operands), Cut(T, K, T // K, 0)
    walked = kernels.recurrent_room(cell, operands, saved)
    kernels.recurrent_windows(cell, operands, *walked, (0, 1, T, 0), *levels_of(state)[:2])
    u = torch.randn_like(walked[0]) if loss == "every" else None
    given = [torch.randn_like(s) for s in state]
    wanted = (True, True, True, True, False)

    def backward(cut, given, roundings=30.0):
        grad_x = torch.full_like(operands.x, float("nan"))
        found = kernels.recurrent_windows_backward(
            cell, operands, *walked, u, given, grad_x, wanted, cut, roundings
        )
        assert kernels.launches.count("replay") == 1
        return *found[:3], [bool(good) for good in found[3]], grad_x

    _, before, of_walk, _, x_of_walk = backward((0, 1, T, 0), given)
    guessed, left, _, met, _ = backward((cut.head, K, cut.span, max(back, 1)), given, 1e13)
    wide = levels_of(state)._replace(gradients=1e13)
    near = [
        ((a[:-B] - b[B:]).abs() <= wide.least_gradients(b[B:])).unflatten(0, (-1, B))
        for a, b in zip(guessed, left, strict=True)
    ]
    assert met == torch.stack(near).flatten(2).all(2).all(0).tolist()
    for _ in range(K):  # window by window what enters is right
        entering = [torch.cat([s[B:], g]) for s, g in zip(left, given, strict=True)]
        _, left, found, met, grad_x = backward((cut.head, K, cut.span, 0), entering)
    assert all(met)
    pairs = [(grad_x, x_of_walk), *zip([s[:B] for s in left], before), *zip(found[:4], of_walk)]
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_verdicts_beside_what_is_not_finite(bad, library):
    """As those of plain torch; B samples, of which one is bad."""
    kernels, operands = EmulatedWindows(library), drawn("rnn_relu", 90, 3, 2, 40)
    operands.x[34, 1] = bad
    room, levels = (
        kernels.recurrent_room("rnn_relu", operands, Saved.NOTHING),
        levels_of([operands.h0]),
    )
    first, last, met = kernels.recurrent_windows(
        "rnn_relu", operands, *room, (0, 9, 10, 5), *levels[:2]
    )
    guessed, true = first[0][3:].unflatten(0, (-1, 3)), last[0][:-3].unflatten(0, (-1, 3))
    assert [bool(good) for good in met] == levels.met_in_torch([guessed], [true]).tolist()
    assert not all(met)


@each_cell
@pytest.mark.parametrize("warm", [40, 3])
@pytest.mark.parametrize("kind", [EmulatedEngine, AtOnceEngine])
@pytest.mark.parametrize("proj_size", [0, 3])
def test_windows_are_as_exact_as_walks(cell, warm, kind, proj_size, library, monkeypatch):
    """They meet, or are repaired: either in windows of 100 steps, and after a head of one."""
    if proj_size and (cell != "lstm" or kind is AtOnceEngine):
        pytest.skip("no such option")
    monkeypatch.setattr(EmulatedEngine, "library", library)
    EmulatedWindows(library).patch(monkeypatch)
    torch.manual_seed(0)
    more = {"proj_size": proj_size} if proj_size else {}
    more |= {"nonlinearity": "relu"} if cell == "rnn_relu" else {}
    w_ih, w_hh, b_ih, b_hh, *w_hr = [p.detach() for p in CELLS[cell](2, 5, **more).parameters()]
    weights = [w_ih, 0.5 * w_hh, b_ih, b_hh, *w_hr]
    x = torch.randn(401, 2, 2)
    init = [torch.randn(2, proj_size or 5), *([torch.randn(2, 5)] if cell == "lstm" else [])]
    cut = Cut(401, 4, 100, warm)
    levels = look(LayerEngine(cell, weights), [x], init, 100).levels

    def results(kind, cut=None, dtype=torch.float32):
        own = [w.detach().to(dtype).requires_grad_() for w in weights]
        walk = Walk(kind(cell, own), cut, levels)
        return run(walk, walk, *leaves((tuple(init), x), dtype)), walk.report

    found, report = results(kind, cut)
    assert (report.missed == 0) == (warm == 40)
    walks = [results(kind)[0] for kind in (EmulatedEngine, LayerEngine)]
    assert_as_exact(found, walks, results(LayerEngine, dtype=torch.float64)[0], slack=2e-6)


@pytest.fixture
def kernels(library, monkeypatch):
    found = EmulatedWindows(library)
    found.patch(monkeypatch)
    monkeypatch.setattr(EmulatedEngine, "library", library)
    return found


def walked(engine, operands, cut=None, levels=None, last_only=False):
    """Results and gradients, and the report."""
    own = [t.detach().clone().requires_grad_() for t in operands if t is not None]
    x, *state = own[: 1 + len(states_of(operands))]
    walk, report = engine(own[len(state) + 1 :]), Report()
    if cut is None:
        [y], last = walk([x], state)
    else:
        [y], last = speculate(walk, [x], state, cut, levels, report)
    results = [*([] if last_only else [y]), *last]
    torch.manual_seed(1)
    torch.autograd.backward(results, [torch.rand_like(r) for r in results])
    return [y.detach(), *(s.detach() for s in last), *(t.grad for t in own)], report


@each_cell
def test_what_does_not_forget_is_walked_as_one(cell, kernels):
    """Of a recurrence that remembers, after passes that did not help: the bits of the walk."""
    operands = drawn(cell, 60, 2, 1, 6, torch.float64, gain=4.0)
    levels = levels_of(states_of(operands), 1e-12)
    found, report = walked(lambda w: AtOnceEngine(cell, w), operands, Cut(60, 10, 6, 2), levels)
    assert report.missed and report.passes == 2 and report.walked_from == 0
    wanted, _ = walked(lambda w: EmulatedEngine(cell, w), operands)
    for a, b in zip(found[:2], wanted):
        assert torch.equal(a, b)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@each_cell
@pytest.mark.parametrize("B", [1, 3])
def test_a_gradient_of_the_last_state_alone(cell, B, kernels):
    """It takes one pass, as a gradient of every output does."""
    operands = drawn(cell, 900, B, 1, 6, gain=0.3)
    levels = levels_of(states_of(operands))
    found, report = walked(
        lambda w: AtOnceEngine(cell, w), operands, Cut(900, 3, 300, 60), levels, last_only=True
    )
    assert (report.missed, report.gradients_missed) == (0, 0) and report.backward_passes == 1
    wanted, _ = walked(lambda w: EmulatedEngine(cell, w), operands, last_only=True)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@each_cell
def test_what_was_guessed_too_shortly_is_repaired_in_one_pass(cell, kernels):
    operands = drawn(cell, 363, 3, 1, 6, gain=0.5)
    levels = levels_of(states_of(operands), 1e-7)
    found, report = walked(
        lambda w: AtOnceEngine(cell, w), operands, Cut(363, 3, 120, 2, back=2), levels
    )
    assert report.missed and report.passes == 1 and report.walked_from is None
    assert report.gradients_missed and report.backward_passes == 2
    wanted, _ = walked(lambda w: EmulatedEngine(cell, w), operands)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)

"""The parts of the executor that need no second process."""

import copy
import random
import types

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from lightning_utilities.core.rank_zero import rank_zero_only
from torch import nn
from torch.utils.checkpoint import checkpoint

from bppsa_lightning._same_batches import LoaderRandomness, SameBatches, generators
from bppsa_lightning.layerpipe import capture, movable, planning, refuse
from bppsa_lightning.layerpipe.capture import StepRandomness
from bppsa_lightning.layerpipe.channels import Channel
from bppsa_lightning.layerpipe.delayed import DelayedPipeline
from bppsa_lightning.layerpipe.delays import layer_delays, spans
from bppsa_lightning.layerpipe.plan import at_home
from bppsa_lightning.layerpipe.stage import Stage
from bppsa_lightning.layerpipe.trace import Event, Trace, observed_delays
from bppsa_lightning.layerpipe.weights import Stash
from bppsa_lightning.layerpipe.zero_bubble import ZeroBubblePipeline, order, part_of


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("micro_batches", [1, 3, 8])
def test_the_order_of_zero_bubble(stages, micro_batches):
    for stage in range(stages):
        tasks = order(stage, stages, micro_batches)
        assert sorted(tasks) == sorted(
            f"{stage}{kind}{j}" for kind in "FIW" for j in range(micro_batches)
        )
        held = most = 0
        for task in tasks:
            held += {"F": 1, "I": 0, "W": -1}[task[len(str(stage))]]
            most = max(most, held)
        assert most <= stages  # as the first stage under 1F1B
        for j in range(micro_batches):
            places = [tasks.index(f"{stage}{kind}{j}") for kind in "FIW"]
            assert places == sorted(places)


def test_a_batch_is_divided_by_its_samples():
    batch = {"x": torch.arange(6), "pair": (torch.ones(3, 6), "name"), "weight": torch.tensor(2.0)}
    part = part_of(batch, 1, 3, 6)
    assert part["x"].tolist() == [2, 3]
    assert part["pair"][0].shape == (3, 6) and part["pair"][1] == "name" and part["weight"] == 2


def test_zero_bubble_divides_alike():
    pipeline = ZeroBubblePipeline.__new__(ZeroBubblePipeline)
    pipeline.micro_batches, pipeline._rows = 4, None
    with pytest.raises(ValueError, match="batch: found 6 samples, wanted a multiple of micro_ba"):
        pipeline._divisible(torch.ones(6, 2))
    pipeline._divisible(torch.ones(8, 2))
    with pytest.raises(ValueError, match="found 4 samples, wanted 8, as in the first mini-batch"):
        pipeline._divisible(torch.ones(4, 2))


LAYERS = [
    (lambda: nn.Linear(5, 3), (4, 5)),
    (lambda: nn.Linear(5, 3, bias=False), (4, 2, 5)),
    (lambda: nn.Conv1d(4, 6, 3, stride=2, groups=2), (3, 4, 9)),
    (lambda: nn.Conv2d(2, 4, (3, 2), padding=(1, 0), dilation=2, bias=False), (3, 2, 7, 6)),
    (lambda: nn.Conv3d(1, 2, 2, padding=1), (2, 1, 3, 4, 3)),
]


@pytest.mark.parametrize(("make", "size"), LAYERS, ids=[repr(make()) for make, _ in LAYERS])
def test_gradients_without_the_forwards_graph(make, size):
    layer = make().double()
    assert movable.is_movable(layer)
    x = torch.randn(size, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    g = torch.randn_like(y)
    dx, *dw = torch.autograd.grad(y, [x, *layer.parameters()], g)
    torch.testing.assert_close(movable.input_gradient(layer, g, layer.weight.detach(), size), dx)
    found = movable.weight_gradient(layer, x.detach(), g)
    torch.testing.assert_close(found, dw)


def test_what_is_not_movable():
    hooked = nn.Linear(2, 2)
    hooked.register_forward_hook(lambda *_: None)
    pruned = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    same = nn.Conv2d(1, 1, 3, padding="same")
    circular = nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")
    masked = nn.Linear(2, 2)
    masked.weight.register_hook(lambda g: g * 0)
    for layer in (hooked, masked, pruned, same, circular, nn.ReLU(), nn.BatchNorm1d(2)):
        assert not movable.is_movable(layer)


def test_a_micro_batchs_norm_is_warned_of(monkeypatch):
    monkeypatch.setattr(rank_zero_only, "rank", 0, raising=False)
    chain = nn.Sequential(nn.BatchNorm1d(2))
    trainer = types.SimpleNamespace(gradient_clip_algorithm=None, gradient_clip_val=None)
    strategy = types.SimpleNamespace(
        is_delayed=False, micro_batches=2, stages=2, lightning_module=pl.LightningModule()
    )
    with pytest.warns(UserWarning, match="Batch norms see micro-batches"):
        refuse.warn(trainer, strategy, chain)
    strategy.is_delayed, trainer.gradient_clip_val = True, 1.0
    with pytest.warns(UserWarning, match="clips the norm of each stage's gradient"):
        refuse.warn(trainer, strategy, chain)


def test_an_own_clipping_is_warned_of(monkeypatch):
    class Clips(pl.LightningModule):
        def configure_gradient_clipping(self, *args):
            torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0)

    monkeypatch.setattr(rank_zero_only, "rank", 0, raising=False)
    trainer = types.SimpleNamespace(gradient_clip_algorithm=None, gradient_clip_val=None)
    strategy = types.SimpleNamespace(is_delayed=True, stages=2, lightning_module=Clips())
    with pytest.warns(UserWarning, match="Clips.configure_gradient_clipping runs in each process"):
        refuse.warn(trainer, strategy, nn.Sequential())


def test_a_loss_scaler_of_several_stages_is_refused():
    scaling = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
    trainer = types.SimpleNamespace(
        lightning_module=pl.LightningModule(), precision_plugin=scaling, precision="16-mixed"
    )
    for is_delayed in (False, True):
        strategy = types.SimpleNamespace(is_delayed=is_delayed, stages=2, _layer_sync=None)
        with pytest.raises(ValueError, match="found '16-mixed' .* without a loss scaler"):
            refuse.refuse(trainer, strategy)


def test_what_cannot_be_sent():
    channel = Channel(1, None, torch.device("cpu"), 1)
    with pytest.raises(TypeError, match="found a tensor of 1 dimensions and torch.complex64"):
        channel.send(torch.ones(2, dtype=torch.complex64))


def test_the_plan_counts_operations_and_leaves_the_model_alone():
    chain = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 4))
    before = {name: value.clone() for name, value in chain.state_dict().items()}
    torch.manual_seed(0)
    costs, kept = planning.profile(chain, torch.randn(32, 8))
    drawn = torch.rand(3)
    torch.manual_seed(0)
    torch.randn(32, 8)
    assert torch.equal(drawn, torch.rand(3))
    assert all(torch.equal(before[name], value) for name, value in chain.state_dict().items())
    each = planning.OPERATIONS_PER_NUMBER
    assert costs[0].forward == 32 * 8 * 16 + each * 32 * (8 + 16)
    assert costs[0].input_gradient == 0 and costs[3].input_gradient > 32 * 16 * 4
    assert costs[2].weight_gradient == 0
    assert kept[0] >= 32 * 8 * 4 and kept[3] >= 32 * 16 * 4


def test_kept_bytes_bound_what_a_stage_holds():
    """Everything that a mini-batch under way keeps alive, but the weights."""
    chain = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    x = torch.randn(32, 8)
    _, kept = planning.profile(chain, x)
    stage = Stage(list(chain), range(3), Stash(chain.parameters()), Trace(False))
    stage.forward(0, x)
    alive = {}
    for piece in stage.under_way[0].pieces:
        for tensor in (piece.x, piece.y):
            alive[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
    last = stage.under_way[0].pieces[-1].y.untyped_storage().nbytes()
    assert sum(alive.values()) - last <= sum(kept)


def test_a_backward_sees_its_forwards_weights_though_their_storage_was_exchanged():
    layer = nn.Linear(3, 2, bias=False).double()
    chain = nn.Sequential(nn.Identity(), layer)
    stage = Stage(list(chain), range(2), Stash(chain.parameters()), Trace(False))
    layer.weight.data = layer.weight.data.clone()  # as callbacks do that average weights
    seen = layer.weight.detach().clone()
    stage.forward(0, torch.ones(4, 3, dtype=torch.float64))
    stage.before_update()
    layer.weight.data.mul_(7)
    stage.after_update()
    found = {}
    g = torch.randn(4, 2, dtype=torch.float64)
    stage.input_gradients(0, g, lambda index, piece: found.setdefault(index, piece.g))
    torch.testing.assert_close(found[0], g @ seen)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return checkpoint(lambda x: torch.tanh(self.linear(x)), x, use_reentrant=False)


class Shifted(nn.Module):
    """Parameters that lie one behind the other in one storage."""

    def __init__(self):
        super().__init__()
        both = torch.randn(30)
        self.a = nn.Parameter(both[3:12].view(3, 3))
        self.b = nn.Parameter(both[12:21].view(3, 3))

    def forward(self, x):
        return torch.tanh(x @ self.a) @ self.b.T


@pytest.mark.parametrize("kind", [Checkpointed, Shifted])
def test_a_backward_sees_its_forwards_weights_wherever_they_are(kind):
    """Also where it walks a layer again, and where a storage holds several parameters."""
    torch.manual_seed(0)
    layer, x, g = kind().double(), torch.randn(4, 3).double(), torch.randn(4, 3).double()
    if kind is Shifted:  # (conversion gives each a storage of its own)
        both = torch.randn(30, dtype=torch.float64)
        layer.a.data, layer.b.data = both[3:12].view(3, 3), both[12:21].view(3, 3)
    true = copy.deepcopy(layer)
    leaf = x.clone().requires_grad_()
    true(leaf).backward(g)
    chain = nn.Sequential(nn.Identity(), layer)
    stage = Stage(list(chain), range(2), Stash(chain.parameters()), Trace(False))
    stage.forward(0, x)
    for _ in range(2):
        stage.before_update()
        with torch.no_grad():
            for p in layer.parameters():
                p.mul_(3)
        stage.after_update()
    now = [p.detach().clone() for p in layer.parameters()]
    found = {}
    stage.input_gradients(0, g, lambda index, piece: found.setdefault(index, piece.g))
    stage.weight_gradients(0)
    torch.testing.assert_close(found[0], leaf.grad)
    for p, q, kept in zip(layer.parameters(), true.parameters(), now, strict=True):
        torch.testing.assert_close(p.grad, q.grad)
        assert torch.equal(p, kept)


def test_a_loader_may_fill_its_buffer_again():
    chain = nn.Sequential(nn.Linear(3, 2), nn.Identity())
    stage = Stage(list(chain), range(1), Stash(chain.parameters()), Trace(False))
    links = types.SimpleNamespace(
        channel=lambda *_: types.SimpleNamespace(send=lambda y: None, receive=lambda: g)
    )
    pipeline = DelayedPipeline(stage, 0, at_home(2, (1,), "pipedream", True), links, chain)
    x, g = torch.randn(4, 3), torch.randn(4, 2)
    first = x.clone()
    pipeline.forward(x)
    x.zero_()
    pipeline.backward(1)
    torch.testing.assert_close(chain[0].weight.grad, g.T @ first)


def test_a_step_s_noise_is_one_in_both_stages():
    """Though the layers of each draw differently; and what it draws later is a process' own."""
    states, drawn = generators(), {"first": [], "last": []}
    for stage, dropouts in (("first", 3), ("last", 8)):
        torch.manual_seed(dropouts)
        randomness = StepRandomness(states, torch.device("cpu"))

        def step(stage=stage, randomness=randomness):
            drawn[stage].append(torch.rand(2).tolist() + [random.random(), np.random.rand()])
            randomness.leave()  # as a call of the chain
            return torch.rand(1)

        for _ in range(3):
            torch.rand(dropouts)  # of the stage's layers
            before = torch.get_rng_state()
            own = randomness.around(step)()
            after = torch.get_rng_state()
            torch.set_rng_state(before)
            assert torch.equal(torch.rand(1), own) and torch.equal(torch.get_rng_state(), after)
    assert drawn["first"] == drawn["last"] and drawn["first"][0] != drawn["first"][1]


def test_a_second_gradient_in_a_step_is_refused():
    closure = refuse.asked_once(torch.optim.Adadelta([nn.Parameter(torch.ones(1))]), lambda: 3)
    assert closure() == 3
    with pytest.raises(ValueError, match="configure_optimizers: found 'Adadelta' with"):
        closure()


class Unused(nn.Module):
    """With a weight that its output does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return 2 * x


@pytest.mark.parametrize("layer", [Unused(), nn.Linear(3, 3).requires_grad_(False)])
@pytest.mark.parametrize("index", [0, 1])
def test_no_gradient_of_weights_that_an_output_does_not_depend_on(index, layer):
    """And not of what is trained only since its forward."""
    stage = Stage([nn.ReLU(), layer][1 - index :], range(1 + index), Stash([]), Trace(False))
    layer.requires_grad_(isinstance(layer, Unused))
    stage.forward(0, torch.ones(2, 3))
    layer.requires_grad_()
    assert stage.input_gradients(0, torch.ones(2, 3)) is None
    stage.weight_gradients(0)
    assert all(p.grad is None for p in layer.parameters()) and not stage.under_way


def test_loaders_draw_from_their_own_generators():
    randomness = LoaderRandomness()
    state = torch.get_rng_state()
    batches = SameBatches([torch.rand(1)], randomness)
    assert len(batches) == 1 and len(list(batches)) == 1
    assert not torch.equal(state, torch.get_rng_state())  # the rand above, and nothing else
    before = torch.get_rng_state()
    drawn = list(SameBatches(torch.utils.data.DataLoader(range(8), shuffle=True), randomness))
    assert len(drawn) == 8 and torch.equal(before, torch.get_rng_state())


def test_delays_and_cuts():
    assert layer_delays("layerpipe", (2, 5), 7) == [4, 4, 2, 2, 2, 0, 0]
    assert layer_delays("pipedream", (2, 5), 7) == [2, 2, 1, 1, 1, 0, 0]
    assert layer_delays("gpipe", (2, 5), 7) == [0] * 7
    for cuts in ((0, 3), (3, 3), (7,), (5, 2)):
        with pytest.raises(
            ValueError, match="cuts: found .* wanted rising numbers between 1 and 6"
        ):
            spans(cuts, 7)


def test_a_delay_is_read_off_the_order_of_the_tasks():
    def event(kind, batch):
        return Event(kind, 0, batch, 0, 0.0, 0.0)

    events = [event("F", 0), event("F", 1), event("F", 2), event("U", 0), event("F", 3)]
    assert observed_delays(events) == {0: 2}


def test_a_step_that_hides_errors_still_ends_at_the_chain():
    chain = nn.Sequential(nn.Linear(2, 2))

    def step():
        try:
            chain(torch.ones(1, 2))
        except Exception:  # a user's habit
            pytest.fail("the step went on")

    assert capture.input_of(chain, "net", step).shape == (1, 2)
    assert "forward" not in vars(chain)

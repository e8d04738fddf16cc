"""The pipeline on gloo processes against delayed SGD in one process, and against stock."""

import functools
import json

import lightning.pytorch as pl
import pytest
import torch
from support import forked
from support import layerpipe_training as training
from support.helpers import assert_close
from torch import nn

from bppsa_lightning.layerpipe.delays import layer_delays
from bppsa_lightning.layerpipe.reference import delayed_sgd

pytestmark = pytest.mark.slow
DELAYED = [
    f"{schedule}-{optimizer}-delayed-{versions}-{layers}"
    for schedule, optimizer, versions, layers in [
        ("layerpipe", "sgd", "stash", "perceptron"),
        ("layerpipe", "adam", "stash", "perceptron"),
        ("layerpipe", "sgd", "stash", "convolutions"),
        ("layerpipe", "adam", "average", "elementary"),
        ("pipedream", "sgd", "stash", "perceptron"),
        ("pipedream", "adam", "average", "elementary"),
    ]
]
EXACT = [
    "layerpipe-sgd-exact-stash-perceptron",
    "pipedream-adam-exact-stash-elementary",
    "gpipe-sgd-delayed-stash-perceptron",
    "zero_bubble-adam-delayed-stash-perceptron",
]
# Two processes train all, three and four each half of them: every schedule meets more than one
# number of stages.
CASES = {2: DELAYED + EXACT, 3: DELAYED[1::2] + EXACT[::2], 4: DELAYED[::2] + EXACT[1::2]}
TRAINER = {2: ["lent", "drained", "features"], 3: [], 4: ["lent"]}


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """What so many processes left: their folder, and {(case, rank): what that process has}."""

    @functools.cache
    def left(processes):
        folder = tmp_path_factory.mktemp(f"pipeline{processes}")
        script = forked.TESTS / "support" / "layerpipe_training.py"
        cases = CASES[processes] + TRAINER[processes]
        forked.run(folder, script, processes, folder, *cases, ranks=processes)
        found = {}
        for file in folder.glob("*.pt"):
            case, _, rank = file.stem.rpartition("_")
            found[case, int(rank)] = torch.load(file, weights_only=True)
        return folder, found

    return left


def loss_of(y, batch):
    return nn.functional.cross_entropy(y, batch[1])


def oracle(case, cuts):
    """The model after the same training in one process."""
    schedule, optimizer, delays, versions, layers = case.split("-")
    model = training.Model(getattr(training, layers), optimizer).double()
    [optimizer], [scheduler] = model.configure_optimizers()
    count = len(model.net)
    ages = layer_delays(schedule, cuts, count) if delays == "delayed" else [0] * count
    batches = training.of_a_case(case)
    delayed_sgd(
        model.net, batches, loss_of, optimizer, ages, versions=versions,
        after_update=lambda _: scheduler["scheduler"].step(),
    )  # fmt: skip
    return model, ages


def without_statistics(weights):
    """BatchNorm's running statistics apart: functional calls of the oracle do not keep them."""
    return {n: w for n, w in weights.items() if "running" not in n and "num_batches" not in n}


def each_of(cases):
    """Each of these cases on each number of processes that trains it."""
    trained = [(processes, case) for processes in CASES for case in CASES[processes]]
    return pytest.mark.parametrize(
        ("processes", "case"), [(processes, case) for processes, case in trained if case in cases]
    )


lent = pytest.mark.parametrize("processes", [n for n in TRAINER if "lent" in TRAINER[n]])


@each_of(DELAYED + EXACT)
def test_weights_are_those_of_delayed_sgd(left, processes, case):
    _, found = left(processes)
    model, _ = oracle(case, training.CUTS[processes])
    wanted = without_statistics(model.state_dict())
    for rank in range(processes):
        weights = without_statistics(found[case, rank]["weights"])
        assert found[case, rank]["steps"] == len(training.of_a_case(case)) >= 50
        assert_close(weights, wanted, 1e-10)


@each_of(DELAYED)
def test_the_delay_of_every_layer_as_the_trace_shows_it(left, processes, case):
    folder, found = left(processes)
    count = len(getattr(training, case.split("-")[-1])())
    wanted = layer_delays(case.split("-")[0], training.CUTS[processes], count)
    assert found[case, 0]["observed"] == dict(enumerate(wanted))
    rows = json.loads((folder / f"{case}.json").read_text())["traceEvents"]
    tasks = [row for row in rows if row["ph"] == "X"]
    assert {row["pid"] for row in tasks} == set(range(processes))
    assert {row["cat"] for row in tasks} == {"F", "D", "G", "U"}
    assert not any(row["cat"] == "D" and row["args"]["layer"] == 0 for row in tasks)


@lent
@pytest.mark.parametrize("name", ["weights", "inputs", "both"])
def test_tasks_that_are_lent_to_other_stages_change_nothing(left, processes, name):
    _, found = left(processes)
    case, cuts = f"lent-{name}", found[f"lent-{name}", 0]["plan"]
    model, _ = oracle("layerpipe-sgd-delayed-stash-perceptron", cuts)
    for rank in range(processes):
        assert_close(found[case, rank]["weights"], model.state_dict(), 1e-10)


@lent
def test_processes_meet_within_an_epoch_while_tasks_are_lent(left, processes):
    """At a user's barrier they would wait for each other for ever if the pipeline did not drain."""
    _, found = left(processes)
    model = training.Model().double()
    [optimizer], [scheduler] = model.configure_optimizers()
    ages = layer_delays("layerpipe", found["validated", 0]["plan"], len(model.net))
    delayed_sgd(
        model.net, training.of_a_case("lent"), loss_of, optimizer, ages, drains=(11, 20, 40),
        after_update=lambda _: scheduler["scheduler"].step(),
    )  # fmt: skip
    for rank in range(processes):
        assert_close(found["validated", rank]["weights"], model.state_dict(), 1e-10)


class TestTrainer:
    """What a Trainer does between the steps, on two processes."""

    def test_it_drains_before_validations_and_checkpoints(self, left):
        """The oracle drains where the run validated (25) and kept checkpoints (20, 40)."""
        _, found = left(2)
        model, _ = self.drained((20, 25, 40))
        for rank in (0, 1):
            assert_close(found["drained", rank]["weights"], model.state_dict(), 1e-10)
        assert found["drained", 1]["metrics"].keys() == found["drained", 0]["metrics"].keys()
        for rank in (0, 1):
            metrics = found["drained", rank]["metrics"]
            assert {"train_loss", "val_loss"} <= metrics.keys()
            assert metrics["train_seen"] == metrics["val_seen"] == len(training.data())

    @staticmethod
    def drained(drains, batches=None):
        model = training.Model(optimizer="adam").double()
        [optimizer], [scheduler] = model.configure_optimizers()
        ages = layer_delays("layerpipe", training.CUTS[2], len(model.net))
        losses = delayed_sgd(
            model.net, batches or training.loader(), loss_of, optimizer, ages, drains=drains,
            after_update=lambda _: scheduler["scheduler"].step(),
        )  # fmt: skip
        return model, losses

    def test_a_resumed_run_goes_on(self, left):
        _, found = left(2)
        # A loader without a state begins again, as under stock Lightning.
        batches = list(training.loader())
        model, _ = self.drained((20, 25), batches[:20] + batches[:30])
        for rank in (0, 1):
            assert_close(found["resumed", rank]["weights"], model.state_dict(), 1e-10)

    def test_a_checkpoint_is_one_file_that_stock_lightning_loads(self, left):
        folder, _ = left(2)
        path = folder / "kept" / "step=20.ckpt"
        stock = training.Model.load_from_checkpoint(path, optimizer="adam")
        kept = torch.load(path, weights_only=False)
        [optimizer], _ = stock.configure_optimizers()
        optimizer.load_state_dict(kept["optimizer_states"][0])
        steps = {float(state["step"]) for state in optimizer.state.values()}
        assert steps == {20.0} and len(optimizer.state) == len(list(stock.parameters()))
        # Stock goes on from it.
        train = training.trainer("auto", 1)
        train.fit(stock, training.loader(), ckpt_path=path)
        assert train.global_step == training.STEPS

    def test_predictions_are_those_of_the_whole_model(self, left):
        _, found = left(2)
        model = training.Model(optimizer="adam").double()
        model.load_state_dict(found["predicted", 0]["weights"])
        wanted = model.eval().net(training.data().tensors[0])
        assert torch.allclose(found["predicted", 1]["predicted"], wanted, atol=1e-12)

    @pytest.mark.parametrize(
        ("name", "settings"),
        [
            ("clipped", {"gradient_clip_val": 0.05}),
            ("accumulated", {"accumulate_grad_batches": 2}),
            ("accumulated_zb", {"accumulate_grad_batches": 2}),
        ],
    )
    def test_without_delays_it_trains_as_stock_does(self, left, name, settings):
        _, found = left(2)
        model = self.frozen()
        training.trainer("auto", 1, **settings).fit(model, training.loader())
        for rank in (0, 1):
            assert_close(found[name, rank]["weights"], model.state_dict(), 1e-10)

    def test_processes_shuffle_alike_and_as_stock_does(self, left):
        """Their own generators were seeded differently; rank 0's counts."""
        _, found = left(2)
        model = self.frozen()
        pl.seed_everything(7, verbose=False)
        train = training.trainer("auto", 1, max_epochs=2)
        train.fit(model, training.loader(shuffle=True))
        assert_close(found["shuffled", 1]["weights"], model.state_dict(), 1e-10)

    @staticmethod
    def frozen():
        model = training.Model()
        for parameter in model.net[4].parameters():
            parameter.requires_grad_(False)
        return model

    def test_values_are_clipped_in_every_stage(self, left):
        _, found = left(2)
        model = self.frozen().double()
        [optimizer], [scheduler] = model.configure_optimizers()
        ages = layer_delays("layerpipe", training.CUTS[2], len(model.net))
        optimizer.register_step_pre_hook(
            lambda *_: nn.utils.clip_grad_value_(model.parameters(), 0.01)
        )
        delayed_sgd(
            model.net, training.loader(), loss_of, optimizer, ages,
            after_update=lambda _: scheduler["scheduler"].step(),
        )  # fmt: skip
        assert_close(found["clipped_value", 1]["weights"], model.state_dict(), 1e-10)

    @pytest.mark.parametrize("name", ["mixed", "epochs", "default_cuts"])
    def test_all_processes_end_with_the_same_weights(self, left, name):
        _, found = left(2)
        one, other = (found[name, rank] for rank in (0, 1))
        assert all(torch.equal(one["weights"][n], w) for n, w in other["weights"].items())
        assert one["steps"] == (3 if name == "epochs" else 1) * training.STEPS
        assert all(torch.isfinite(w).all() for w in one["weights"].values())
        before = training.Model().state_dict()["net.0.weight"]
        assert not torch.allclose(one["weights"]["net.0.weight"].float(), before, atol=1e-3)

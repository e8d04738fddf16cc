"""Trainer(strategy="bppsa_ddp"): the training of two processes is that of Lightning's own "ddp"."""

import pytest
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.pytorch.plugins import DoublePrecision, TorchSyncBatchNorm
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry
from support import forked
from support.helpers import assert_close, trainer

import bppsa_lightning as bl


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """What each of two processes had at the end of its trainings: {(training, rank): …}."""
    folder = tmp_path_factory.mktemp("ddp")
    forked.run(folder, forked.TESTS / "support" / "ddp_training.py", folder)
    return {
        tuple(path.stem.rsplit("_", 1)): torch.load(path, weights_only=True)
        for path in folder.glob("*.pt")
    }


@pytest.mark.parametrize(
    ("training", "strategy"),
    [("layers", "bppsa_ddp"), ("images", "bppsa_ddp"), ("layers", "bppsa")],
)
def test_two_processes_train_as_under_lightnings_own_strategy(left, training, strategy):
    stock, ours = ([left[f"{training}_{s}", r] for r in "01"] for s in ("ddp", strategy))
    for one, other in zip(stock, ours, strict=True):
        assert one["steps"] == other["steps"] > 0
        assert other["losses"] == pytest.approx(one["losses"], rel=1e-9)
        assert_close(other["weights"], one["weights"], 1e-9)
    # Each had half of the data, and has what both learned.
    assert ours[0]["losses"] != pytest.approx(ours[1]["losses"], rel=1e-3)
    shared = [name for name in ours[0]["weights"] if "running" not in name]
    assert all(torch.equal(ours[0]["weights"][n], ours[1]["weights"][n]) for n in shared)


@pytest.mark.parametrize("strategy", ["bppsa_ddp", "bppsa"])
def test_two_processes_validate_as_under_lightnings_own_strategy(left, strategy):
    for rank in "01":
        found = left[f"layers_{strategy}_validated", rank]
        assert found["val"] == pytest.approx(left["layers_ddp_validated", rank]["val"], rel=1e-9)
        assert "2 of 2 recurrent layers accelerated" in found["explanation"]


def test_each_process_scans_its_recurrent_layers(left):
    for rank in "01":
        assert left["layers_bppsa_ddp", rank]["scans"] == 5  # 1 and 2 layers x 2 directions
        assert "not accelerated" not in left["layers_bppsa_ddp", rank]["explanation"]


def test_pruned_layers_stay_dense_parameters_which_ddp_knows(left):
    stock, ours = left["images_ddp", "0"], left["images_bppsa_ddp", "0"]
    assert ours["optimized"] == stock["optimized"]
    masks = [name for name in ours["weights"] if name.endswith("_mask")]
    assert len(masks) >= 3 and " sparse " in ours["explanation"]
    kept = torch.cat([ours["weights"][name].flatten() for name in masks])
    assert kept.mean() == pytest.approx(0.03, abs=0.001)


@pytest.mark.parametrize(
    ("name", "start_method"),
    [
        ("bppsa_ddp", "popen"),
        ("bppsa_ddp_spawn", "spawn"),
        ("bppsa_ddp_fork", "fork"),
        ("bppsa_ddp_notebook", "fork"),
    ],
)
def test_the_names_of_the_strategy(name, start_method):
    assert name in StrategyRegistry
    strategy = trainer(name, devices=2).strategy
    assert type(strategy) is bl.BPPSADDPStrategy and strategy.algorithm == "auto"
    assert strategy._start_method == start_method and strategy.num_processes == 2


def test_its_arguments_are_those_of_ddp_and_the_algorithm():
    strategy = bl.BPPSADDPStrategy("linear", find_unused_parameters=True, start_method="spawn")
    assert isinstance(strategy, DDPStrategy) and strategy.algorithm == "linear"
    assert strategy._ddp_kwargs == {"find_unused_parameters": True}
    with pytest.raises(ValueError, match="algorithm: found 'fast', wanted one of"):
        bl.BPPSADDPStrategy(algorithm="fast")


@pytest.mark.parametrize(
    "settings", [{"devices": 2}, {"num_nodes": 2}, {"devices": 2, "num_nodes": 3}], ids=str
)
@pytest.mark.parametrize("strategy", ["bppsa", bl.BPPSAStrategy])
def test_the_strategy_for_one_device_is_ddp_on_several(strategy, settings):
    given = strategy if isinstance(strategy, str) else strategy("linear")
    train = trainer(given, **settings)
    assert type(train.strategy) is bl.BPPSADDPStrategy
    assert train.strategy.algorithm == ("auto" if isinstance(strategy, str) else "linear")
    assert train.strategy.num_processes == settings.get("devices", 1)
    assert train.strategy.num_nodes == settings.get("num_nodes", 1)
    assert train.world_size == settings.get("devices", 1) * settings.get("num_nodes", 1)
    assert train.strategy.launcher.num_processes == settings.get("devices", 1)


def test_what_was_given_to_the_strategy_for_one_device_counts_on_several():
    checkpoint_io, environment = TorchCheckpointIO(), LightningEnvironment()
    strategy = bl.BPPSAStrategy(checkpoint_io=checkpoint_io)
    train = trainer(
        strategy, devices=2, precision="64-true", plugins=[environment], sync_batchnorm=True
    )
    assert train.strategy is strategy and strategy.checkpoint_io is checkpoint_io
    assert strategy.cluster_environment is environment
    assert isinstance(strategy.precision_plugin, DoublePrecision)
    assert isinstance(strategy._layer_sync, TorchSyncBatchNorm)
    assert strategy.scans == strategy.chains == []


class Subclass(bl.BPPSAStrategy):
    """A user's own."""


@pytest.mark.parametrize("strategy", [Subclass, lambda: bl.BPPSAStrategy(device="cpu")])
@pytest.mark.parametrize("settings", [{"devices": 2}, {"num_nodes": 2}], ids=str)
def test_what_is_for_one_device_alone_refuses_more(strategy, settings):
    [name] = settings
    with pytest.raises(ValueError, match=rf"{name}: found 2, wanted 1 .* or use BPPSADDPStrategy"):
        trainer(strategy(), **settings)

"""How the strategy is named: by a string, an instance, a class path, YAML; its device."""

import pytest
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.plugins import DoublePrecision
from lightning.pytorch.strategies import StrategyRegistry
from support.helpers import (
    B,
    Classifier,
    T,
    assert_identical,
    data,
    fit,
    trainer,
    weights,
)

import bppsa_lightning as bl


def test_the_name_is_registered():
    assert "bppsa" in StrategyRegistry.available_strategies()
    assert StrategyRegistry["bppsa"]["strategy"] is bl.BPPSAStrategy
    assert bl.BPPSAStrategy.strategy_name == "bppsa"


def test_by_name_or_by_instance():
    by_name, by_instance = fit("bppsa"), fit(bl.BPPSAStrategy())
    assert_identical(weights(by_name), weights(by_instance))
    assert by_name.trainer.strategy.algorithm == by_instance.trainer.strategy.algorithm == "auto"
    assert by_name.trainer.strategy.root_device == torch.device("cpu")


def test_one_instance_serves_two_trainers():
    strategy = bl.BPPSAStrategy(algorithm="chunked")
    first, second = fit(strategy), fit(strategy)
    assert first.trainer is not second.trainer
    assert_identical(weights(first), weights(second))
    assert strategy.chains == [] and strategy.scans[0][2].algorithm == "chunked"


def test_the_next_trainer_of_an_instance_makes_its_own_choices():
    given = TorchCheckpointIO()
    strategy = bl.BPPSAStrategy(checkpoint_io=given)
    fit(strategy, precision="64-true", plugins=[LightningEnvironment()])
    assert isinstance(strategy.precision_plugin, DoublePrecision)
    model = fit(strategy, plugins=[LightningEnvironment()])
    assert not isinstance(strategy.precision_plugin, DoublePrecision)
    assert strategy.checkpoint_io is given and model.rnn.weight_hh_l0.dtype == torch.float32
    with pytest.raises(MisconfigurationException, match="checkpoint_io set through both"):
        trainer(strategy, plugins=[TorchCheckpointIO()])
    strategy = bl.BPPSAStrategy()
    assert isinstance(strategy.checkpoint_io, TorchCheckpointIO)  # Lightning's default
    trainer(strategy, plugins=[given])
    assert strategy.checkpoint_io is given


CONFIG = """
trainer:
  strategy:
    class_path: bppsa_lightning.BPPSAStrategy
    init_args:
      algorithm: chunked
"""


@pytest.mark.parametrize(
    ("how", "algorithm"),
    [
        (["--trainer.strategy=bppsa"], "auto"),
        (["--trainer.strategy.class_path=bppsa_lightning.BPPSAStrategy"], "auto"),
        (
            ["--trainer.strategy=bppsa_lightning.BPPSAStrategy"]
            + ["--trainer.strategy.algorithm=blelloch"],
            "blelloch",
        ),
        (CONFIG, "chunked"),
    ],
    ids=["name", "class path", "argument", "YAML"],
)
def test_from_the_command_line(how, algorithm, tmp_path):
    pytest.importorskip("jsonargparse")
    from lightning.pytorch.cli import LightningCLI

    if isinstance(how, str):
        (tmp_path / "config.yaml").write_text(how)
        how = [f"--config={tmp_path / 'config.yaml'}"]
    off = ["logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"]
    cli = LightningCLI(
        Classifier,
        args=[*how, "--trainer.accelerator=cpu", "--trainer.max_steps=2", "--model.hidden=5"]
        + [f"--trainer.{name}=false" for name in off],
        run=False,
        save_config_callback=None,
    )
    cli.trainer.fit(cli.model, data())
    assert isinstance(cli.trainer.strategy, bl.BPPSAStrategy)
    assert cli.trainer.strategy.algorithm == algorithm
    [(_, shape, plan)] = cli.trainer.strategy.scans
    assert shape == (T, B, 5) and algorithm in ("auto", plan.algorithm)


@pytest.mark.parametrize(
    ("algorithm", "error", "message"),
    [
        ("fast", ValueError, "algorithm: found 'fast', wanted one of auto, linear"),
        (3, TypeError, "algorithm: found int, wanted str"),
    ],
)
def test_an_unknown_algorithm_is_refused_at_once(algorithm, error, message):
    with pytest.raises(error, match=message):
        bl.BPPSAStrategy(algorithm=algorithm)


@pytest.mark.parametrize(
    ("device", "chosen", "root"),
    [
        (None, [torch.device("cpu")], "cpu"),
        (None, [torch.device("cuda", 1)], "cuda:1"),
        (None, [], "cpu"),
        ("meta", [torch.device("cpu")], "meta"),
    ],
)
def test_the_trainers_choice_of_device_counts_unless_the_user_made_one(device, chosen, root):
    strategy = bl.BPPSAStrategy(device=device)
    strategy.parallel_devices = chosen
    assert strategy.root_device == torch.device(root)

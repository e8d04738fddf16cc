"""What a pipeline cannot train is refused, by a message that says what to change."""

import json

import pytest
from lightning.pytorch.strategies import StrategyRegistry
from support import forked
from support.helpers import trainer
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.layerpipe import find

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """{case: the error}, of support/layerpipe_refused.py."""
    folder = tmp_path_factory.mktemp("refused")
    printed = forked.run(folder, forked.TESTS / "support" / "layerpipe_refused.py")
    return json.loads(printed.splitlines()[-1])


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("two chains", "ValueError: chain: found 'net', 'more' in Other, wanted one nn.Sequential"),
        ("no such chain", "ValueError: chain: found no module at 'nett'"),
        ("not a chain", "ValueError: chain: found a Linear at 'net.0'"),
        (
            "outside",
            "ValueError: chain: found parameters outside of 'net' (head.weight, head.bias)",
        ),
        ("cuts", "ValueError: cuts: found (3,), which makes 2 stages, wanted 1"),
        ("falling cuts", "ValueError: cuts: found (5, 3), wanted rising numbers"),
        ("manual", "ValueError: automatic_optimization: found False"),
        ("accumulated", "ValueError: accumulate_grad_batches: found 2"),
        ("accumulated later", "ValueError: accumulate_grad_batches: found 3"),
        ("averaged", "ValueError: callbacks: found 'WeightAveraging'"),
        ("sync_batchnorm", "ValueError: sync_batchnorm: found True"),
        ("average, mixed", "ValueError: versions: found 'average'"),
        ("lbfgs", "ValueError: configure_optimizers: found 'LBFGS'"),
        ("kept", "RuntimeError: chain: the loss depends on the input of layer 4 of 'net'"),
        ("unfrozen", "ValueError: chain: found parameters outside of 'net' (before.weight, "),
        ("used before", "RuntimeError: chain: the input of 'net' depends on a parameter of size"),
        ("twice", "RuntimeError: chain: training_step called 'net' twice"),
        ("never", "RuntimeError: chain: training_step did not call 'net'"),
        ("detached", "RuntimeError: chain: the loss does not depend on the output of 'net'"),
        ("two outputs", "TypeError: chain: layer 8 (Pair) returned a tuple"),
        ("overridden", "ValueError: chain: found Overridden at 'net', which overrides forward"),
        ("in place", "RuntimeError: chain: layer 1 (InPlace) changes its input in place"),
        ("post accumulate", "ValueError: chain: found a hook of register_post_accumulate_grad"),
        ("old weight norm", "ValueError: chain: found layers that cannot be copied"),
        (
            "parts of the data",
            "ValueError: sampler: found a DistributedSampler with num_re",
        ),
        ("swa", "ValueError: callbacks: found 'StochasticWeightAveraging'"),
    ],
)
def test_the_error_says_what_was_found_and_wanted(said, case, message):
    assert said[case].startswith(message), said[case]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "fast"}, "schedule: found 'fast', wanted one of 'layerpipe'"),
        ({"versions": "none"}, "versions: found 'none', wanted one of 'stash', 'average'"),
        ({"micro_batches": 0}, "micro_batches: found 0, wanted at least 1"),
    ],
)
def test_arguments(settings, message):
    with pytest.raises(ValueError, match=message):
        bl.LayerPipeStrategy(**settings)


@pytest.mark.parametrize(
    ("name", "start_method"),
    [("layerpipe", "popen"), ("layerpipe_spawn", "spawn"), ("layerpipe_fork", "fork")],
)
def test_the_names_of_the_strategy(name, start_method):
    assert name in StrategyRegistry
    strategy = trainer(name, devices=2).strategy
    assert type(strategy) is bl.LayerPipeStrategy and strategy.num_processes == 2
    assert strategy._start_method == start_method and strategy.schedule == "layerpipe"


def test_more_processes_than_layers():
    with pytest.raises(ValueError, match="devices: found 3, wanted at most 2: the chain 'net' has"):
        find.check_count(nn.Sequential(nn.Linear(1, 1), nn.ReLU()), "net", 3)


def test_a_weight_in_two_stages():
    shared = nn.Linear(2, 2)
    chain = nn.Sequential(shared, nn.ReLU(), shared, nn.Linear(2, 2))
    find.check_cuts(chain, (3,), 2)
    with pytest.raises(ValueError, match=r"the parameter 0.weight of stage 0 again as 2.weight"):
        find.check_cuts(chain, (1,), 2)

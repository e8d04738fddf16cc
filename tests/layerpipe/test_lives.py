"""Pipelines without delays beside one process, over what a Trainer does around the steps."""

from pathlib import Path

import pytest
import torch
from support import forked
from support.helpers import assert_close

from bppsa_lightning.layerpipe.links import KINDS

pytestmark = pytest.mark.slow
SCRIPT = forked.TESTS / "support" / "layerpipe_lives.py"
EXACT = [
    "averaged", "falling", "one_cycle", "frozen_zero_bubble", "recurrent",
    "recurrent_zero_bubble", "pruned", "mixed", "mixed_before", "computed",
]  # fmt: skip


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """{(case, "stock" or rank): what that process has in the end}."""
    folder = tmp_path_factory.mktemp("lives")
    forked.run(folder, SCRIPT, folder, "stock")
    forked.run(folder, SCRIPT, folder, "pipe", ranks=2)
    return found_in(folder)


def found_in(folder):
    return {
        tuple(file.stem.rsplit("_", 1)): torch.load(file, weights_only=True)
        for file in folder.glob("*.pt")
    }


@pytest.mark.parametrize("case", EXACT)
def test_it_ends_as_one_process_does(left, case):
    stock = left[case, "stock"]
    for rank in "01":
        found = left[case, rank]
        assert found["error"] == stock["error"] == ""
        assert found["steps"] == stock["steps"] >= 20
        assert found["rates"] == stock["rates"]
        assert_close(found["weights"], stock["weights"], 1e-5 if case == "pruned" else 1e-9)


def test_the_rate_falls_within_an_epoch_and_pruning_is_repeated(left):
    """What the cases above are about does happen."""
    assert len(set(left["falling", "stock"]["rates"])) > 3
    assert len(set(left["one_cycle", "stock"]["rates"])) == 20
    assert left["computed", "stock"]["rates"][0] == left["computed", "stock"]["rates"][-1]
    weights = [w for n, w in left["pruned", "stock"]["weights"].items() if n.endswith("weight")]
    zeros = sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)
    assert zeros > 0.5


def test_each_group_of_the_pipeline_has_the_timeout_that_was_asked_for(left):
    for rank in "01":
        assert left["averaged", rank]["timeouts"] == [True] * len(KINDS)


@pytest.mark.parametrize("case", ["searched", "lent_searched", "lent_falling"])
def test_what_asks_in_every_step_meets_nothing_under_way(left, case):
    """A search for a learning rate, and a rate that falls: while tasks are lent they would wait."""
    a, b = left[case, "0"], left[case, "1"]
    assert a["error"] == b["error"] == "" and a["steps"] == b["steps"] == 20
    assert a["rates"] == b["rates"]
    assert_close(a["weights"], b["weights"], 0)


def test_one_process_draws_what_it_draws_without_a_pipeline(left):
    assert_close(left["alone", "0"], left["alone", "stock"], 1e-12)


def test_the_best_of_noisy_validations_is_one_in_all_processes(left):
    best = left["noisy", "0"]["best"]
    assert left["noisy", "1"]["best"] == best and Path(best).exists()


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("split", "the processes read different batches, so that the inputs of some samples"),
        ("twice", "configure_optimizers: found 'Sharp' with strategy=\"layerpipe\", wanted an opt"),
        ("penalised", "chain: the loss depends on 'net.0.weight', a parameter of another process"),
        ("penalised_zero_bubble", "chain: the loss depends on 'net.0.weight', a parameter of"),
        ("skips", "training_step: found None, wanted a loss: the other processes"),
    ],
)
def test_what_would_train_something_else_is_refused(tmp_path, case, message):
    forked.run(tmp_path, SCRIPT, tmp_path, case, ranks=2)
    found = found_in(tmp_path)
    assert found[case, "0"]["error"].startswith(message) and found[case, "1"]["error"]


def test_what_a_step_keeps_is_missed_with_an_error_that_says_so(tmp_path):
    forked.run(tmp_path, SCRIPT, tmp_path, "keeps", ranks=2)
    found = found_in(tmp_path)
    message = "on_train_epoch_end failed in a process that does not run training_step to its end"
    assert found["keeps", "1"]["error"].startswith(message) and found["keeps", "0"]["error"]

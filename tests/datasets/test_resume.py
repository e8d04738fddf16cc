"""Resumed trainings end with the bits of those that ran through, whichever checkpoint they go on
from."""

import pytest
import torch
from support.resumed_checks import assert_rest, final, logged, same, step_of
from support.resumed_training import BITSTREAM, train

from bppsa_lightning.datasets import BitstreamDataModule
from bppsa_lightning.datasets.epochs import order

SMALL = {"steps": 20, "num_samples": 46, "batch_size": 4, "num_val_samples": 8}
EACH_STEP = {"every_n_train_steps": 1}

# Advice of Lightning.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed from"),
]


# Every checkpoint of a run


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="epochs"),
        *(
            pytest.param(options, id=name, marks=pytest.mark.slow)
            for name, options in {
                "dropout": {"dropout": 0.3},
                "workers": {"data": {**SMALL, "num_workers": 2}},
                "drop_last": {"data": {**SMALL, "drop_last": True}},
                "accumulated": {
                    "trainer": {"accumulate_grad_batches": 3, "val_check_interval": 0.5}
                },
                "limited": {"trainer": {"limit_train_batches": 7}},
                "max_steps": {"trainer": {"max_steps": 30, "max_epochs": -1}},
                "overfit": {"trainer": {"overfit_batches": 5}},
                "reloaded": {"trainer": {"reload_dataloaders_every_n_epochs": 1}},
                "seed": {"seed": 2**32 - 1},
            }.items()
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:You requested to overfit")
def test_each_checkpoint_leads_to_the_same_end(tmp_path, options):
    options = {"files": tmp_path / "data", "data": SMALL, "checkpoints": EACH_STEP, **options}
    whole = tmp_path / "whole"
    train(whole, BITSTREAM, options)
    checkpoints = sorted(whole.glob("checkpoints/*.ckpt"), key=step_of)
    assert len(checkpoints) == final(whole)["steps"] > 10
    stride = 4 if "num_workers" in options["data"] else 3
    # Some of the middle, and those of each epoch's last batch.
    for number, checkpoint in enumerate(checkpoints[stride - 1 :: stride]):
        folder = tmp_path / str(number)
        train(folder, BITSTREAM, options, checkpoint)
        assert_rest(folder, whole)
        losses = [sum(" loss " in line for line in logged(part)) for part in (folder, whole)]
        assert losses[0] == losses[1] - step_of(checkpoint)


def test_max_steps_resumed_from_the_end_of_an_epoch(tmp_path):
    """Lightning tells samplers an epoch too many then, and logs one step too high."""
    options = {
        "files": tmp_path / "data",
        "data": SMALL,
        "checkpoints": {"every_n_epochs": 1},
        "trainer": {"max_steps": 30, "max_epochs": -1},
    }
    whole = tmp_path / "whole"
    train(whole, BITSTREAM, options)
    for checkpoint in whole.glob("checkpoints/*.ckpt"):
        folder = tmp_path / checkpoint.stem
        train(folder, BITSTREAM, options, checkpoint)
        assert same(final(folder), final(whole))


@pytest.mark.slow
def test_a_run_that_is_resumed_again_and_again_is_the_same(tmp_path):
    """From the last batch of an epoch as well, after which Lightning loses count."""
    options = {
        "files": tmp_path / "data",
        "data": {**SMALL, "num_samples": 14},
        "checkpoints": EACH_STEP,
    }
    whole = tmp_path / "whole"
    train(whole, BITSTREAM, options)
    steps = final(whole)["steps"]
    for stride in (1, 2, 4):
        folder, step = whole, stride
        while step <= steps:
            found = {step_of(path): path for path in folder.glob("checkpoints/*.ckpt")}
            folder = tmp_path / f"{stride}_{step}"
            train(folder, BITSTREAM, options, found[step])
            assert_rest(folder, whole)
            step += stride


# Other settings


def checkpoint_of(folder, options, batches):
    train(folder / "whole", BITSTREAM, options)
    return next(
        path for path in folder.glob("whole/checkpoints/*.ckpt") if step_of(path) == batches
    )


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"batch_size": 2}, "batch_size is 2, was 4"),
        ({"num_samples": 50}, "training samples is 50, was 46"),
        ({"seed": 1, "drop_last": True}, "drop_last is True, was False; .*seed is 1, was 0"),
    ],
)
def test_a_warning_names_what_is_not_as_it_was(tmp_path, changed, message):
    options = {"files": tmp_path, "data": SMALL, "checkpoints": EACH_STEP}
    checkpoint = checkpoint_of(tmp_path, options, 5)
    with pytest.warns(UserWarning, match=f"than those of the checkpoint: .*{message}"):
        train(tmp_path / "other", BITSTREAM, {**options, "data": {**SMALL, **changed}}, checkpoint)


def test_another_seed_of_torch_does_not_change_the_order_of_a_resumed_run(tmp_path):
    options = {"files": tmp_path, "data": SMALL, "checkpoints": EACH_STEP}
    checkpoint = checkpoint_of(tmp_path, options, 5)
    train(tmp_path / "other", BITSTREAM, {**options, "seed": 3}, checkpoint)
    assert_rest(tmp_path / "other", tmp_path / "whole")


def test_a_warning_says_that_accumulated_gradients_are_lost(tmp_path):
    options = {"files": tmp_path, "data": SMALL, "trainer": {"accumulate_grad_batches": 3}}
    options["checkpoints"] = EACH_STEP
    checkpoint = checkpoint_of(tmp_path, options, 2)
    train(tmp_path / "once", BITSTREAM, options, checkpoint)
    # Lightning saves step 2 once more, after the first batch of the next accumulation.
    again = next(p for p in tmp_path.glob("once/checkpoints/*.ckpt") if step_of(p) == 2)
    with pytest.warns(UserWarning, match="written after 1 of accumulate_grad_batches=3 batches"):
        train(tmp_path / "twice", BITSTREAM, options, again)


def test_loaders_leave_torchs_generator_alone(tmp_path):
    data = BitstreamDataModule(tmp_path, **SMALL, num_test_samples=4)
    data.setup()
    before = torch.get_rng_state()
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
        list(loader)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loader_alone_goes_on_where_its_state_was_saved(tmp_path):
    data = BitstreamDataModule(tmp_path, **SMALL)
    data.setup()
    first, second = data.train_dataloader(), data.train_dataloader()
    batches = iter(first)
    for _ in range(5):
        next(batches)
    second.load_state_dict(first.state_dict())
    for _ in range(2):  # the rest of this epoch, then all of the next
        rest, others = list(batches), list(second)
        assert len(rest) == len(others) > 0
        assert all(same(list(a), list(b)) for a, b in zip(rest, others, strict=True))
        batches = iter(first)


def test_the_order_of_an_epoch_is_the_same_on_every_machine():
    assert order(10, 0, 0).tolist() == [9, 7, 2, 0, 4, 3, 5, 6, 1, 8]
    for samples in (1, 2, 255, 256, 257):
        for seed, epoch in ((0, 0), (0, 1), (2**64 - 1, 0)):
            assert sorted(order(samples, seed, epoch).tolist()) == list(range(samples))
    assert order(100, 0, 1).tolist() != order(100, 1, 0).tolist()

"""A pruned training goes on from its checkpoints, whenever they were made.

The judge is a run that was never interrupted: the same bits.
"""

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from support.pruning_runs import Network, density, fit, seeded

import bppsa_lightning as bl

pytestmark = pytest.mark.usefixtures("every_layer_is_sparse")

HOW = {"amount": 0.5, "parameter_names": ["weight"], "use_global_unstructured": False}
FLOAT32 = {"precision": "32-true"}  # Lightning loads a checkpoint before the model is of float64


def pruning(**how):
    return bl.SparseJacobianPruning(**{**HOW, **how})


def assert_equal(model, whole):
    assert model.losses == whole.losses[len(whole.losses) - len(model.losses) :]
    mine, theirs = model.state_dict(), whole.state_dict()
    assert mine.keys() == theirs.keys()
    assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []


class Stop(Callback):
    """Breaks off at the start of an epoch, once."""

    def __init__(self, epoch):
        self.epoch = epoch

    def on_train_batch_start(self, trainer, *_):
        if trainer.current_epoch == self.epoch:
            self.epoch = -1
            raise ValueError("stop here")


class FirstValues(Callback):
    """How far the survivors of each epoch are from where they were first, at its start."""

    def __init__(self, model):
        self.first = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.distances = []

    def on_train_epoch_start(self, trainer, model):
        state = model.state_dict()
        for name in [name for name in state if name.endswith("_mask")]:
            own = name.removesuffix("_mask")
            moved = (state[f"{own}_orig"] - self.first[own]) * state[name]
            self.distances.append(float(moved.abs().max()))


@pytest.mark.parametrize("compact", [True, False])
def test_every_reset_of_the_lottery_ticket_is_to_the_first_values(compact):
    model = seeded("momentum")
    watch = FirstValues(model)
    fit(pruning(use_lottery_ticket_hypothesis=True, compact=compact), watch, model=model, **FLOAT32)
    assert watch.distances == [0.0] * 9  # three layers, three epochs


def test_first_values_are_in_checkpoints(tmp_path):
    how = {"at_epochs": [0, 2], "use_lottery_ticket_hypothesis": True}
    keeping = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    whole = fit(pruning(**how), keeping, model=seeded("adam"), **FLOAT32)
    torch.manual_seed(7)  # another process need not begin with the same values
    path = tmp_path / "epoch=1.ckpt"
    rest = fit(pruning(**how), model=Network(optimizer="adam"), ckpt_path=path, **FLOAT32)
    assert len(rest.losses) == 6
    assert_equal(rest, whole)


class Saves(Callback):
    """A checkpoint at every hook of a training."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name

    def save(self, trainer, *_):
        if not trainer.sanity_checking:
            at = f"{trainer.global_step:02}"
            trainer.save_checkpoint(self.folder / f"{at}-{self.now}-{self.name}.ckpt")

    def __getattribute__(self, name):
        if name in ("on_train_batch_end", "on_validation_end", "on_train_epoch_end"):
            self.now = name
            return self.save
        return super().__getattribute__(name)


class Validated(Network):
    def val_dataloader(self):
        return self.trainer.train_dataloader

    def validation_step(self, batch, batch_idx):
        pass


class Counted(bl.SparseJacobianPruning):
    def __init__(self, **how):
        super().__init__(**{**HOW, **how})
        self.times = 0

    def apply_pruning(self, amount):
        self.times += 1
        super().apply_pruning(amount)


@pytest.mark.parametrize("length", [{"max_epochs": 3}, {"max_epochs": -1, "max_steps": 9}])
@pytest.mark.parametrize("kind", [Network, Validated])
def test_each_epoch_is_pruned_once_whenever_the_checkpoint_was_made(tmp_path, kind, length):
    """The end of an epoch may be left out, or come twice, as Lightning resumes."""
    settings = {**length, **FLOAT32, "num_sanity_val_steps": 0}

    def model():
        torch.manual_seed(0)
        return kind()

    saving = [Saves(tmp_path, "before"), Counted(), Saves(tmp_path, "after")]
    whole = fit(*saving, model=model(), **settings)
    paths = sorted(tmp_path.glob("*.ckpt"))
    assert len(paths) == (24 if kind is Network else 30)
    for path in paths:
        saved = torch.load(path, weights_only=True)
        step, hook, when = path.stem.split("-")
        if int(step) == 9 and (hook == "on_train_epoch_end" or "max_steps" in length):
            continue  # nothing is trained any more
        callback = Counted()
        rest = fit(callback, model=model(), ckpt_path=path, **settings)
        epochs = int(step) // 3 - (int(step) % 3 == 0)
        ended = hook == "on_train_epoch_end" and when == "after"
        pruned_so_far = epochs + ended
        assert callback.times == 3 - pruned_so_far, path.stem
        assert saved["callbacks"]["Counted"]["decided"] == [pruned_so_far - 1]
        assert density(rest) == pytest.approx(1 / 8, abs=0.01), path.stem
        if hook == "on_train_batch_end" and int(step) % 3 == 0:
            assert_equal(rest, whole)


@pytest.mark.parametrize("permanent", [True, False])
@pytest.mark.parametrize("compact", [True, False])
def test_a_model_goes_on_from_its_checkpoint_in_the_same_process(tmp_path, compact, permanent):
    how = {"at_epochs": [0, 3], "compact": compact, "make_pruning_permanent": permanent}
    whole = fit(pruning(**how), model=seeded("adam"), max_epochs=5, **FLOAT32)
    callback, model = pruning(**how), seeded("adam")
    keeping = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    settings = {"model": model, "max_epochs": 5, **FLOAT32}
    with pytest.raises(ValueError, match="stop here"):
        fit(callback, keeping, Stop(2), **settings)
    assert hasattr(model.net[3], "weight_mask")
    model.losses.clear()
    fit(callback, ckpt_path=tmp_path / "epoch=1.ckpt", **settings)
    for net in (model, whole):  # masked weights have no effect, whatever they are
        for layer in net.net:
            if hasattr(layer, "weight_mask"):
                layer.weight_orig.data *= layer.weight_mask
    assert_equal(model, whole)


def test_a_checkpoint_from_before_the_pruning_takes_the_masks_away(tmp_path):
    how = {"at_epochs": [1]}
    whole = fit(pruning(**how), model=seeded("momentum"), **FLOAT32)
    callback, model = pruning(**how), seeded("momentum")
    keeping = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    with pytest.raises(ValueError, match="stop here"):
        fit(callback, keeping, Stop(3), model=model, **FLOAT32)
    model.losses.clear()
    fit(callback, model=model, ckpt_path=tmp_path / "epoch=0.ckpt", **FLOAT32)
    assert_equal(model, whole)


def test_plain_weights_keep_the_masks_that_fit_them():
    """A weight that survives may be 0; where others do, what is not 0 survives."""
    model, callback = Network(), pruning()
    trainer = pl.Trainer(logger=False, accelerator="cpu", enable_progress_bar=False)
    plain = {name: value.clone() for name, value in model.state_dict().items()}
    layer = model.net[7]
    torch.nn.utils.prune.l1_unstructured(layer, "weight", 0.5)
    mask = layer.weight_mask.clone()
    callback.setup(trainer, model, "test")
    pruned = {**plain, "net.7.weight": plain["net.7.weight"] * mask}
    pruned["net.7.weight"][mask.bool()] = torch.arange(int(mask.sum())).float()
    model.load_state_dict(pruned)
    assert torch.equal(layer.weight_mask, mask)
    model.load_state_dict(plain)
    assert layer.weight_mask.all() and torch.equal(layer.weight_orig, plain["net.7.weight"])
    callback.teardown(trainer, model, "test")


def test_masks_that_nobody_will_prune_further_are_named():
    model = seeded("momentum")
    fit(pruning(at_epochs=[0], make_pruning_permanent=False), model=model)
    warned = r"net\.0\.weight, net\.3\.weight, net\.7\.weight have masks already, and are not"
    with pytest.warns(UserWarning, match=warned):
        fit(pruning(), model=model, max_epochs=1)

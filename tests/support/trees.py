"""Trainings with Lightning's two trees, for test_trees.py: each in a process of its own.

    python trees.py NAME [NAME ...]

Runs the function of each name, with what the user would have imported. `lightning` may be hidden,
as where only `pytorch_lightning` is installed, and the other way round. The last line that it says
is {name: its error, or ""} as JSON.
"""

import copy
import importlib
import inspect
import json
import logging
import os
import pickle
import sys
import tempfile
import traceback
import warnings
from importlib.abc import MetaPathFinder
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LIGHTNING = ("lightning", "lightning.pytorch", "lightning.fabric")
PYTORCH_LIGHTNING = ("pytorch_lightning", "pytorch_lightning", "lightning_fabric")
OTHER = {LIGHTNING: ("pytorch_lightning", "lightning_fabric"), PYTORCH_LIGHTNING: ("lightning",)}


class Hidden(MetaPathFinder):
    """Makes packages look as if they were not installed."""

    def __init__(self, *packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def hide(*packages):
    sys.meta_path.insert(0, Hidden(*packages))


def data():
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(32, 12, 3, generator=generator, dtype=torch.float64)
    return DataLoader(TensorDataset(x, torch.randint(3, (32,), generator=generator)), batch_size=4)


def classifier(pl):
    """A model whose class is of a tree."""

    class Classifier(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 6, batch_first=True)
            self.middle = nn.Linear(6, 64)
            self.head = nn.Linear(64, 3)
            self.losses = []

        def training_step(self, batch, batch_idx):
            x, y = batch
            out = self.head(self.middle(self.rnn(x)[0].mean(1)).relu())
            loss = nn.functional.cross_entropy(out, y)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 0.01)

    torch.manual_seed(0)
    return Classifier()


def trainer(pl, strategy, **settings):
    quiet = {
        "accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False, "precision": "64-true",
        "max_epochs": 2,
    }  # fmt: skip
    return pl.Trainer(strategy=strategy, **{**quiet, **settings})


def fit(pl, strategy, **settings):
    model = classifier(pl)
    train = trainer(pl, strategy, **settings)
    train.fit(model, data())
    assert "forward" not in model.rnn.__dict__, "still attached"
    return model, train


def check_same(found, wanted):
    assert len(found) == len(wanted) > 0
    worst = max(abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True))
    assert worst < 1e-10, worst


def attached(explanation):
    assert "1 of 1 recurrent layers accelerated" in explanation, explanation


def check_tree(pl, bl):
    """Strategies, callbacks and checkpoints in one tree, against its own strategy."""
    stock, _ = fit(pl, "auto")
    by_name, train = fit(pl, "bppsa")
    attached(train.strategy.explanation)
    assert train.strategy.scans and isinstance(train.strategy, bl.BPPSAStrategy)
    assert isinstance(train.strategy, pl.strategies.SingleDeviceStrategy)
    by_instance, train = fit(pl, bl.BPPSAStrategy("linear"))
    assert [plan.algorithm for *_, plan in train.strategy.scans] == ["linear"]
    check_same(by_name.losses, stock.losses)
    check_same(by_instance.losses, stock.losses)
    for name in ("bppsa_ddp", "bppsa_ddp_spawn", "bppsa_ddp_fork", "bppsa_ddp_notebook"):
        strategy = trainer(pl, name, devices=2).strategy
        assert type(strategy).__mro__[2] is not object
        assert isinstance(strategy, bl.BPPSADDPStrategy)
        assert isinstance(strategy, pl.strategies.DDPStrategy)
    assert isinstance(trainer(pl, "bppsa", devices=2).strategy, bl.BPPSADDPStrategy)
    check_callbacks(pl, bl, stock)
    check_checkpoints(pl)


def check_callbacks(pl, bl, stock):
    attach = bl.Attach("chunked")
    model, train = fit(pl, "auto", callbacks=attach)  # one alone: Lightning asks for its class
    attached(attach.explanation)
    assert isinstance(train.callbacks[0], bl.Attach) and attach.chains == []
    check_same(model.losses, stock.losses)
    with tempfile.TemporaryDirectory() as folder:
        timer, monitor = bl.StepTimer(), bl.ChainMonitor()
        pruning = bl.SparseJacobianPruning(
            "l1_unstructured", amount=0.9, parameter_names=["weight"], module_names=["Linear"],
            apply_pruning=lambda epoch: epoch == 0, make_pruning_permanent=False,
        )  # fmt: skip
        logger = pl.loggers.CSVLogger(folder)
        fit(
            pl, "bppsa", callbacks=[timer, monitor, pruning], logger=logger, log_every_n_steps=1
        )  # fmt: skip
        written = {path.name for path in Path(logger.log_dir).iterdir()}
        assert {"plan.csv", "metrics.csv"} <= written, written
        header = (Path(logger.log_dir) / "metrics.csv").read_text().partition("\n")[0]
        assert "grad_norm" in header and "seconds/backward" in header
        assert len(timer.step) == 16 and pruning.sparsity() > 0.85
        assert "pruned" in pruning.explanation
    for callback in (attach, timer, monitor):
        assert isinstance(callback, pl.Callback)
    for callback in (copy.deepcopy(bl.StepTimer()), pickle.loads(pickle.dumps(bl.StepTimer()))):
        assert isinstance(callback, pl.Callback) and callback.step == []
    strategy = pickle.loads(pickle.dumps(bl.BPPSAStrategy("linear")))
    assert strategy.algorithm == "linear" and isinstance(strategy, pl.strategies.Strategy)


def check_checkpoints(pl):
    """A run under one strategy goes on under the other."""
    with tempfile.TemporaryDirectory() as folder:
        ends = {}
        for first, second in (("auto", "auto"), ("auto", "bppsa"), ("bppsa", "auto")):
            path = Path(folder) / f"{first}_{second}.ckpt"
            model = classifier(pl)
            train = trainer(pl, first, max_epochs=1)
            train.fit(model, data())
            train.save_checkpoint(path)
            model = classifier(pl)
            trainer(pl, second).fit(model, data(), ckpt_path=path, weights_only=False)
            ends[first, second] = model.losses
        check_same(ends["auto", "bppsa"], ends["auto", "auto"])
        check_same(ends["bppsa", "auto"], ends["auto", "auto"])


def check_fabric(Fabric, fabric, bl):
    """Fabric's strategies by name and by instance, against its own."""

    def losses(strategy):
        torch.manual_seed(0)
        run = Fabric(accelerator="cpu", devices=1, strategy=strategy)
        model = nn.GRU(3, 6, batch_first=True).double()
        model, optimizer = run.setup(model, torch.optim.Adam(model.parameters(), 0.01))
        found = []
        for x, _ in run.setup_dataloaders(data()):
            loss = model(x)[0].square().mean()
            run.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        return found, bl.explain(model.module), run.strategy

    stock, explanation, _ = losses("auto")
    assert "0 of 1 recurrent layers accelerated" in explanation
    for strategy in ("bppsa", fabric.BPPSAStrategy("linear")):
        found, explanation, used = losses(strategy)
        attached(explanation)
        assert isinstance(used, fabric.BPPSAStrategy)
        check_same(found, stock)
    several = Fabric(accelerator="cpu", devices=2, strategy="bppsa").strategy
    assert isinstance(several, fabric.BPPSADDPStrategy) and several.num_processes == 2
    named = Fabric(accelerator="cpu", devices=2, strategy="bppsa_ddp_spawn").strategy
    assert isinstance(named, fabric.BPPSADDPStrategy)


def only(tree, ours_first):
    """One tree is installed; this package is imported before it, or after."""
    package, pytorch, fabric = tree
    hide(*OTHER[tree])
    if ours_first:
        bl = importlib.import_module("bppsa_lightning")
        pl = importlib.import_module(pytorch)
    else:
        pl = importlib.import_module(pytorch)
        bl = importlib.import_module("bppsa_lightning")
    check_tree(pl, bl)
    check_fabric(importlib.import_module(fabric).Fabric, bl.fabric, bl)
    assert not {name.partition(".")[0] for name in sys.modules} & set(OTHER[tree])


def pytorch_lightning_after():
    only(PYTORCH_LIGHTNING, ours_first=True)


def pytorch_lightning_before():
    only(PYTORCH_LIGHTNING, ours_first=False)


def lightning_after():
    only(LIGHTNING, ours_first=True)


def none():
    """No Lightning at all: what is for plain PyTorch works, the rest says what is missing."""
    hide("lightning", "pytorch_lightning", "lightning_fabric", "lightning_utilities")
    import bppsa_lightning as bl

    layer = nn.GRU(3, 6)
    [chain] = bl.attach(layer)
    layer(torch.randn(64, 4, 3))[0].sum().backward()
    assert chain.calls == 1 and "1 of 1" in bl.explain(layer)
    assert not any("lightning" in name.replace("bppsa_lightning", "") for name in sys.modules)
    try:
        bl.ChainMonitor()
    except ModuleNotFoundError as error:
        assert "pip install lightning" in str(error)
    else:
        raise AssertionError("made a callback of nothing")


def both():
    """Both are imported: one object serves Trainers of either, and knows which it is in."""
    import bppsa_lightning as bl

    early = bl.StepTimer  # as written, before there is a tree
    import lightning.pytorch as first
    import pytorch_lightning as second

    assert isinstance(bl.StepTimer(), early) and isinstance(early(), bl.StepTimer)
    timer, attach, strategy = bl.StepTimer(), bl.Attach(), bl.BPPSAStrategy("linear")
    wanted = fit(first, "auto")[0].losses
    for pl in (first, second, first):
        model, _ = fit(pl, "auto", callbacks=[timer, attach])
        check_same(model.losses, wanted)
        attached(attach.explanation)
        model, train = fit(pl, strategy)
        check_same(model.losses, wanted)
        attached(strategy.explanation)
        own = [base for base in type(strategy).__mro__ if base.__name__ == "SingleDeviceStrategy"]
        assert own[1] is pl.strategies.SingleDeviceStrategy  # the first is the stand-in
        model, train = fit(pl, "bppsa")
        check_same(model.losses, wanted)
        assert isinstance(train.strategy, bl.BPPSAStrategy)
        assert isinstance(trainer(pl, bl.BPPSAStrategy(), devices=2).strategy, bl.BPPSADDPStrategy)
        pruning = bl.SparseJacobianPruning(
            amount=0.5, parameter_names=["weight"], module_names=["Linear"]
        )
        fit(pl, "bppsa", callbacks=pruning)
        assert type(pruning).__name__ == "SparseJacobianPruning"
    assert len(timer.step) == 48
    assert isinstance(pickle.loads(pickle.dumps(early())), second.Callback)
    assert list(inspect.signature(bl.StepTimer).parameters) == ["log", "prog_bar"]


def run(name):
    """Runs a function in a fork of this process, which has imported torch alone; its error."""
    with tempfile.TemporaryFile("w+") as said:
        child = os.fork()
        if not child:
            try:
                globals()[name]()
            except BaseException:
                traceback.print_exc(file=said)
                said.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        said.seek(0)
        return said.read() or (f"ended with status {status}" if status else "")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    print(json.dumps({name: run(name) for name in sys.argv[1:]}))

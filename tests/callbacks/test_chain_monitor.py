"""ChainMonitor: gradient norms, plans and pictures, in memory, as files, in TensorBoard."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities import grad_norm
from support.helpers import Classifier, Memory, data, fit, trainer
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning.callbacks import _loggers as loggers
from bppsa_lightning.callbacks.chain_monitor import total_norm
from bppsa_lightning.explain import ChainRow

pytestmark = pytest.mark.filterwarnings("ignore:Memory takes no")


@pytest.fixture
def logged(monkeypatch):
    """{name: [(rows or PNG, step), …]} of what any logger is given."""
    found = {}

    def table(logger, name, header, rows, step):
        assert all(len(row) == len(header) for row in rows)
        found.setdefault(name, []).append((rows, step))

    def picture(logger, name, png, step):
        found.setdefault(name, []).append((png, step))

    monkeypatch.setattr("bppsa_lightning.callbacks.chain_monitor.log_table", table)
    monkeypatch.setattr("bppsa_lightning.callbacks.chain_monitor.log_picture", picture)
    return found


class Normed(Classifier):
    """Keeps Lightning's own gradient norm of every optimizer's step."""

    def __init__(self):
        super().__init__()
        self.norms = []

    def on_before_optimizer_step(self, optimizer):
        self.norms.append(float(grad_norm(self, 2)["grad_2.0_norm_total"]))


def norms_of(memory, name="grad_norm"):
    return [(step, m[name]) for step, m in memory.logged if name in m]


# --- the gradient norm ---------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["auto", "bppsa"])
@pytest.mark.parametrize("settings", [{}, {"accumulate_grad_batches": 2}], ids=["", "accumulated"])
def test_the_norm_is_lightnings_before_clipping_at_logging_steps(strategy, settings):
    memory = Memory()
    model = fit(
        strategy, Normed, callbacks=[bl.ChainMonitor()], logger=memory, log_every_n_steps=2,
        gradient_clip_val=1e-3, max_epochs=4, max_steps=-1, **settings,
    )  # fmt: skip
    steps, norms = zip(*norms_of(memory))
    assert steps == tuple(range(1, len(model.norms), 2))
    assert norms == pytest.approx(model.norms[1::2], rel=1e-6) and min(norms) > 1e-2


def test_several_optimizers_have_a_norm_each():
    class Two(Classifier):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False
            self.norms = []

        def configure_optimizers(self):
            layers = self.rnn, self.head
            return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers]

        def training_step(self, batch, batch_idx):
            self.manual_backward(self.loss(batch))
            for optimizer in self.optimizers():
                optimizer.step()

        def on_before_optimizer_step(self, optimizer):
            grads = [p.grad.flatten() for p in optimizer.param_groups[0]["params"]]
            self.norms.append(float(torch.cat(grads).norm()))

    memory = Memory()
    model = fit(
        "auto", Two, callbacks=[bl.ChainMonitor()], logger=memory, log_every_n_steps=1,
        max_epochs=1,
    )  # fmt: skip
    for which in (0, 1):
        found = [norm for _, norm in norms_of(memory, f"grad_norm/{which}")]
        assert found == pytest.approx(model.norms[which::2], rel=1e-6) and len(found) == 4
    assert not norms_of(memory)


def test_the_norm_of_any_gradient():
    big = nn.Parameter(torch.zeros(4, dtype=torch.float16))
    rows = nn.Parameter(torch.zeros(3, 2))
    unused = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([{"params": [big, unused]}, {"params": [rows]}], lr=1.0)
    assert total_norm(optimizer) is None
    big.grad = torch.full((4,), 60000.0, dtype=torch.float16)  # its norm is beyond float16
    assert float(total_norm(optimizer)) == pytest.approx(120000, rel=1e-3)
    index = torch.tensor([[1, 1]])  # a row that is counted twice
    rows.grad = torch.sparse_coo_tensor(
        index, torch.full((2, 2), 45000.0), (3, 2), check_invariants=True
    )
    assert float(total_norm(optimizer)) == pytest.approx(
        (120000**2 + 2 * 90000**2) ** 0.5, rel=1e-3
    )


# --- plans ---------------------------------------------------------------------------------------


def test_plans_are_those_of_explain_after_the_first_batch(logged):
    model = fit("bppsa", callbacks=[bl.ChainMonitor()], logger=Memory(), log_every_n_steps=1)
    ((rows, step),) = logged.pop("plan")
    assert step == 1 and not logged
    text = model.trainer.strategy.explanation.splitlines()
    assert text[1].split() == list(ChainRow._fields)
    assert [" ".join(row).split() for row in rows] == [text[2].split()]


def test_a_plan_that_changes_is_logged_again_at_the_next_logging_step(logged):
    class Changed(Classifier):
        def on_train_batch_start(self, batch, batch_idx):
            if batch_idx == 1:
                self.trainer.strategy.chains[0].algorithm = "chunked"

    fit("bppsa", Changed, callbacks=[bl.ChainMonitor()], logger=Memory(), log_every_n_steps=3)
    algorithm = ChainRow._fields.index("backward")
    assert [(rows[0][algorithm], step) for rows, step in logged["plan"]] == [
        ("linear", 1),
        ("chunked (3 steps)", 3),
    ]


def test_pruned_layers_have_a_table(logged):
    class Dense(Classifier):
        def __init__(self):
            super().__init__()
            self.rnn = nn.Linear(3, 6)
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            return self.head(self.rnn(x).mean(1))

    pruning = bl.SparseJacobianPruning(
        amount=0.8, parameter_names=["weight"], at_epochs=[0], use_global_unstructured=False
    )
    fit(
        "auto", Dense, callbacks=[pruning, bl.ChainMonitor()], logger=Memory(),
        log_every_n_steps=1, max_epochs=2, max_steps=-1,
    )  # fmt: skip
    rows, step = logged["pruned_layers"][-1]
    assert step == 5 and [row[0] for row in rows] == ["rnn", "head"]
    assert "plan" not in logged


def test_stock_training_has_no_plan(logged):
    fit("auto", callbacks=[bl.ChainMonitor()], logger=Memory(), log_every_n_steps=1)
    assert not logged


def test_all_of_it_can_be_left_out(logged):
    memory = Memory()
    monitor = bl.ChainMonitor(grad_norm=False, plans=False)
    fit("bppsa", callbacks=[monitor], logger=memory, log_every_n_steps=1)
    assert not logged and not norms_of(memory)
    fit("bppsa", callbacks=[bl.ChainMonitor(pictures={"curve": drawn})], logger=False)
    assert not logged


# --- pictures ------------------------------------------------------------------------------------


def drawn(module):
    """A figure of a module in training."""
    from matplotlib.figure import Figure

    assert module.trainer.training and module.losses
    figure = Figure(figsize=(1, 1))
    figure.subplots().plot(module.losses)
    return figure


PNG = b"\x89PNG\r\n\x1a\n"


def test_pictures_are_drawn_or_read_at_the_end(logged, tmp_path):
    def late(module):
        (tmp_path / "late.png").write_bytes(PNG + b"late")
        return drawn(module)

    pictures = {"curve": late, "file": str(tmp_path / "late.png"), "path": tmp_path / "late.png"}
    fit("bppsa", callbacks=[bl.ChainMonitor(pictures=pictures)], logger=Memory())
    (curve,), (file,), (path,) = (logged[name] for name in pictures)
    assert curve[0].startswith(PNG) and file == path == (PNG + b"late", 4) and curve[1] == 4


def test_a_picture_that_fails_costs_a_warning(logged, tmp_path):
    def broken(module):
        raise RuntimeError("no ink")

    pictures = {"broken": broken, "gone": tmp_path / "gone.png", "curve": drawn}
    monitor = bl.ChainMonitor(pictures=pictures)
    with (
        pytest.warns(UserWarning, match="pictures: 'gone' was not made: .*No such file"),
        pytest.warns(UserWarning, match="pictures: 'broken' was not made: .*no ink"),
    ):
        fit("bppsa", callbacks=[monitor], logger=Memory(), log_every_n_steps=1)
    assert "curve" in logged and not {"broken", "gone"} & logged.keys()


def test_what_is_no_picture_is_refused():
    with pytest.raises(TypeError, match="pictures: found int for 'x', wanted a path or a function"):
        bl.ChainMonitor(pictures={"x": 3})


# --- loggers -------------------------------------------------------------------------------------


def test_csv_and_tensorboard_get_all_of_it(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    files = CSVLogger(tmp_path, name="csv")
    board = TensorBoardLogger(tmp_path, name="board")
    callbacks = [bl.ChainMonitor(pictures={"curve": drawn}), bl.StepTimer()]
    run = trainer("bppsa", callbacks=callbacks, logger=[files, board], log_every_n_steps=2)
    run.fit(Classifier(), data())

    folder = Path(files.log_dir)
    names = {path.name for path in folder.iterdir()}
    assert names >= {"plan.csv", "curve.png", "metrics.csv"}
    assert not [name for name in names if name.endswith(".tmp")]
    header, row = csv.reader((folder / "plan.csv").read_text().splitlines())
    assert tuple(header) == ChainRow._fields and row[0] == "rnn"
    assert (folder / "curve.png").read_bytes().startswith(PNG)
    metrics = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert {"grad_norm", "seconds/optimizer", "seconds/rest"} <= metrics[0].keys()

    events = EventAccumulator(board.log_dir).Reload()
    assert {"grad_norm", "seconds/backward", "seconds/step"} <= set(events.Tags()["scalars"])
    assert [e.step for e in events.Scalars("grad_norm")] == [1, 3]
    text = events.Tensors("plan/text_summary")[0].tensor_proto.string_val[0].decode()
    assert text.splitlines()[0] == f"| {' | '.join(ChainRow._fields)} |" and "| rnn |" in text
    assert events.Images("curve")[0].encoded_image_string.startswith(PNG)


def test_a_logger_that_takes_neither_is_named():
    with pytest.warns(UserWarning, match="Memory takes no tables: the table 'plan' is not logged"):
        loggers.log_table(Memory(), "plan", ["a"], [["1"]], 0)
    with pytest.warns(UserWarning, match="Memory takes no pictures"):
        loggers.log_picture(Memory(), "curve", PNG, 0)


@pytest.mark.slow
def test_wandb_and_tensorboard_are_imported_only_when_used():
    script = (
        "import sys, bppsa_lightning as bl; bl.ChainMonitor(); "
        "print([m for m in ('wandb', 'tensorboard') if m in sys.modules])"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.split("\n")[-2] == "[]"

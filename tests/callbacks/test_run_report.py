"""RunReport: what it writes, when, where, and that the training is the same without it."""

import json
import math
import re
import warnings
from pathlib import Path

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from support import forked
from support.browser import look, needs_chromium
from support.helpers import Classifier, Memory, assert_identical, data, fit, trainer, weights
from torch import nn

import bppsa_lightning as bl
from bppsa_lightning import report
from bppsa_lightning.callbacks import run_report
from bppsa_lightning.callbacks._curves import Curve
from bppsa_lightning.gains.comparison import PARTS

# On a busy machine such small layers may take any time.
pytestmark = pytest.mark.filterwarnings("ignore:BPPSA is slower")
NAMES = {"bppsa_report.html", "bppsa_report.json"}


class Both(Classifier):
    """A chain, and a layer to prune; with metrics."""

    def __init__(self):
        super().__init__()
        self.middle = nn.Linear(6, 64)
        self.head = nn.Linear(64, 3)

    def forward(self, x):
        return self.head(self.middle(self.rnn(x)[0].mean(1)).relu())

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("train_twice", 2 * loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))


def pruning(**settings):
    return bl.SparseJacobianPruning(
        amount=0.8, use_global_unstructured=False, parameter_names=["weight"],
        module_names=["Linear"], at_epochs=[0], **settings,
    )  # fmt: skip


def written(folder):
    """The data of a report, whose page must be there, too, and nothing else."""
    assert {path.name for path in Path(folder).iterdir()} == NAMES
    data = report.read(Path(folder) / "bppsa_report.json")
    assert (Path(folder) / "bppsa_report.html").read_text() == report.page(data)
    return data


@pytest.mark.parametrize("first", [True, False], ids=["before pruning", "behind pruning"])
def test_a_report_holds_what_happened(tmp_path, first):
    reporter = bl.RunReport(tmp_path, stock_steps=3, stock_share=1e6)
    callbacks = [reporter, pruning()] if first else [pruning(), reporter]
    torch.manual_seed(0)
    model = Both()
    train = trainer("bppsa", max_epochs=3, callbacks=callbacks, log_every_n_steps=2)
    train.fit(model, data(48), data(8))
    found = written(tmp_path)
    assert reporter.path == str(tmp_path / "bppsa_report.html")

    run = found["run"]
    assert run["model"] == "Both" and run["strategy"] == "bppsa" and run["ended"] == "finished"
    assert (run["steps"], run["epochs"]) == (36, 3) and run["seconds"] > 0
    assert found["loss"]["values"] == pytest.approx(model.losses)
    assert found["loss"]["steps"] == [*range(1, 37)]
    assert set(found["metrics"]) == {"val_loss", "train_twice"}
    assert found["metrics"]["val_loss"]["steps"] == [12, 24, 36]
    means = [2 * sum(model.losses[i : i + 12]) / 12 for i in (0, 12, 24)]
    assert found["metrics"]["train_twice"]["values"] == pytest.approx(means, rel=1e-5)

    time = found["time"]
    assert set(time["ours"]) == set(time["stock"]) == {*PARTS, "step"}
    assert time["ours"]["step"] == pytest.approx(sum(time["ours"][part] for part in PARTS))
    assert time["speed_ups"]["step"] == pytest.approx(time["stock"]["step"] / time["ours"]["step"])
    assert "(3 steps each)" in time["note"] and time["layers"][0]["layer"] == "rnn"

    assert [row["layer"] for row in found["chains"]] == ["rnn"]
    assert {row["layer"] for row in found["pruned"]} == {"middle", "head"}
    (middle,) = (p for p in found["patterns"] if p["layer"] == "middle")
    assert middle["shape"] == [64, 6] and middle["weights"] == round(64 * 6 * 0.2)
    assert len(middle["cells"]) == 48 and len(middle["cells"][0]) == 6
    mean = sum(map(sum, middle["cells"])) / (48 * 6)
    assert mean == pytest.approx(0.2, rel=0.1)
    assert "1 of 1 recurrent layers" in found["explanation"]
    assert found["memory"]["parameter_bytes"] > 0 and found["memory"]["peak_bytes"] > 1e7
    assert found["memory"]["steps"] and found["environment"]["torch"] == torch.__version__


def test_the_training_keeps_its_bits(tmp_path):
    plain = fit("bppsa", Both, callbacks=[pruning()], max_epochs=2)
    random = torch.get_rng_state()
    told = fit("bppsa", Both, callbacks=[pruning(), bl.RunReport(tmp_path, stock_share=1e6)],
               max_epochs=2)  # fmt: skip
    assert told.losses == plain.losses and torch.equal(torch.get_rng_state(), random)
    assert_identical(weights(told), weights(plain))


class Breaks(Classifier):
    error: BaseException = ValueError("no <ink>")

    def training_step(self, batch, batch_idx):
        if self.global_step == 2:
            raise self.error
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("attached", ["bppsa", "auto"])
def test_a_training_that_breaks_off_has_a_report(tmp_path, attached):
    callbacks = [bl.Attach()] if attached == "auto" else []
    with pytest.raises(ValueError, match="no <ink>"):
        fit(attached, Breaks, callbacks=[*callbacks, bl.RunReport(tmp_path)])
    found = written(tmp_path)
    assert found["run"]["ended"] == "ValueError: no <ink>" and found["run"]["steps"] == 2
    assert len(found["loss"]["values"]) == 2 and [c["layer"] for c in found["chains"]] == ["rnn"]
    assert found["time"]["note"].startswith("Not timed against stock PyTorch") or (
        attached == "auto"
    )


def test_a_page_holds_whatever_an_error_says(tmp_path, recwarn):
    """A file's name may have bytes in it that are no text."""

    class OfAFile(Breaks):
        error = ValueError("no \udcff.wav, ü")

    loggers = [TensorBoardLogger(tmp_path / "board")]
    with pytest.raises(ValueError, match=r"no .*\.wav"):
        fit("bppsa", OfAFile, callbacks=[bl.RunReport(tmp_path / "report")], logger=loggers)
    assert written(tmp_path / "report")["run"]["ended"] == r"ValueError: no \udcff.wav, ü"
    assert not [w for w in recwarn if "RunReport" in str(w.message)]


def test_an_interrupted_training_has_a_report(tmp_path):
    class Interrupted(Breaks):
        error = KeyboardInterrupt()

    with pytest.raises((KeyboardInterrupt, SystemExit)):
        fit("bppsa", Interrupted, callbacks=[bl.RunReport(tmp_path)])
    assert written(tmp_path)["run"]["ended"] == "KeyboardInterrupt"


def test_a_loss_that_is_not_finite_is_valid_json(tmp_path):
    class Infinite(Classifier):
        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx)
            return loss * (math.inf if batch_idx == 1 else 1)

        def on_train_batch_end(self, *args):
            with torch.no_grad():
                for p in self.parameters():
                    p.nan_to_num_(0.1)

    fit("bppsa", Infinite, callbacks=[bl.RunReport(tmp_path)])
    text = (tmp_path / "bppsa_report.json").read_text()
    assert "NaN" not in text and json.loads(text)["loss"]["values"][1] is None
    assert "values of the loss were not finite" in (tmp_path / "bppsa_report.html").read_text()


def test_steps_are_timed_once_where_a_monitor_and_a_timer_are_there(tmp_path):
    monitor = bl.ChainMonitor(stock_steps=3, stock_share=1e6)
    reporter, timer = bl.RunReport(tmp_path), bl.StepTimer()
    fit("bppsa", callbacks=[reporter, monitor, timer], max_epochs=5, max_steps=-1)
    found = written(tmp_path)
    assert found["time"]["speed_ups"] == monitor.comparison.speed_ups()
    assert not reporter._own_stock.comparison.steps and len(timer.step) == 20


def test_stock_training_has_a_report_of_its_own_times(tmp_path):
    fit("auto", callbacks=[bl.RunReport(tmp_path)])
    found = written(tmp_path)
    assert found["time"]["ours"]["backward"] > 0 and not found["time"]["stock"]
    assert found["chains"] == [] and found["not_accelerated"][0]["layer"] == "rnn"


def test_it_goes_into_the_loggers_folder_or_the_trainers(tmp_path):
    logger = CSVLogger(tmp_path, name="csv")
    fit("bppsa", callbacks=[bl.RunReport()], logger=logger)
    assert {path.name for path in Path(logger.log_dir).iterdir()} >= NAMES
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        fit("bppsa", callbacks=[bl.RunReport()], default_root_dir=tmp_path / "root")
    written(tmp_path / "root")


def test_a_trial_run_has_no_report(tmp_path):
    fit("bppsa", callbacks=[bl.RunReport(tmp_path)], fast_dev_run=True)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="RunReport: .*file/x: the report was not written"):
        model = fit("bppsa", callbacks=[bl.RunReport(tmp_path / "file" / "x")])
    assert len(model.losses) == 4


def test_each_fit_has_a_report_of_its_own(tmp_path):
    reporter = bl.RunReport(tmp_path)
    for steps in (4, 2):
        fit("bppsa", callbacks=[reporter], max_steps=steps)
        assert written(tmp_path)["loss"]["steps"] == [*range(1, steps + 1)]


def test_other_loggers_are_left_alone(tmp_path):
    """A warning would be an error."""
    fit("bppsa", callbacks=[bl.RunReport(tmp_path)], logger=Memory())
    written(tmp_path)


def test_validations_within_an_epoch_repeat_no_metric_of_the_one_before(tmp_path):
    torch.manual_seed(0)
    train = trainer(
        "bppsa", max_epochs=2, callbacks=[bl.RunReport(tmp_path)], val_check_interval=0.25
    )
    train.fit(Both(), data(32), data(8))
    metrics = written(tmp_path)["metrics"]
    assert metrics["val_loss"]["steps"] == [2, 4, 6, 8, 10, 12, 14, 16]
    assert metrics["train_twice"]["steps"] == [8, 16]


def test_tensorboard_gets_the_tables(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoardLogger(tmp_path, name="board")
    fit(
        "bppsa", callbacks=[bl.RunReport(stock_share=1e6)], logger=board, max_epochs=9, max_steps=-1
    )
    events = EventAccumulator(board.log_dir).Reload()
    names = set(events.Tags()["tensors"])
    wanted = {f"bppsa_report/{t}/text_summary" for t in ("run", "machine", "time", "chains")}
    assert wanted <= names
    text = events.Tensors("bppsa_report/time/text_summary")[0].tensor_proto.string_val[0].decode()
    assert re.search(r"\| backward \| [\d.e+-]+ ms \| [\d.e+-]+ ms \|", text)


@pytest.mark.slow
def test_wandb_gets_the_page(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="needs wandb, of the extra experiments")
    from lightning.pytorch.loggers import WandbLogger

    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger(save_dir=tmp_path, project="p", offline=True)
    reporter = bl.RunReport(tmp_path / "report")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of wandb's own making
        fit("bppsa", callbacks=[reporter], logger=logger)
        wandb.finish()
    (page,) = (tmp_path / "wandb").rglob("media/html/*.html")
    assert page.read_text() == Path(reporter.path).read_text()


@pytest.mark.slow
def test_two_processes_write_one_report_and_keep_their_bits(tmp_path):
    forked.run(tmp_path, forked.TESTS / "support" / "report_training.py", tmp_path)
    found = written(tmp_path / "report")
    assert found["run"]["strategy"] == "bppsa_ddp" and found["run"]["steps"] == 24
    assert "(3 steps each)" in found["time"]["note"]
    for rank in (0, 1):
        with_, without = (
            torch.load(tmp_path / f"{name}_{rank}.pt") for name in ("with", "without")
        )
        assert_identical(with_, without)


@needs_chromium
@pytest.mark.slow
def test_a_browser_shows_a_real_one(tmp_path):
    fit("bppsa", Both, callbacks=[pruning(), bl.RunReport(tmp_path, stock_share=1e6)],
        max_epochs=6, max_steps=-1)  # fmt: skip
    found = {
        "titles": "[...page.querySelectorAll('h2')].map(h => h.textContent)",
        "wide": "page.documentElement.scrollWidth - page.documentElement.clientWidth",
    }
    seen, console, _ = look(tmp_path, "bppsa_report.html", tmp_path / "profile", found, 390)
    assert not console and seen["wide"] == 0
    assert seen["titles"] == [
        "Loss and metrics", "Where a step's time goes", "What runs how", "Sparsity", "Memory",
        "Machine and versions",
    ]  # fmt: skip


# --- curves --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 5000, 100_000])
def test_a_long_curve_has_few_points_and_the_same_mean(count):
    curve = Curve()
    for step in range(count):
        curve.add(step, torch.tensor(float(step)) if step % 3 else step)
    found = curve.read()
    assert len(found["steps"]) == len(found["values"]) <= 1024
    assert found["steps"] == sorted(found["steps"])
    if count:
        assert found["steps"][-1] == count - 1 and len(found["steps"]) >= min(count, 500)
        # Of a line each mean lies between the steps before and at its point.
        between = zip([-1, *found["steps"]], found["steps"], found["values"])
        assert all(before < value <= step for before, step, value in between)


def test_a_logger_that_fails_costs_a_warning_and_not_the_page(tmp_path, monkeypatch):
    def ended(*_):
        raise RuntimeError("the run has ended")

    monkeypatch.setattr(run_report, "log_report", ended)
    with pytest.warns(UserWarning, match="CSVLogger did not take the report .*: RuntimeError"):
        logger = CSVLogger(tmp_path / "csv")
        fit("bppsa", callbacks=[bl.RunReport(tmp_path)], logger=logger, log_every_n_steps=1)
    assert (tmp_path / "bppsa_report.html").is_file()


def test_a_trial_run_s_stand_in_of_a_logger_is_not_spoken_of(tmp_path, recwarn):
    fit("bppsa", callbacks=[bl.ChainMonitor()], logger=CSVLogger(tmp_path), fast_dev_run=True)
    assert not [w for w in recwarn if "is not logged" in str(w.message)]

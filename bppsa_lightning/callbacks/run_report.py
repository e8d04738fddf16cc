"""What a training did and gained, as a page to open in a browser: a callback for any Trainer."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from torch import Tensor
from typing_extensions import override

from bppsa_lightning._rank_zero import rank_zero_info, rank_zero_only, rank_zero_warn
from bppsa_lightning._trees import stand_in
from bppsa_lightning.callbacks import _run_facts as facts
from bppsa_lightning.callbacks._curves import Curve
from bppsa_lightning.callbacks._loggers import log_report, write_file
from bppsa_lightning.callbacks._stock_steps import StockSteps
from bppsa_lightning.callbacks._trainer import is_logging_step
from bppsa_lightning.callbacks.chain_monitor import ChainMonitor
from bppsa_lightning.callbacks.step_timer import PARTS, StepTimer
from bppsa_lightning.explain import chain_rows, explain, not_accelerated, pruned_rows
from bppsa_lightning.gains.comparison import typical
from bppsa_lightning.report import FORMAT, page

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import Callback
else:
    Callback = stand_in("pytorch.callbacks.Callback")

NAME = "bppsa_report"
_METRICS = 12  # curves, beside the loss
_EMPTY: Mapping[str, Any] = {
    "chains": [], "pruned": [], "not_accelerated": [], "patterns": [], "explanation": ""
}  # fmt: skip


class RunReport(Callback):
    """Writes a report of each `fit`: curves, time against stock PyTorch, plans, masks, memory.

    When `fit` ends, by an exception too, rank zero writes two files into the Trainer's log
    directory: "bppsa_report.html", a page that loads nothing else, and "bppsa_report.json", the
    data that it was made of (`bppsa_lightning.report.render` makes it again). W&B gets the page,
    TensorBoard its tables as text.

    Time against stock is that of a `ChainMonitor` beside it; where there is none, this callback
    times the steps itself, as that would. Steps are timed by the `StepTimer` beside it, or one of
    its own. The training computes the same bits as without a report.

    Args:
        folder: where the files go; by default the first logger's directory, or the Trainer's
            ``default_root_dir``. Local, or what fsspec can write to.
        stock_steps: how many steps to time against stock; 0 for none.
        stock_share: of the training's time so far, what this may have taken at any moment.

    Attributes:
        path: of the last page; None before the first.

    Raises:
        ValueError: `stock_steps` or `stock_share` is negative.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        stock_steps: int = 12,
        stock_share: float = 0.01,
    ) -> None:
        self.folder = None if folder is None else os.fspath(folder)
        self.path: str | None = None
        self._own_stock = StockSteps(stock_steps, stock_share)
        self._reset()

    def _reset(self) -> None:
        self._stock = self._own_stock
        self._timer: StepTimer | None = None
        self._owns_timer = False
        self._into = ""
        self._begun: datetime | None = None
        self._start = 0.0
        self._loss, self._resident = Curve(), Curve()
        self._metrics: dict[str, tuple[str, Curve]] = {}  # when they come, and all values
        self._found = dict(_EMPTY)
        self._looked = -1

    # --- while it trains -------------------------------------------------------------------------

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._reset()
        # All ranks are to ask, as one tells the others.
        self._into = self.folder or trainer.log_dir or trainer.default_root_dir
        self._begun, self._start = datetime.now().astimezone(), time.perf_counter()
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        monitors = [c._stock for c in callbacks if isinstance(c, ChainMonitor) and c._stock.wanted]
        self._stock = monitors[0] if monitors else self._own_stock
        timers = [c for c in callbacks if isinstance(c, StepTimer)]
        self._owns_timer = not timers
        self._timer = timers[0] if timers else StepTimer(log=False)
        self._forward("begin", "on_train_start", trainer, pl_module)

    def _forward(self, stock: str, timer: str, *args: Any) -> None:
        """Lets what is this callback's own know of a hook."""
        if self._owns_timer and self._timer is not None:
            getattr(self._timer, timer)(*args)
        if self._stock is not self._own_stock:
            return
        if stock == "mark":
            self._stock.mark(timer)
        else:
            getattr(self._stock, stock)(*(() if stock in ("begin", "end") else args))

    @override
    @rank_zero_only
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        if self._owns_timer and self._timer is not None:
            self._timer.on_train_batch_start(trainer, pl_module, *args)
        if self._stock is self._own_stock:
            self._stock.batch_start(trainer, pl_module, *args)

    @override
    def on_before_zero_grad(self, *args: Any) -> None:
        self._forward("mark", "on_before_zero_grad", *args)

    @override
    def on_before_backward(self, *args: Any) -> None:
        self._forward("mark", "on_before_backward", *args)

    @override
    def on_after_backward(self, *args: Any) -> None:
        self._forward("mark", "on_after_backward", *args)

    @override
    def on_before_optimizer_step(self, *args: Any) -> None:
        self._forward("mark", "on_before_optimizer_step", *args)

    @override
    @rank_zero_only
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, *args: Any
    ) -> None:
        self._forward("batch_end", "on_train_batch_end", trainer, pl_module, outputs, *args)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, Tensor) and loss.numel() == 1:
            self._loss.add(trainer.global_step, loss)
        if is_logging_step(trainer):
            held = facts.resident_bytes()
            if held is not None:
                self._resident.add(trainer.global_step, held)
        if trainer.is_last_batch or not self._found["explanation"]:
            # Before the epoch ends: whoever detaches or prunes does so then.
            self._look(trainer, pl_module)

    @override
    @rank_zero_only
    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._keep_metrics(trainer, "validation")

    @override
    @rank_zero_only
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._keep_metrics(trainer, "epoch")

    def _keep_metrics(self, trainer: pl.Trainer, when: str) -> None:
        """Adds to the curves that are known to come at such a moment; at others they are old."""
        for name, value in trainer.callback_metrics.items():
            if name.startswith("seconds/") or value.numel() != 1:
                continue
            if name not in self._metrics and len(self._metrics) >= _METRICS:
                continue
            comes, curve = self._metrics.setdefault(name, (when, Curve()))
            if comes == when:
                curve.add(trainer.global_step, value.clone())

    def _look(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """What is attached now; what was last found, where nothing is any more."""
        if self._looked == trainer.global_step:
            return
        self._looked = trainer.global_step
        found = {
            "chains": [row._asdict() for row in chain_rows(module)],
            "pruned": [row._asdict() for row in pruned_rows(module)],
            "patterns": facts.patterns(module),
        }
        if all(found[name] or not self._found[name] for name in found):
            others = not_accelerated(module)
            found["not_accelerated"] = [
                {"layer": o.name or "(itself)", "reason": o.reason} for o in others
            ]
            self._found = {**found, "explanation": explain(module)}

    # --- when it ends ----------------------------------------------------------------------------

    @override
    @rank_zero_only
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._look(trainer, pl_module)
        self._write(trainer, pl_module, "finished")

    @override
    @rank_zero_only
    def on_exception(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException
    ) -> None:
        if self._begun is None:
            return  # before the training, or after its report
        with suppress(Exception):  # the earlier one is what the user must see
            self._look(trainer, pl_module)
        ended = f"{type(exception).__name__}: {exception}".strip(": ")
        # A name of a file may have surrogates in it, which no page and no logger takes.
        self._write(trainer, pl_module, ended.encode("utf-8", "backslashreplace").decode())

    def _write(self, trainer: pl.Trainer, module: pl.LightningModule, ended: str) -> None:
        self._forward("end", "on_train_end", trainer, module)
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            try:
                data = self._data(trainer, module, ended)
                html = page(data)
                files = {
                    f"{NAME}.json": json.dumps(data, indent=1, allow_nan=False).encode(),
                    f"{NAME}.html": html.encode(),
                }
                for name, content in files.items():  # both, once both are known to be made
                    self.path = write_file(self._into, name, content)
                rank_zero_info(f"BPPSA: report of this training: {self.path}")
            except Exception as error:  # of a disk: the training is what counts
                rank_zero_warn(f"RunReport: {self._into}: the report was not written: {error!r}")
            else:
                self._log(trainer, html, data)
        self._begun = self._timer = None

    def _log(self, trainer: pl.Trainer, html: str, data: dict[str, Any]) -> None:
        for logger in trainer.loggers:
            try:
                log_report(logger, NAME, html, _tables(data), trainer.global_step)
            except Exception as error:  # of a service that is not there, of a run that has ended
                name = type(logger).__name__
                rank_zero_warn(f"RunReport: {name} did not take the report {self.path}: {error!r}")

    def _data(self, trainer: pl.Trainer, module: pl.LightningModule, ended: str) -> dict[str, Any]:
        assert self._begun is not None
        resident = self._resident.read()
        return {
            "format": FORMAT,
            "run": {
                "model": type(module).__name__,
                "strategy": getattr(trainer.strategy, "strategy_name", "")
                or type(trainer.strategy).__name__,
                "parameters": sum(p.numel() for p in module.parameters()),
                "started": self._begun.strftime("%Y-%m-%d %H:%M:%S %z"),
                "seconds": time.perf_counter() - self._start,
                "epochs": trainer.current_epoch,
                "steps": trainer.global_step,
                "ended": ended,
            },
            "environment": facts.environment(),
            "loss": self._loss.read(),
            "metrics": {name: curve.read() for name, (_, curve) in self._metrics.items()},
            "time": self._time(module),
            "memory": {
                "parameter_bytes": facts.parameter_bytes(module),
                "optimizer_bytes": facts.optimizer_bytes(trainer.optimizers),
                **facts.peaks(),
                **resident,
            },
            **self._found,
        }

    def _time(self, module: pl.LightningModule) -> dict[str, Any]:
        """Median seconds of a step's parts, ours and stock's; all of the timed steps, if any."""
        stock = self._stock
        if stock.has_figures:
            found = stock.comparison
            note = (
                f"BPPSA: {found.text()}. In these steps, the accelerated layers were run again by "
                "PyTorch's own kernels; all else in a step is the same work."
            )
            return {
                "ours": found.ours(), "stock": found.stock(), "speed_ups": found.speed_ups(),
                "layers": found.of_layers(), "note": note,
            }  # fmt: skip
        why = stock.why_none(module) if stock.wanted else None
        return {
            "ours": {} if self._timer is None else typical(_steps(self._timer)),
            "stock": {}, "speed_ups": {}, "layers": [],
            "note": f"Not timed against stock PyTorch: {why}" if why else "",
        }  # fmt: skip


def _steps(timer: StepTimer) -> list[dict[str, float]]:
    """The parts of each step."""
    rows = zip(*(getattr(timer, part) for part in PARTS), strict=True)
    return [dict(zip(PARTS, row, strict=True)) for row in rows]


def _tables(data: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[str]]]]:
    """The report's tables, for loggers that show text: name -> header, rows."""
    time_, run = data["time"], data["run"]
    tables = {"run": (["", ""], [[key, str(value)] for key, value in run.items()])}
    tables["machine"] = (["", ""], [[k, v] for k, v in data["environment"].items()])
    if time_["ours"]:
        columns = [time_["ours"], time_["stock"]]
        rows = [
            [part, *(f"{c[part] * 1e3:.4g} ms" if part in c else "" for c in columns)]
            for part in time_["ours"]
        ]
        tables["time"] = (["", "bppsa", "stock PyTorch"], rows)
    for name in ("chains", "pruned", "not_accelerated"):
        if data[name]:
            tables[name] = (list(data[name][0]), [list(row.values()) for row in data[name]])
    return tables

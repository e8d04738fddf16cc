"""What the chains of a training do, and what it gains: a callback for any Trainer."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from bppsa_lightning._rank_zero import rank_zero_info, rank_zero_only, rank_zero_warn
from bppsa_lightning._trees import stand_in
from bppsa_lightning.callbacks._loggers import log_picture, log_table
from bppsa_lightning.callbacks._stock_steps import StockSteps
from bppsa_lightning.callbacks._trainer import is_logging_step
from bppsa_lightning.explain import ChainRow, PrunedRow, chain_rows, pruned_rows
from bppsa_lightning.gains import Comparison

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import Callback
else:
    Callback = stand_in("pytorch.callbacks.Callback")

# The function first: a CLI takes the first that fits, and an import path is a str, too.
Picture = Callable[[Any], Any] | str | PathLike[str]


class ChainMonitor(Callback):
    """Says what was gained over stock PyTorch; logs the gradient norm, all plans, and pictures.

    - what was gained: some steps are timed against stock PyTorch, and when `fit` ends one line of
      the log says "backward 3.1x, step 1.9x of stock on this machine (12 steps each)". Loggers get
      "speed_up/backward", "speed_up/forward" and "speed_up/step" as soon as it is known. If a step
      is slower than stock, a warning says what to do. Gradients, weights, random numbers and
      buffers are the same bits as without it: of a timed step, only the accelerated layers are run
      again, on copies that share their weights.
    - "grad_norm", the 2-norm of all gradients of the optimizer's parameters before they are
      clipped, at every logging step; with several optimizers "grad_norm/0", "grad_norm/1", ….
    - "plan" and "pruned_layers", the tables of `bppsa_lightning.explain`: after the first batch,
      and at logging steps by which a plan has changed.
    - pictures, at the end of `fit`.

    W&B shows tables and pictures (online or not), TensorBoard too; CSVLogger gets them as files
    beside its metrics (plan.csv, <picture>.png).

    Args:
        grad_norm: whether to log it.
        plans: whether to log them.
        pictures: what to log by which name: the path of a PNG file that exists by then, or a
            function of the LightningModule (in YAML its import path) that returns a matplotlib
            figure. A picture that cannot be made costs a warning, not the training.
        stock_steps: how many steps to time against stock; 0 for none.
        stock_share: of the training's time so far, what this may have taken at any moment. A step
            is timed as soon as its cost fits; a short training may end before.

    Attributes:
        comparison: of the last `fit`: the timed steps, `gains.Comparison`.

    Raises:
        TypeError: a picture is neither a path nor a function.
        ValueError: `stock_steps` or `stock_share` is negative.
    """

    def __init__(
        self,
        grad_norm: bool = True,
        plans: bool = True,
        pictures: Mapping[str, Picture] | None = None,
        stock_steps: int = 12,
        stock_share: float = 0.01,
    ) -> None:
        for name, picture in (pictures or {}).items():
            if not callable(picture) and not isinstance(picture, (str, PathLike)):
                raise TypeError(
                    f"pictures: found {type(picture).__name__} for {name!r}, wanted a path or a "
                    "function of the LightningModule"
                )
        self._stock = StockSteps(stock_steps, stock_share)
        self.grad_norm = grad_norm
        self.plans = plans
        self.pictures = dict(pictures or {})
        self._first, self._gain_logged = True, False
        self._logged: dict[str, list[tuple[str, ...]]] = {}

    @property
    def comparison(self) -> Comparison:
        return self._stock.comparison

    @override
    def on_train_start(self, *args: Any) -> None:
        self._first, self._gain_logged, self._logged = True, False, {}
        self._stock.begin()

    @override
    @rank_zero_only
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        self._stock.batch_start(trainer, pl_module, *args)

    @override
    def on_before_zero_grad(self, *args: Any) -> None:
        self._stock.mark("on_before_zero_grad")

    @override
    def on_before_backward(self, *args: Any) -> None:
        self._stock.mark("on_before_backward")

    @override
    def on_after_backward(self, *args: Any) -> None:
        self._stock.mark("on_after_backward")

    @override
    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        self._stock.mark("on_before_optimizer_step")
        if self.grad_norm and is_logging_step(trainer):
            norm = total_norm(optimizer)
            if norm is not None:
                pl_module.log(_norm_name(trainer, optimizer), norm)

    @override
    @rank_zero_only
    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any
    ) -> None:
        self._log_plans(trainer, pl_module)
        if self._stock.batch_end(trainer, pl_module, *args) and self._stock.is_done:
            self._log_gain(trainer)

    def _log_plans(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not self.plans or not trainer.loggers:
            return
        if not (self._first or is_logging_step(trainer)):
            return
        self._first = False
        tables: Mapping[str, Sequence[ChainRow | PrunedRow]] = {
            "plan": chain_rows(pl_module), "pruned_layers": pruned_rows(pl_module)
        }  # fmt: skip
        for name, rows in tables.items():
            key = [row.key for row in rows]
            if key and self._logged.get(name) != key:
                self._logged[name] = key
                for logger in trainer.loggers:
                    log_table(logger, name, rows[0]._fields, rows, trainer.global_step)

    def _log_gain(self, trainer: pl.Trainer) -> None:
        """To the loggers; and a warning, if it is none."""
        self._gain_logged = True
        found = {f"speed_up/{part}": x for part, x in self.comparison.speed_ups().items()}
        for logger in trainer.loggers:
            logger.log_metrics(found, step=trainer.global_step)
        if self.comparison.is_slower:
            measured = self.comparison.text()
            rank_zero_warn(f"BPPSA is slower than stock PyTorch here: {measured}. {_SLOW}")

    @override
    @rank_zero_only
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._stock.end()
        self._say_gain(trainer, pl_module)
        if not trainer.loggers:
            return
        for name, picture in self.pictures.items():
            try:
                png = _png(picture, pl_module)
            except Exception as error:  # whatever a user's drawing may raise
                rank_zero_warn(f"pictures: {name!r} was not made: {error!r}")
                continue
            for logger in trainer.loggers:
                log_picture(logger, name, png, trainer.global_step)

    @override
    def on_exception(self, *args: Any) -> None:
        self._stock.end()

    def _say_gain(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        stock = self._stock
        if stock.has_figures:
            if not self._gain_logged:
                self._log_gain(trainer)
            if not self.comparison.is_slower:  # else a warning has said it
                rank_zero_info(f"BPPSA: {self.comparison.text()}")
        elif stock.wanted and (why := stock.why_none(pl_module)) is not None:
            rank_zero_info(f"BPPSA: not timed against stock PyTorch: {why}")


_SLOW = (
    'Train with strategy="auto", or measure this machine once with bl.calibrate(), by which '
    '"auto" chooses better. See docs/troubleshooting.md#slower'
)


def total_norm(optimizer: Optimizer) -> Tensor | None:
    """The 2-norm of all gradients of an optimizer's parameters as one vector, in float32 at least.

    On the first gradient's device; None if there is no gradient.
    """
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    grads = [_wide(p.grad) for p in parameters if p.grad is not None]
    return torch.nn.utils.get_total_norm(grads) if grads else None


def _wide(grad: Tensor) -> Tensor:
    values = grad.coalesce().values() if grad.is_sparse else grad
    return values.detach().to(torch.promote_types(values.dtype, torch.float32))


def _norm_name(trainer: pl.Trainer, optimizer: Optimizer) -> str:
    if len(trainer.optimizers) == 1:
        return "grad_norm"
    which = next(i for i, other in enumerate(trainer.optimizers) if other is optimizer)
    return f"grad_norm/{which}"


def _png(picture: Picture, module: pl.LightningModule) -> bytes:
    if not callable(picture):
        return Path(picture).read_bytes()
    file = io.BytesIO()
    figure = picture(module)
    figure.savefig(file, format="png", dpi=110)
    if "matplotlib.pyplot" in sys.modules:  # which keeps the figures that it made
        sys.modules["matplotlib.pyplot"].close(figure)
    return file.getvalue()

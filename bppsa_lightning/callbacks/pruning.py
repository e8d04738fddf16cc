"""Pruning whose retraining costs what the surviving weights cost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.utils.prune as prune
from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from bppsa_lightning import pruned
from bppsa_lightning._context import masks_written
from bppsa_lightning._rank_zero import rank_zero_info, rank_zero_warn
from bppsa_lightning._replacement import Replacement
from bppsa_lightning._trees import settle, stand_in
from bppsa_lightning.callbacks._pruned_state import (
    accept_other_masks,
    first_values,
    masks_of,
    packed_masks,
    put_first_values,
    put_masks,
    reorder,
)
from bppsa_lightning.explain import explain
from bppsa_lightning.pruned.compact import CompactWeight, expand_copies, expanded_state

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelPruning
    from lightning.pytorch.strategies import SingleDeviceStrategy
else:
    ModelPruning = stand_in("pytorch.callbacks.ModelPruning")
    SingleDeviceStrategy = stand_in("pytorch.strategies.SingleDeviceStrategy")


class SparseJacobianPruning(ModelPruning):
    """Lightning's `ModelPruning`, and retraining that is faster for it.

    After each pruning the patterns of the masks are fixed: pruned `nn.Conv2d` and `nn.Linear`
    layers compute forward and gradients of their surviving weights only, wherever that is estimated
    to be faster (CPU; see `bppsa_lightning.explain`), under any strategy. Masks survive a
    checkpoint: a resumed run goes on at the same sparsity.

    Arguments have the positions that ModelPruning gives them. Two things differ. A layer pruned
    again is judged by its weights as they are (there: as they were in the last forward, before the
    optimizer's step). And a weight that is masked keeps the value it had then, where stock's
    momentum and decay still move it; neither has an effect on the network.

    Args:
        pruning_fn: "l1_unstructured", "random_unstructured", "ln_structured", "random_structured",
            or a `torch.nn.utils.prune.BasePruningMethod` subclass.
        amount: of the weights that are still there, or a function of the epoch.
        parameters_to_prune: (module, "weight" or "bias") pairs; all that the model has by default.
        parameter_names: which of "weight" and "bias"; both by default.
        module_names: of which classes, by name: ``[Conv2d, Linear]`` leaves the scales of norms
            alone; all by default.
        use_global_unstructured: the smallest of all layers, or of each.
        apply_pruning: whether to prune at the end of an epoch, or a function of the epoch.
        at_epochs: the epochs at whose end to prune, in place of `apply_pruning`; for YAML.
        make_pruning_permanent: at the end of training, plain weights with zeros in them. All
            checkpoints hold plain weights then, and the masks beside them.
        use_lottery_ticket_hypothesis: whether surviving weights go back to where they started. Off
            by default, unlike in ModelPruning.
        resample_parameters, pruning_dim, pruning_norm, verbose, prune_on_train_epoch_end: as in
            ModelPruning.
        compact: between prunings the parameter of a pruned layer (``weight_orig``) holds the
            surviving weights only, (nnz,), in the module and in its optimizers: no dense gradient,
            no dense momentum. A layer of which more than 40 % survive stays dense. ``state_dict``
            and checkpoints are dense as ever. Pass False for callbacks that walk through parameters
            beside a copy of the model (weight averaging). On several devices parameters stay dense:
            DistributedDataParallel averages the gradients of those that it was given.

    Attributes:
        explanation: what `explain` says of the model, as it was at the end of the last ``fit``.

    Raises:
        MisconfigurationException: as ModelPruning.
        TypeError: `at_epochs` holds something else than integers, `module_names` is a string,
            `amount` a truth value or `compact` none.
    """

    def __init__(
        self,
        pruning_fn: Callable[..., Any] | str = "l1_unstructured",
        parameters_to_prune: Sequence[tuple[nn.Module, str]] = (),
        parameter_names: list[str] | None = None,
        use_global_unstructured: bool = True,
        amount: int | float | Callable[[int], int | float] = 0.5,
        apply_pruning: bool | Callable[[int], bool] = True,
        make_pruning_permanent: bool = True,
        use_lottery_ticket_hypothesis: bool | Callable[[int], bool] = False,
        resample_parameters: bool = False,
        pruning_dim: int | None = None,
        pruning_norm: int | None = None,
        verbose: int = 0,
        prune_on_train_epoch_end: bool = True,
        module_names: list[str] | None = None,
        at_epochs: list[int] | None = None,
        compact: bool = True,
    ) -> None:
        if at_epochs is not None:
            whole = isinstance(at_epochs, Collection) and not isinstance(at_epochs, str)
            if not whole or not all(type(n) is int for n in at_epochs):
                raise TypeError(f"at_epochs: found {at_epochs!r}, wanted a list of integers")
            apply_pruning = frozenset(at_epochs).__contains__
        if isinstance(module_names, str):
            raise TypeError(f"module_names: found {module_names!r}, wanted a list of class names")
        if isinstance(amount, bool):
            raise TypeError(f"amount: found {amount!r}, wanted a number or a function of the epoch")
        if not isinstance(compact, bool):
            raise TypeError(f"compact: found {compact!r}, wanted True or False")
        super().__init__(
            pruning_fn, parameters_to_prune, parameter_names, use_global_unstructured, amount,
            apply_pruning, make_pruning_permanent, use_lottery_ticket_hypothesis,
            resample_parameters, pruning_dim, pruning_norm, verbose, prune_on_train_epoch_end,
        )  # fmt: skip
        self.compact = compact
        self.module_names = module_names
        self.explanation = ""
        self._trainer: pl.Trainer | None = None
        self._model: pl.LightningModule | None = None
        self._compact: list[CompactWeight] = []
        self._attached_here: list[Replacement] = []
        self._masks: dict[str, dict[str, Any]] = {}
        self._resumes = False
        self._decided: int | None = -1  # the last epoch at whose end it was pruned, or not
        self._plan_to_log = False
        self._load_hook: Any = None

    @override
    def filter_parameters_to_prune(
        self, parameters_to_prune: Sequence[tuple[nn.Module, str]] = ()
    ) -> Sequence[tuple[nn.Module, str]]:
        """Those of the classes that `module_names` names."""
        if self.module_names is None:
            return parameters_to_prune
        chosen = [p for p in parameters_to_prune if type(p[0]).__name__ in self.module_names]
        if not chosen:
            kinds = sorted({type(module).__name__ for module, _ in parameters_to_prune})
            modules = [] if self._model is None else self._model.modules()
            masked = {type(module).__name__ for module in modules if prune.is_pruned(module)}
            again = "" if masked.isdisjoint(self.module_names) else (
                ", whose weights have masks already (torch.nn.utils.prune.remove makes them plain "
                "ones, as make_pruning_permanent=True does at the end of fit)"
            )  # fmt: skip
            raise ValueError(
                f"module_names: found {self.module_names!r}{again}, wanted some of the model's: "
                f"{', '.join(kinds)}"
            )
        return chosen

    # --- masks change ----------------------------------------------------------------------------

    @override
    def apply_pruning(self, amount: int | float) -> None:
        """Prunes, then fixes patterns and parameters for retraining."""
        self._restore_dense()
        modules = {module for module, _ in self._parameters_to_prune}
        orders = {module: list(module._parameters) for module in modules}
        for module in modules:
            masks_written(module, ())
        super().apply_pruning(amount)
        for module, names in orders.items():
            reorder(module, names)
        self._compact_layers()

    @override
    def apply_lottery_ticket_hypothesis(self) -> None:
        self._restore_dense()
        super().apply_lottery_ticket_hypothesis()
        self._compact_layers()

    @staticmethod
    @override
    @torch.no_grad()
    def _copy_param(new: nn.Module, old: nn.Module, name: str) -> None:
        # Lightning has both share their memory, so that training moves the first values.
        parameter = new._parameters.get(f"{name}_orig", new._parameters.get(name))
        if parameter is not None:
            parameter.copy_(getattr(old, name))

    @override
    def make_pruning_permanent(self, module: nn.Module) -> None:
        """Plain weights: no masks, no sparse layers."""
        self._restore_dense()
        for replacement in pruned.sparse_layers(module).values():
            replacement.detach()
        orders = {child: list(child._parameters) for child in module.modules()}
        super().make_pruning_permanent(module)
        for child, names in orders.items():
            reorder(child, names)

    def _compact_layers(self) -> None:
        """Patterns and parameters for the masks as they are."""
        if self._model is None:  # used without a Trainer: only pruning
            return
        masks = packed_masks(self._model)
        for callback in self._all:
            callback._masks = masks
        self._attached_here += pruned.attach_layers(self._model)
        # DDP and its kind keep the parameters that they were given.
        one_device = self._trainer is not None and isinstance(
            self._trainer.strategy, SingleDeviceStrategy
        )
        wanted = all(callback.compact for callback in self._all)
        stay = ["parameters stay dense under DDP"] if wanted and not one_device else []
        if wanted and one_device:
            for name, layer in pruned.sparse_layers(self._model).items():
                if pruned.unsupported(layer.module) or not CompactWeight.is_compactable(layer):
                    continue
                if why := CompactWeight.held_by(layer, self._model, self._optimizers):
                    stay.append(f"{name} stays dense: {why}")
                else:
                    self._compact.append(CompactWeight(layer, self._optimizers))
        self._plan_to_log = True
        sparsity = self.sparsity()
        self._log({"pruning/sparsity": sparsity})
        said = [f"{sparsity:.2%} of prunable weights pruned", *stay]
        rank_zero_info(f"SparseJacobianPruning: {'; '.join(said)}")

    def _restore_dense(self) -> None:
        """Dense parameters again, which may be pruned or read by others."""
        for callback in self._all:
            for weight in callback._compact:
                weight.expand(self._optimizers)
            callback._compact = []
        if self._model is not None:
            expand_copies(self._model, self._optimizers)

    @property
    def _all(self) -> list[SparseJacobianPruning]:
        """The Trainer's callbacks of this kind: one may prune what another has made compact."""
        return _of_this_kind(self._trainer) or [self]

    @property
    def _optimizers(self) -> list[Optimizer]:
        return [] if self._trainer is None else self._trainer.optimizers

    def sparsity(self) -> float:
        """The share of pruned parameters among those that may be pruned."""
        stats = [self._get_pruned_stats(m, n) for m, n in self._parameters_to_prune]
        sizes = [
            getattr(m, f"{n}_mask", getattr(m, n)).numel() for m, n in self._parameters_to_prune
        ]
        return sum(zeros for zeros, _ in stats) / max(sum(sizes), 1)

    # --- the Trainer's hooks ---------------------------------------------------------------------

    @override
    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        settle(self, trainer)
        self._trainer, self._model = trainer, pl_module
        chosen_here = not self._parameters_to_prune
        with torch.no_grad():  # a masked weight of the last forward has a graph, and no copies
            for module in pl_module.modules():
                masks_written(module, ())
        super().setup(trainer, pl_module, stage)
        if stage == "fit":  # another fit's masks aren't this one's; a checkpoint is read after this
            self._masks, self._resumes = packed_masks(pl_module), False
            if chosen_here:
                self._warn_of_masked(pl_module)
        self._load_hook = pl_module.register_load_state_dict_pre_hook(accept_other_masks)

    def _warn_of_masked(self, model: nn.Module) -> None:
        """Of parameters that Lightning does not find under their names, as they have masks."""
        masked = []
        for name, _ in masks_of(model):
            path, _dot, parameter = name.rpartition(".")
            kind = type(model.get_submodule(path)).__name__
            if parameter in self._parameter_names and kind in (self.module_names or [kind]):
                masked.append(name)
        if masked:
            more = f" and {len(masked) - 3} more" if len(masked) > 3 else ""
            rank_zero_warn(
                f"SparseJacobianPruning: {', '.join(masked[:3])}{more} have masks already, and are "
                "not pruned any further. To do so, go on with the callback that pruned them, or "
                "make them plain first (torch.nn.utils.prune.remove)."
            )

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # Only now have the optimizers taken their state, which a checkpoint numbers by the order
        # that the parameters had before they were pruned.
        if self._resumes:
            put_masks(pl_module, self._masks)
        if packed_masks(pl_module):
            self._compact_layers()
        before = trainer.current_epoch - 1
        if not self._resumes or self._decided is None:
            self._decided = before
        elif self._decided < before and self._prune_on_train_epoch_end:
            # After the checkpoint of an epoch's last batch, Lightning leaves out the epoch's end.
            self._decided = before
            self._run_pruning(before)
        self._resumes = False

    @override
    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        # With max_steps, Lightning ends an epoch again that ended before the checkpoint.
        if self._decided is None or trainer.current_epoch > self._decided:
            super().on_train_epoch_end(trainer, pl_module)
            self._decided = trainer.current_epoch

    @override
    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        self._detach_all()

    @override
    def on_train_batch_end(self, *args: Any) -> None:
        if not self._plan_to_log or self._model is None:
            return
        self._plan_to_log = False
        plans = [layer.plan for layer in pruned.sparse_layers(self._model).values() if layer.plan]
        self._log(
            {
                "pruning/sparse_layers": float(sum(plan.sparse for plan in plans)),
                "pruning/estimated_seconds": sum(plan.seconds for plan in plans),
                "pruning/estimated_seconds_dense": sum(plan.dense_seconds for plan in plans),
            }
        )

    @override
    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self is self._all[0]:  # the others will find nothing attached
            for callback in self._all:
                callback.explanation = explain(pl_module)
        self._detach_all()
        super().on_train_end(trainer, pl_module)

    @override
    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._detach_all()
        if self._load_hook is not None:
            self._load_hook.remove()
        self._trainer = self._model = self._load_hook = None

    def _detach_all(self) -> None:
        self._restore_dense()
        for replacement in self._attached_here:
            replacement.detach()
        self._attached_here = []

    # --- checkpoints -----------------------------------------------------------------------------

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what `on_save_checkpoint` wrote; older checkpoints hold the masks alone."""
        self._masks = state_dict["masks"]
        self._resumes = True
        decided = state_dict.get("decided", [])
        known = len(decided) == len(self._all)
        self._decided = decided[self._all.index(self)] if known else None
        if self._model is not None:
            put_first_values(self._model, self._originals, state_dict.get("first_values", {}))

    @property
    def _originals(self) -> list[tuple[nn.Module, str, nn.Module]]:
        """For the lottery ticket: modules, names of parameters, copies that hold first values."""
        return [
            (self._parameters_to_prune[i][0], name, layer["data"])
            for layer in (self._original_layers or {}).values()
            for i, name in layer["names"]
        ]

    @override
    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        # One state for all callbacks of this kind, whatever their settings: with `state_dict`,
        # Lightning would have two of them differ by name, and settings may change at a resume.
        callbacks = _of_this_kind(trainer) or [self]
        originals = [original for callback in callbacks for original in callback._originals]
        checkpoint.setdefault("callbacks", {})[self.state_key] = {
            "masks": self._masks,
            "decided": [callback._decided for callback in callbacks],
            "first_values": first_values(pl_module, originals),
        }
        if self._compact:
            checkpoint["optimizer_states"] = [
                expanded_state(optimizer, state, self._compact)
                for optimizer, state in zip(
                    trainer.optimizers, checkpoint["optimizer_states"], strict=True
                )
            ]

    def _log(self, metrics: dict[str, float]) -> None:
        if self._trainer is not None and self._trainer.is_global_zero:
            for logger in self._trainer.loggers:
                logger.log_metrics(metrics, step=self._trainer.global_step)


def _of_this_kind(trainer: pl.Trainer | None) -> list[SparseJacobianPruning]:
    callbacks: list[Any] = [] if trainer is None else trainer.callbacks  # type: ignore[attr-defined]
    return [c for c in callbacks if isinstance(c, SparseJacobianPruning)]

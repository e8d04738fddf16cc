"""What a pipeline cannot train, said before it starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DistributedSampler

from bppsa_lightning._rank_zero import rank_zero_warn
from bppsa_lightning.layerpipe.collect import averages
from bppsa_lightning.layerpipe.delays import SCHEDULES
from bppsa_lightning.layerpipe.weights import VERSIONS


def refuse_unknown(schedule: str, versions: str, micro_batches: int | None) -> None:
    """Raises for arguments of a `LayerPipeStrategy` that there are not.

    Raises:
        ValueError: naming the argument, what was found and what was wanted.
    """
    for name, value, known in (("schedule", schedule, SCHEDULES), ("versions", versions, VERSIONS)):
        if value not in known:
            wanted = ", ".join(map(repr, known))
            raise ValueError(f"{name}: found {value!r}, wanted one of {wanted}")
    if micro_batches is not None and micro_batches < 1:
        raise ValueError(f"micro_batches: found {micro_batches}, wanted at least 1")


def refuse(trainer: Any, strategy: Any) -> None:
    """Raises for settings of a Trainer that a `LayerPipeStrategy` cannot honour.

    Raises:
        ValueError: manual optimization; a loss scaler over several stages; with delays:
            accumulation, or an average of the weights; synchronised batch norms;
            versions="average" under mixed precision.
    """
    module = trainer.lightning_module
    if not module.automatic_optimization:
        _fail("automatic_optimization", False, "True: the pipeline runs the backward and the step")
    if strategy._layer_sync is not None:
        _fail("sync_batchnorm", True, "False: each batch norm lives in one process")
    if strategy.stages > 1 and getattr(trainer.precision_plugin, "scaler", None) is not None:
        # Each stage would find infinities, and set its scale, by itself.
        _fail("precision", trainer.precision, "one without a loss scaler, as 'bf16-mixed'")
    if strategy.is_delayed:
        exact = "or LayerPipeStrategy(delays=False)"
        counts = [trainer.accumulate_grad_batches]
        for callback in trainer.callbacks:  # GradientAccumulationScheduler
            counts += getattr(callback, "scheduling", {}).values()
        if any(count != 1 for count in counts):
            _fail("accumulate_grad_batches", max(counts), f"1, {exact}")
        if averages(trainer.callbacks):
            # One after every step of the Trainer is none after every update of a stage.
            _fail("callbacks", "WeightAveraging", f"none that averages weights, {exact}")
        if _has("StochasticWeightAveraging", trainer.callbacks):
            # Its last epoch is forwards alone, of which no stage has the delays.
            _fail("callbacks", "StochasticWeightAveraging", f"none that averages weights, {exact}")
    if strategy.versions == "average" and "mixed" in str(trainer.precision):
        _fail("versions", "average", f"'stash' with precision {trainer.precision!r}")


def _has(name: str, callbacks: list[Any]) -> bool:
    return any(kind.__name__ == name for c in callbacks for kind in type(c).__mro__)


def refuse_sampler(loader: Any) -> None:
    """Raises for a loader that gives each process a part of the data.

    Raises:
        ValueError: its sampler is a DistributedSampler for several.
    """
    sampler = getattr(loader, "sampler", None)
    if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
        found = f"a {type(sampler).__name__} with num_replicas={sampler.num_replicas}"
        raise ValueError(
            f'sampler: found {found} with strategy="layerpipe", wanted one that gives every '
            "process the same samples: the first stage takes the inputs, the last one the targets"
        )


def refuse_optimizers(optimizers: list[Any]) -> None:
    """Raises for optimizers that ask for the loss more than once in a step.

    Raises:
        ValueError: LBFGS.
    """
    for optimizer in optimizers:
        if isinstance(getattr(optimizer, "optimizer", optimizer), torch.optim.LBFGS):
            _fail("configure_optimizers", "LBFGS", "an optimizer that needs one gradient a step")


def asked_once(optimizer: Any, closure: Callable[[], Any]) -> Callable[[], Any]:
    """A closure that refuses to be called again (SAM), as another mini-batch's gradient is due.

    Raises:
        ValueError: by the closure, at its second call.
    """
    called = False

    def once() -> Any:
        nonlocal called
        if called:
            found, exact = type(optimizer).__name__, "or LayerPipeStrategy(delays=False)"
            wanted = f"an optimizer that needs one gradient a step, {exact}"
            _fail("configure_optimizers", found, wanted)
        called = True
        return closure()

    return once


def _fail(name: str, found: object, wanted: str) -> None:
    raise ValueError(f'{name}: found {found!r} with strategy="layerpipe", wanted {wanted}')


def warn(trainer: Any, strategy: Any, chain: nn.Sequential) -> None:
    """Warns of what is another computation than in one process."""
    norms = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in chain.modules())
    if norms and not strategy.is_delayed and strategy.micro_batches > 1:
        rank_zero_warn(
            f"Batch norms see micro-batches: a mini-batch is divided into {strategy.micro_batches} "
            "parts, and each is normalised by its own mean and variance. For those of the whole "
            "mini-batch: LayerPipeStrategy(micro_batches=1)."
        )
    own = type(strategy.lightning_module)
    if strategy.stages > 1 and _overrides(own, "configure_gradient_clipping"):
        rank_zero_warn(
            f"{own.__name__}.configure_gradient_clipping runs in each process for the gradients of "
            "its own stage: self.clip_gradients without delays clips the norm over all stages, "
            "torch.nn.utils.clip_grad_norm_ that of one."
        )
    by_norm = str(trainer.gradient_clip_algorithm or "norm").endswith("norm")
    if strategy.is_delayed and trainer.gradient_clip_val and by_norm:
        rank_zero_warn(
            "gradient_clip_val clips the norm of each stage's gradient: with delays the stages "
            "update at different times, and the norm over all of them is known to none. "
            "gradient_clip_algorithm='value' does not depend on it."
        )


def _overrides(kind: type, name: str) -> bool:
    """Whether a LightningModule's method is the user's."""
    owner = next(k for k in kind.__mro__ if name in vars(k))
    return owner.__module__.partition(".")[0] not in ("lightning", "pytorch_lightning")

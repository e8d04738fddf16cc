"""``Trainer(strategy="layerpipe", devices=P)``: a chain of layers over P processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import override

from bppsa_lightning._rank_zero import rank_zero_info
from bppsa_lightning._same_batches import LoaderRandomness, SameBatches, generators
from bppsa_lightning._trees import Settles, stand_in
from bppsa_lightning.layerpipe import attached, capture, clipping, collect, find, refuse
from bppsa_lightning.layerpipe.alike import check_alike
from bppsa_lightning.layerpipe.delays import UPDATES_PER_STAGE, stage_delays
from bppsa_lightning.layerpipe.links import Links, rank_of
from bppsa_lightning.layerpipe.metrics import WholeMetrics, WholeValues
from bppsa_lightning.layerpipe.options import DelayedOptions
from bppsa_lightning.layerpipe.pipelines import pipeline_of
from bppsa_lightning.layerpipe.plan import Plan
from bppsa_lightning.layerpipe.planning import make_plan
from bppsa_lightning.layerpipe.stage import add_gradients
from bppsa_lightning.layerpipe.trace import Event, Trace, observed_delays
from bppsa_lightning.layerpipe.zero_bubble import loss_of_parts

if TYPE_CHECKING:
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import DDPStrategy
else:
    DDPStrategy = stand_in("pytorch.strategies.DDPStrategy")


class LayerPipeStrategy(WholeValues, Settles, DDPStrategy):
    """Trains one `nn.Sequential` of the user's module as a pipeline of P processes.

    Each process holds some consecutive layers, a stage, and does their forwards (F), the gradients
    of their inputs (D) and those of their weights (G) as tasks of their own. With delays no process
    waits for the pipeline to fill or to empty between mini-batches: update k of layer l uses the
    gradient of mini-batch k taken with every layer m at its own weights after max(k0, k - d_m)
    updates, d_m = 2 S(m) for "layerpipe" and S(m) for "pipedream", S(m) the number of stages after
    that of m; k0 is the number of updates at the last drain. It drains at the end of an epoch,
    before a validation and before a checkpoint.

    The user's ``training_step`` runs where the loss is known, in the process of the last stage,
    which is rank 0 (in that of the first up to the call of the chain, as well); it calls the
    `nn.Sequential` once, with one tensor. All processes read the same batches. Optimizers and
    schedulers are the user's; update k has the learning rate of step k. Validation, test and
    prediction run in every process alike, with the weights of all stages.

    Args:
        schedule: "layerpipe" (Unnikrishnan & Parhi, arXiv:2108.06629), "pipedream" (SOSP 2019),
            "gpipe" (arXiv:1811.06965) or "zero_bubble" (arXiv:2401.10241, by
            torch.distributed.pipelining). The last two have no delays: their gradient is exact.
        delays: False for the exact gradient: each update waits for that of its mini-batch.
        versions: of the weights in a delayed backward: "stash" keeps those of the forward,
            "average" takes a moving average of the updates for them (`reference.MovingAverage`),
            without keeping any.
        cuts: the first layer of every stage but the first, so that (2, 5) means layers 0 and 1, 2
            to 4, and 5 to the last; by default such that the slowest process has least to do.
        chain: dotted name of the `nn.Sequential`; by default the only one that lies in no other.
        micro_batches: parts of a mini-batch, without delays; by default one for each process.
        trace: a file for the trace of all tasks, in Chrome's format, written at the end of ``fit``.
        kwargs: DDPStrategy's (start_method, process_group_backend, timeout, …).

    Attributes:
        plan: what was decided at the first mini-batch; None before it.
        events: the tasks of every stage if there is a `trace`, on rank 0, after ``fit``.
        observed_delays: {layer: its delay in updates, as read off the events}.

    Raises:
        ValueError: an unknown schedule or version; at the start of ``fit``: no such chain, more
            processes than layers, cuts that do not fit, parameters outside of the chain.
    """

    strategy_name = "layerpipe"

    def __init__(
        self,
        schedule: str = "layerpipe",
        delays: bool = True,
        versions: str = "stash",
        cuts: Sequence[int] | None = None,
        chain: str | None = None,
        micro_batches: int | None = None,
        trace: str | Path | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        refuse.refuse_unknown(schedule, versions, micro_batches)
        self.schedule, self.delays, self.versions = schedule, delays, versions
        self.cuts = None if cuts is None else tuple(cuts)
        self.chain, self.trace = chain, trace
        self._micro_batches = micro_batches
        self.plan: Plan | None = None
        self.events: list[list[Event]] = []
        self.observed_delays: dict[int, int] = {}
        self._reset()

    def _reset(self) -> None:
        self._pipeline: Any = None
        self._links: Any = None
        self._output: capture.Output | None = None
        self._options = DelayedOptions()
        self._grads: list[Tensor | None] = []
        self._others: dict[int, str] = {}  # parameters of the other stages
        self._clipping: Any = None
        self._randomness: LoaderRandomness | None = None
        self._metrics: WholeMetrics | None = None
        self._drawn: Any = None

    # What it is

    @property
    def is_delayed(self) -> bool:
        """Whether updates use delayed gradients."""
        return self.delays and UPDATES_PER_STAGE[self.schedule] > 0

    @property
    def stages(self) -> int:
        return self.world_size

    @property
    def stage(self) -> int:
        """The stage of this process."""
        return rank_of(self.global_rank, self.stages)

    @property
    def micro_batches(self) -> int:
        return self._micro_batches or self.stages

    @property
    def _is_last(self) -> bool:
        return self.stage == self.stages - 1

    # Setting up

    @override
    def setup(self, trainer: pl.Trainer) -> None:
        self._reset()
        # Every process reads all of the data, in the order that the user gave it.
        trainer._accelerator_connector.use_distributed_sampler = False
        # (Before the optimizers, whose schedule may ask how many steps the loaders give.)
        if self.stages > 1:
            states = self.broadcast(generators(self.root_device))
            self._randomness = LoaderRandomness(states, self.root_device)
            self._drawn = capture.StepRandomness(states, self.root_device)
        super().setup(trainer)
        assert self.lightning_module is not None
        self._metrics = WholeMetrics(self.lightning_module)

    @override
    def configure_ddp(self) -> None:
        """In place of a gradient reducer: the chain, the links, and the weights of rank 0."""
        module = self.lightning_module
        assert module is not None
        refuse.refuse(module.trainer, self)
        self._name, self._layers = find.find_chain(module, self.chain)
        find.check(module, self._name, self._layers, self.stages, self.cuts)
        self._beside = find.beside(module, self._layers)
        refuse.warn(module.trainer, self, self._layers)
        collect.share_from_zero(module, self.root_device)
        self._links = Links(self.stages, self.root_device, self._timeout)
        attached.attach(module.trainer, self, self._randomness)
        if not self.is_delayed:
            self._clipping = clipping.NormOfAllStages(self.precision_plugin, self.root_device)

    @override
    def setup_optimizers(self, trainer: pl.Trainer) -> None:
        super().setup_optimizers(trainer)
        refuse.refuse_optimizers(self.optimizers)

    def _begin(self, x: Tensor | None) -> None:
        """At the first mini-batch, whose input the first stage knows: the plan, for all."""
        if self._pipeline is not None:
            return
        first = rank_of(0, self.stages)
        plan = None if x is None else make_plan(self._layers, x, self)
        self.plan = plan = self.broadcast(plan, first)
        assert plan is not None
        find.check_cuts(self._layers, plan.cuts, self.stages)
        rank_zero_info(plan.summary(self.schedule, self.versions))
        self._others = find.parameters_outside(self._layers, self._name, plan.spans[self.stage])
        self._trace = Trace(self.trace is not None)
        self._pipeline = pipeline_of(self, plan, self._layers, self._links, self._trace)

    @override
    def process_dataloader(self, dataloader: object) -> object:
        refuse.refuse_sampler(dataloader)
        loader = super().process_dataloader(dataloader)
        return loader if self._randomness is None else SameBatches(loader, self._randomness)

    @override
    def batch_to_device(self, *args: Any, **kwargs: Any) -> Any:
        """As the base method, whose hooks draw the same in every process."""
        with nullcontext() if self._randomness is None else self._randomness.used():
            return super().batch_to_device(*args, **kwargs)

    # A step

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        step = partial(super().training_step, *args, **kwargs)
        find.check_frozen(self._name, self._beside)
        if self.stages == 1:
            return self._step_alone(step)
        check_alike(self._links, self.stage, self.stages, self.root_device, (args, kwargs))
        step = self._drawn.around(step)
        x = capture.input_of(self._layers, self._name, step) if self.stage == 0 else None
        self._begin(x)
        if self.schedule == "zero_bubble":
            return self._step_without_bubbles(x, *args, **kwargs)
        with self.precision_plugin.train_step_context():
            y = self._pipeline.forward(x)
        if not self._is_last:
            return self._unknown_loss()
        inputs = self._pipeline.stage.inputs()
        self._output = capture.Output(self._name, y.requires_grad_(), self._drawn.leave, inputs)
        return self._output.loss_of(step, self._layers, self._others)

    def _unknown_loss(self) -> Tensor:
        """What the other processes have for the loss, which rank 0 knows."""
        return torch.full((), torch.nan, device=self.root_device, requires_grad=True)

    def _step_without_bubbles(self, x: Tensor | None, *args: Any, **kwargs: Any) -> Any:
        """Forward and backward of all micro-batches; the step runs for each."""
        step, parts = super().training_step, self.micro_batches
        loss = loss_of_parts(step, (args, kwargs), parts, self._name, self._layers, self._others)
        with self.precision_plugin.train_step_context():
            value, self._grads = self._pipeline.step(x, loss if self._is_last else None)
        return self._unknown_loss() if value is None else value.requires_grad_()

    def _step_alone(self, step: Callable[[], Any]) -> Any:
        """One process: the chain runs inside the step."""

        def run(x: Tensor) -> Tensor:
            capture.refuse_parameters_before(x, self._name)
            self._begin(x)
            output.y = self._pipeline.forward(x).requires_grad_()
            output.inputs = self._pipeline.stage.inputs()
            return output(x)

        self._output = output = capture.Output(self._name, torch.empty(0))
        return output.loss_of(step, self._layers, self._others, run)

    @override
    def backward(
        self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any
    ) -> Tensor:
        """The loss's gradient in the last stage; then the tasks that are due in this one."""
        module, precision = self.lightning_module, self.precision_plugin
        assert module is not None
        closure_loss = precision.pre_backward(closure_loss, module)
        if self.schedule == "zero_bubble" and self.stages > 1:
            parts = module.trainer.accumulate_grad_batches
            grads = [None if g is None else g / parts for g in self._grads]
            add_gradients(self._pipeline.parameters, grads)
            return precision.post_backward(closure_loss, module)
        g = None
        if self._is_last:
            precision.backward(closure_loss, module, optimizer, *args, **kwargs)
            assert self._output is not None
            g = self._output.gradient()
            self._output = None
        if self.is_delayed:
            self._pipeline.backward(self._pipeline.entered - 1, g)
        else:
            self._pipeline.backward(g)
        return precision.post_backward(closure_loss, module)

    @override
    def optimizer_step(
        self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        """The update that is due: that of this mini-batch, or of the one d before it."""
        if not self.is_delayed or self.stages == 1:
            return self._update(optimizer, closure, **kwargs)
        closure = refuse.asked_once(optimizer, closure)
        entered, drained = 0, 0
        if self._pipeline is not None:
            entered, drained = self._pipeline.entered, self._pipeline.drained
        self._options.enter(entered, optimizer)
        due = entered - stage_delays(self.schedule, self.stages)[self.stage]
        if due < drained:
            return closure()
        with self._options.used(due, optimizer):
            return self._update(optimizer, closure, **kwargs)

    def _update(self, optimizer: Optimizer, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """A step of the optimizer, between the versions of the weights."""

        def gradient() -> Any:
            result = closure()
            self._pipeline.stage.before_update()
            return result

        if self.schedule == "zero_bubble" and self.stages > 1:
            return super().optimizer_step(optimizer, closure, self.lightning_module, **kwargs)
        result = super().optimizer_step(optimizer, gradient, self.lightning_module, **kwargs)
        self._pipeline.stage.after_update()
        return result

    # Between the steps

    def drain(self) -> None:
        """Brings every mini-batch that entered to its updates in this stage."""
        if not self.is_delayed or self._pipeline is None:
            return
        with torch.inference_mode(False), torch.enable_grad():
            for turn in self._pipeline.turns_to_drain():
                self._drain_turn(turn)
        self._pipeline.drained = self._pipeline.entered
        self._links.flush()

    def _drain_turn(self, turn: int) -> None:
        """A turn without a forward."""
        due = self._pipeline.due(turn)
        if due is None:
            self._pipeline.backward(turn)
            return
        optimizer = self.optimizers[0]

        def gradient() -> None:
            optimizer.zero_grad()
            self._pipeline.backward(turn)

        with self._options.used(due, optimizer):
            self._update(optimizer, gradient)

    @override
    def barrier(self, *args: Any, **kwargs: Any) -> None:
        """As the base method, once the pipeline has drained: a lent task is due in a later turn."""
        self.drain()
        super().barrier(*args, **kwargs)

    def share(self) -> None:
        """Drains, and gives every process the weights of all stages, and averages of them."""
        self.drain()
        if self._pipeline is None or self.plan is None or self.stages == 1:
            return
        module: Any = self.lightning_module
        averages = collect.averages(module.trainer.callbacks)
        with torch.inference_mode(False):
            for model in [module, *(average.module for average in averages)]:
                chain = model.get_submodule(self._name)
                collect.share_weights(chain, self.plan.spans, self.root_device)

    @property
    @override
    def restore_checkpoint_after_setup(self) -> bool:
        """True: before it, weights of 64 bits would be read into a model of 32."""
        return True

    @override
    def load_model_state_dict(self, checkpoint: Any, strict: bool = True) -> None:
        """As the base method, once nothing is under way (after a search for a learning rate)."""
        self.drain()
        super().load_model_state_dict(checkpoint, strict)

    @override
    def lightning_module_state_dict(self) -> dict[str, Any]:
        self.share()
        return super().lightning_module_state_dict()

    @override
    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """The state of all stages' parameters, on rank 0."""
        optimizer = getattr(optimizer, "_optimizer", optimizer)
        if self.plan is None or self.stages == 1 or not dist.is_initialized():
            return super().optimizer_state(optimizer)
        own = {id(p) for m in self.plan.spans[self.stage] for p in self._layers[m].parameters()}
        return collect.whole_state(optimizer, own)

    def finish(self) -> None:
        """Weights of all stages in every process, and the trace."""
        self.share()
        if self._pipeline is not None and self.trace is not None:
            own, rank = self._trace.events, self.global_rank
            self.events = collect.written_trace(self.trace, own, rank, self.stages)
            for events in self.events:
                self.observed_delays |= observed_delays(events)

    @override
    def teardown(self) -> None:
        if self.lightning_module is not None:
            attached.detach(self.lightning_module.trainer)
        if self._links is not None:
            self._links.close()
        if self._metrics is not None:
            self._metrics.restore()
        if self._clipping is not None:
            self._clipping.restore()
        self._reset()
        super().teardown()

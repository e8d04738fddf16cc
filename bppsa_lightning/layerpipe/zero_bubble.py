"""One process of the zero-bubble schedule, driven by torch.distributed.pipelining.

The schedule is ZB-H1 of Qi et al. (arXiv:2401.10241): a backward is two tasks, and the weights'
gradients fill the time in which a stage would wait. torch's own class for it numbers ranks as
stages; here the order is written down, and torch's runtime adds the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _Action, _PipelineScheduleRuntime
from torch.utils._pytree import tree_map

from bppsa_lightning.layerpipe import capture
from bppsa_lightning.layerpipe.links import rank_of
from bppsa_lightning.layerpipe.stage import changes_its_input


def order(stage: int, stages: int, micro_batches: int) -> list[str]:
    """The tasks of a stage, in torch's notation: "1F0" is the forward of stage 1, micro-batch 0.

    As many forwards as there are stages from here to the last, then a backward to the input ("I")
    and a forward in turns; the weights' gradients ("W") of a micro-batch come `stage` backwards
    later, so that no stage holds more micro-batches than under 1F1B.
    """
    ahead = min(micro_batches, stages - stage)
    tasks = [f"{stage}F{j}" for j in range(ahead)]
    for j in range(micro_batches):
        tasks.append(f"{stage}I{j}")
        if j >= stage:
            tasks.append(f"{stage}W{j - stage}")
        if ahead + j < micro_batches:
            tasks.append(f"{stage}F{ahead + j}")
    return tasks + [f"{stage}W{j}" for j in range(max(0, micro_batches - stage), micro_batches)]


class _Layers(nn.Sequential):
    """Layers as torch's runtime wants them.

    It gives them a leaf, which they must not change. It sends what they return, and the gradient of
    their input, as they lie in memory: in one piece. And behind a stage with nothing to train it
    would find no gradient of any weight, as the input of the next stage has none.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            x = _InOnePiece.apply(x)  # type: ignore[no-untyped-call]
        y: Tensor = super().forward(x.clone() if changes_its_input(self[0]) else x)
        if torch.is_grad_enabled() and y.is_floating_point() and not y.requires_grad:
            y = y.detach().requires_grad_()
        return y.contiguous()


class _InOnePiece(torch.autograd.Function):
    """A tensor whose gradient is contiguous."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.contiguous()


class ZeroBubblePipeline:
    """The tasks of one stage.

    Args:
        layers: the stage's.
        index: which stage.
        stages: how many there are.
        micro_batches: into how many equal parts each mini-batch is divided.
        device: of this process.
    """

    def __init__(
        self, layers: list[nn.Module], index: int, stages: int, micro_batches: int,
        device: torch.device,
    ) -> None:  # fmt: skip
        self.index, self.stages, self.micro_batches = index, stages, micro_batches
        self._parameters = [p for layer in layers for p in layer.parameters()]
        stage = PipelineStage(_Layers(*layers), index, stages, device)
        self._loss: Callable[[Tensor, int], Tensor] | None = None
        self._schedule = _PipelineScheduleRuntime([stage], micro_batches, loss_fn=self._loss_of)
        actions = {
            rank_of(s, stages): [_Action.from_str(a) for a in order(s, stages, micro_batches)]
            for s in range(stages)
        }
        self._schedule.pipeline_order = actions
        self._schedule._prepare_schedule_with_comms(actions)
        self._rows: int | None = None

    def _loss_of(self, y: Tensor, part: Tensor) -> Tensor:
        assert self._loss is not None
        return self._loss(y, int(part))

    def step(
        self, x: Tensor | None, loss: Callable[[Tensor, int], Tensor] | None
    ) -> tuple[Tensor | None, list[Tensor | None]]:
        """All tasks of a mini-batch.

        Args:
            x: the input of the chain, in the first stage.
            loss: of the output and the number of a micro-batch, in the last stage.

        Returns:
            The mean of the losses, in the last stage; and the gradients of the stage's parameters
            (`parameters`), which are divided by the number of micro-batches. `.grad` is as before.

        Raises:
            ValueError: the mini-batch can't be divided, or is of another size than the first.
        """
        losses: list[Tensor] = []
        self._loss = loss
        arguments = () if x is None else (self._divisible(x),)
        with without_gradients(self._parameters) as grads:
            if loss is None:
                self._schedule.step(*arguments)
            else:
                target = torch.arange(self.micro_batches, device="cpu")
                self._schedule.step(*arguments, target=target, losses=losses)
            grads += [p.grad for p in self._parameters]
        self._loss = None
        return (torch.stack(losses).mean().detach() if losses else None), grads

    def _divisible(self, x: Tensor) -> Tensor:
        rows = len(x)
        if rows % self.micro_batches or rows != (self._rows or rows):
            wanted = f"a multiple of micro_batches={self.micro_batches}"
            wanted = f"{self._rows}, as in the first mini-batch" if self._rows else wanted
            raise ValueError(
                f"batch: found {rows} samples, wanted {wanted}: zero_bubble divides every "
                "mini-batch alike. Make the loader drop a last, smaller one (drop_last=True), or "
                'use schedule="gpipe"'
            )
        self._rows = rows
        return x

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The stage's, in the order of the gradients."""
        return self._parameters


@contextmanager
def without_gradients(parameters: list[nn.Parameter]) -> Iterator[list[Tensor | None]]:
    """Inside, no parameter has a `.grad` to begin with; outside, each has its own again."""
    before = [p.grad for p in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield []
    finally:
        for parameter, grad in zip(parameters, before, strict=True):
            parameter.grad = grad


def part_of(batch: Any, part: int, parts: int, rows: int) -> Any:
    """A micro-batch of a batch: the tensors of `rows` samples in it are divided, all else is whole.

    Args:
        batch: of a loader: tensors in tuples, lists, dicts, ….
        part: which.
        parts: how many there are.
        rows: samples in the batch.
    """

    def divided(item: Any) -> Any:
        if isinstance(item, Tensor) and item.ndim and len(item) == rows:
            return item.chunk(parts)[part]
        return item

    return tree_map(divided, batch)


def loss_of_parts(
    step: Callable[..., Any], batch: tuple[tuple[Any, ...], dict[str, Any]], parts: int, name: str,
    chain: nn.Sequential, others: Mapping[int, str],
) -> Callable[[Tensor, int], Tensor]:  # fmt: skip
    """The loss of a micro-batch, as a function of the chain's output and of its number.

    Args:
        step: the user's, which runs for each micro-batch.
        batch: its positional and its named arguments, of the whole mini-batch.
        parts: how many micro-batches there are.
        name: of the chain.
        chain: which gives the output when the step calls it.
        others: as of `capture.Output.loss_of`.
    """

    def loss(y: Tensor, part: int) -> Tensor:
        output = capture.Output(name, y)
        args, kwargs = part_of(batch, part, parts, len(y) * parts)
        found = output.loss_of(partial(step, *args, **kwargs), chain, others)
        tensor: Any = found["loss"] if isinstance(found, Mapping) else found
        return tensor  # type: ignore[no-any-return]

    return loss

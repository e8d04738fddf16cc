"""Between what every rank has and what each rank has its span of.

Where all ranks hold a tensor and compute the same loss of it, its gradient on each of them is the
whole gradient. So what is taken from the whole gives its gradient to the whole, once.

T steps in all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bppsa_lightning.ranks.exchange import Exchange
from bppsa_lightning.ranks.spans import Spans


def span_of(exchange: Exchange, spans: Spans, x: Tensor) -> Tensor:
    """This rank's steps of x (T, ...), which all ranks hold."""
    return _SpanOf.apply(x, exchange, spans)


def whole_of(exchange: Exchange, spans: Spans, y: Tensor) -> Tensor:
    """(T, ...), for all ranks, of each one's steps."""
    return _WholeOf.apply(y, exchange, spans)


def summed(exchange: Exchange, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Tensors that all ranks hold, whose gradients are the sums of what each rank finds."""
    return _Summed.apply(exchange, *tensors)


class _SpanOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange, spans: Spans) -> Tensor:
        ctx.exchange, ctx.spans = exchange, spans
        return x[spans.of(exchange.rank)].contiguous()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.exchange.whole(grad, ctx.spans.lengths), None, None


class _WholeOf(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, exchange: Exchange, spans: Spans) -> Tensor:
        ctx.own = spans.of(exchange.rank)
        return exchange.whole(y, spans.lengths)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad[ctx.own], None, None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: Exchange, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.exchange = exchange
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        wanted = [i for i, w in enumerate(ctx.needs_input_grad[1:]) if w]
        found: list[Tensor | None] = [None] * len(gradients)
        sums = ctx.exchange.sum([gradients[i] for i in wanted])
        for i, total in zip(wanted, sums, strict=True):
            found[i] = total
        return None, *found

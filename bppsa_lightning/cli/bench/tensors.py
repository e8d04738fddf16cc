"""The tensors in what a module takes and gives: nested, packed, or bare."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


def within(value: Any) -> Iterator[Tensor]:
    """All tensors, in order; of packed samples the data."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, PackedSequence):
        yield value.data
    elif isinstance(value, dict):
        for part in value.values():
            yield from within(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from within(part)
    elif hasattr(value, "__dataclass_fields__"):
        yield from within(vars(value))


def mapped(value: Any, of: Callable[[Tensor], Tensor]) -> Any:
    """The same with other tensors."""
    if isinstance(value, Tensor):
        return of(value)
    if isinstance(value, PackedSequence):
        return value._replace(data=of(value.data))
    if isinstance(value, dict):
        return {key: mapped(part, of) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_replace"):
        return type(value)(*(mapped(part, of) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(mapped(part, of) for part in value)
    return value


def fresh(value: Any) -> Any:
    """Copies that are leaves, and require gradients where the originals do."""
    return mapped(value, lambda t: t.detach().clone().requires_grad_(t.requires_grad))


def with_gradients(value: Any) -> list[Tensor]:
    """Those that a backward can start from."""
    return [tensor for tensor in within(value) if tensor.requires_grad]

"""A dimension that torch.func.vmap maps, as part of another dimension, and back."""

from torch import Tensor


def fold(t: Tensor, mapped: int | None, V: int, batch: int) -> Tensor:
    """A tensor whose mapped dimension, of V, has become part of its dimension `batch`.

    Args:
        mapped: which one is mapped; None if none is: then all of V share the tensor.
        batch: counted without the mapped one, which comes before it: B of (…, B, …) to V * B.
    """
    t = t.unsqueeze(batch) if mapped is None else t.movedim(mapped, batch)
    shape = list(t.shape)
    shape[batch] = V
    return t.expand(shape).flatten(batch, batch + 1)


def unfold(t: Tensor, V: int, batch: int) -> Tensor:
    """The mapped dimension in front of `batch` again: V * B to V, B."""
    return t.unflatten(batch, (V, t.shape[batch] // max(V, 1)))

"""The weights of one direction of one layer in one piece of memory, as cuDNN takes them.

Others it puts together in every call, and warns of that. A module of one layer holds its weights
so; those of a part of a larger one, and of another dtype, are copied here.
"""

import torch
from torch import Tensor
from torch.backends.cudnn import rnn

from bppsa_lightning._cells import CELLS


@torch.no_grad()
def in_one_piece(cell: str, weights: list[Tensor | None]) -> list[Tensor | None]:
    """w_ih, w_hh, and b_ih, b_hh, w_hr or None, detached: copies where cuDNN would copy them."""
    given = [w for w in weights if w is not None]
    if not torch.backends.cudnn.is_acceptable(given[0]) or _are_in_one_piece(given):
        return weights
    copies = [w.clone() for w in given]
    H, projection = given[0].shape[0] // CELLS[cell].gates, weights[4]
    with torch.cuda.device_of(given[0]):
        torch._cudnn_rnn_flatten_weight(
            copies, len(copies), given[0].shape[1], rnn.get_cudnn_mode(cell.upper()), H,
            0 if projection is None else projection.shape[0], 1, False, False,
        )  # fmt: skip
    each = iter(copies)
    return [None if w is None else next(each) for w in weights]


def _are_in_one_piece(weights: list[Tensor]) -> bool:
    """Whether they are all that there is in their memory, which is a module's own piece."""
    memory = weights[0].untyped_storage()
    if any(w.untyped_storage().data_ptr() != memory.data_ptr() for w in weights):
        return False
    return sum(w.nbytes for w in weights) == memory.nbytes()

"""random_mask: which units keep their state in a step of zoneout."""

import torch
from torch import Tensor

from bppsa_lightning.ops._recorded import is_plain


def random_mask(p: float, size: tuple[int, ...], device: torch.device) -> Tensor:
    """A mask, true with probability p, from PyTorch's generator of the device.

    On a CPU one number of it is the seed of Philox4x32-10 (Salmon et al., SC 2011), of which all
    threads draw: the same mask for the same seed, on any number of threads. Elsewhere, under a
    transform of torch.func, and where torch.jit.trace or torch.onnx.export records, all numbers are
    `torch.rand`'s.

    Args:
        p: in [0, 1), to within 2**-32.

    Returns:
        bool, of this size.
    """
    if device.type != "cpu" or is_plain():
        return torch.rand(size, dtype=torch.float32, device=device) < p
    seed = torch.randint(2**63 - 1, (), dtype=torch.int64, device=device)
    mask: Tensor = torch.ops.bppsa.random_mask(seed, size, p)
    return mask


@torch.library.register_fake("bppsa::random_mask")
def _(seed: Tensor, size: list[int], p: float) -> Tensor:
    return seed.new_empty(size, dtype=torch.bool)

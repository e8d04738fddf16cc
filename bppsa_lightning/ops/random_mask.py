"""random_mask: which units keep their state in a step of zoneout."""

import torch
from torch import Tensor

from bppsa_lightning.ops._recorded import is_plain


def random_mask(p: float, size: tuple[int, ...], device: torch.device) -> Tensor:
    """A mask, true with probability p, from PyTorch's generator of the device.

    On a CPU that generator gives one number, which seeds Philox4x32-10 (Salmon et al., SC 2011).
    All threads draw from it, and a seed gives the same mask on any number of threads. `torch.rand`
    draws the mask on other devices, under a transform of torch.func, and where torch.jit.trace or
    torch.onnx.export records.

    Args:
        p: in [0, 1), taken to within 2**-32.
        size: of the mask. device: where it will lie.

    Returns:
        bool, of this size, without gradient.

    Raises:
        RuntimeError: on a CPU, p is not in [0, 1).
    """
    if device.type != "cpu" or is_plain():
        return torch.rand(size, dtype=torch.float32, device=device) < p
    seed = torch.randint(2**63 - 1, (), dtype=torch.int64, device=device)
    mask: Tensor = torch.ops.bppsa.random_mask(seed, size, p)
    return mask


@torch.library.register_fake("bppsa::random_mask")
def _(seed: Tensor, size: list[int], p: float) -> Tensor:
    return seed.new_empty(size, dtype=torch.bool)

"""nn.BatchNorm2d in training between sparse layers: their layout, PyTorch's statistics.

B samples, C channels, H and W rows and columns.
"""

import torch
from torch import Tensor, nn

from bppsa_lightning._context import is_tracing, unsupported_transform
from bppsa_lightning.ops._checks import FLOATS
from bppsa_lightning.ops.norm import batch_norm


def normalized(module: nn.BatchNorm2d, x: Tensor, relu: bool = False) -> Tensor | None:
    """What the module returns for x (B, C, H, W), samples innermost, in training.

    Running statistics and the count of batches become what PyTorch makes of them.

    Args:
        relu: whether a ReLU follows in the same pass.

    Returns:
        (B, C, H, W), samples innermost; None where the call is PyTorch's: in evaluation, and where
        the operator does not take what it would need.
    """
    if not _supported(module, x):
        return None
    B, C, H, W = x.shape
    flat = x.permute(1, 2, 3, 0).reshape(C, -1)
    y, mean, var = batch_norm(flat, module.weight, module.bias, module.eps, relu)
    if module.training and module.track_running_stats:
        _track(module, mean.detach(), var.detach(), flat.shape[1])
    return y.view(C, H, W, B).permute(3, 0, 1, 2)


@torch.no_grad()
def _track(module: nn.BatchNorm2d, mean: Tensor, var: Tensor, n: int) -> None:
    share = module.momentum
    if module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
        if share is None:
            share = 1.0 / float(module.num_batches_tracked)
    share = share or 0.0
    for running, found in ((module.running_mean, mean), (module.running_var, var * (n / (n - 1)))):
        if running is not None:
            running.mul_(1 - share).add_(found, alpha=share)


def _supported(module: nn.BatchNorm2d, x: Tensor) -> bool:
    by_batch = module.training or (module.running_mean is None and module.running_var is None)
    tensors = (module.weight, module.bias, module.running_mean, module.running_var)
    return (
        by_batch
        and x.dtype in FLOATS
        and x.device.type == "cpu"
        and x.shape[1] == module.num_features
        and x.shape[0] * x.shape[2] * x.shape[3] > 1  # PyTorch refuses to normalise one number
        and all(t is None or (t.dtype, t.device) == (x.dtype, x.device) for t in tensors)
        and not is_tracing()
        and unsupported_transform() is None
    )

"""How the parameters of normalised cells begin."""

from torch import nn


def gains_and_shifts(module: nn.Module) -> None:
    """Sets all gains (norm_…) to 1, all shifts (bias_…) to 0."""
    for name, parameter in module.named_parameters():
        if name.startswith("norm_"):
            nn.init.ones_(parameter)
        elif name.startswith("bias_"):
            nn.init.zeros_(parameter)

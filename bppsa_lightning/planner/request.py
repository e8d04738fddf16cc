"""What the planner is asked: one chain's sizes and place."""

from typing import NamedTuple

import torch

DENSE, DIAGONAL = "dense", "diagonal"
TRAINING, INFERENCE = MODES = "training", "inference"


class Request(NamedTuple):
    """A chain whose backward is to be planned. Made for every call: nothing is checked here.

    Attributes:
        cell: a name of `_cells.CELLS`; `DENSE` or `DIAGONAL` for a chain of given Jacobians.
        T: steps. B: samples. H: hidden size, the size of a state.
        device: where it runs.
        algorithm: one of `ALGORITHMS`; anything but "auto" is obeyed.
        levels: up-sweep levels; implies "blelloch". None is the full tree.
        I: input size. P: of an LSTM with a projection, else 0.
        layers, directions: of the module. `I` is its first layer's.
        dtype: in which PyTorch would compute: under autocast, autocast's.
        total_steps: of samples of different lengths, all their steps; None if they are T each.
        padded_steps: the steps, one after the other, of all padded tensors that they are spread
            over (on the CPU nobody reads it).
        bfloat16: whether PyTorch would compute in bfloat16, on a CPU that multiplies it.
        mode: one of `MODES`: of "inference" nothing is kept for a backward.
    """

    cell: str
    T: int
    B: int
    H: int
    device: torch.device
    algorithm: str = "auto"
    levels: int | None = None
    I: int = 1
    P: int = 0
    layers: int = 1
    directions: int = 1
    dtype: torch.dtype = torch.float32
    total_steps: int | None = None
    padded_steps: int | None = None
    bfloat16: bool = False
    mode: str = TRAINING

    @property
    def state_size(self) -> int:
        """The numbers of a state that the scan carries: on CUDA H, which are projected there."""
        return self.H if self.device.type == "cuda" else self.P or self.H

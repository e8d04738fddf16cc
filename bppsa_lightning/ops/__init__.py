"""The only door to the operators in csrc: checks, fake kernels, autograd formulas."""

import torch

from bppsa_lightning._library import HAS_CUDA_KERNELS, NO_CUDA_KERNELS, cpu_kernels
from bppsa_lightning.ops import jacobians as _jacobians  # noqa: F401  (registers)
from bppsa_lightning.ops._recurrent_autograd import Ragged, request_of, run_forward
from bppsa_lightning.ops._surviving import surviving
from bppsa_lightning.ops.diagonal import diagonal_scan, linear_recurrence
from bppsa_lightning.ops.dropout import dropout
from bppsa_lightning.ops.independent import indrnn
from bppsa_lightning.ops.linear import linear
from bppsa_lightning.ops.log import ScanLog, scan_log
from bppsa_lightning.ops.norm import batch_norm
from bppsa_lightning.ops.ragged import side_by_side
from bppsa_lightning.ops.random_mask import random_mask
from bppsa_lightning.ops.recurrent import (
    Operands,
    gru,
    ligru,
    lstm,
    peephole_lstm,
    rnn,
    run_layer,
)
from bppsa_lightning.ops.recurrent_into import (
    kept_c,
    recurrent_backward_into,
    recurrent_into,
    recurrent_room,
)
from bppsa_lightning.ops.recurrent_jacobian import bytes_of_walk, recurrent_jacobian, run_backward
from bppsa_lightning.ops.recurrent_windows import recurrent_windows, recurrent_windows_backward
from bppsa_lightning.ops.regularised import Regularised, regularised, regularised_holds
from bppsa_lightning.ops.sampled import run_sampled_layer
from bppsa_lightning.ops.scan import reverse_scan
from bppsa_lightning.ops.sparse import run_sparse_layer, sparse_conv2d, sparse_linear
from bppsa_lightning.ops.sparse_pattern import SparsePattern
from bppsa_lightning.ops.states_met import states_met, states_met_is_for

__all__ = [
    "HAS_CUDA_KERNELS",
    "Operands",
    "Ragged",
    "Regularised",
    "ScanLog",
    "SparsePattern",
    "batch_norm",
    "bytes_of_walk",
    "cpu_capability",
    "diagonal_scan",
    "dropout",
    "gru",
    "indrnn",
    "ligru",
    "linear",
    "linear_recurrence",
    "kept_c",
    "lstm",
    "peephole_lstm",
    "random_mask",
    "recurrent_backward_into",
    "recurrent_into",
    "recurrent_jacobian",
    "recurrent_room",
    "recurrent_windows",
    "recurrent_windows_backward",
    "regularised",
    "regularised_holds",
    "request_of",
    "reverse_scan",
    "rnn",
    "run_backward",
    "run_forward",
    "run_layer",
    "run_sampled_layer",
    "run_sparse_layer",
    "scan_log",
    "side_by_side",
    "sparse_conv2d",
    "sparse_linear",
    "states_met",
    "states_met_is_for",
    "surviving",
    "untrusted_products",
]


def cpu_capability() -> str:
    """Instruction set of the CPU kernels in use: "x86_64_v2", "x86_64_v3", "x86_64_v4", "aarch64",
    "generic".

    Chosen at the first use of a kernel; the environment variable ``BPPSA_CPU_CAPABILITY``
    (``x86-64-v2``, ``x86-64-v3``) lowers it.
    """
    return cpu_kernels()


def untrusted_products(device: torch.device | str | int = "cuda") -> int:
    """How often a CUDA device walked around a product of transposed Jacobians, since the import.

    A product that might overflow, or has lost precision, is not used: the steps that it stands for
    are walked instead, which costs time and no accuracy. Counted once for each thread that takes
    part, so that only 0 and rising mean something. Waits for the device.

    Raises:
        ValueError: `device` is no CUDA device.
        RuntimeError: the library was built without its CUDA kernels.
    """
    if isinstance(device, int):
        device = torch.device("cuda", device)
    if torch.device(device).type != "cuda":
        raise ValueError(f"device: found {device}, wanted a CUDA device")
    if not HAS_CUDA_KERNELS:
        raise RuntimeError(NO_CUDA_KERNELS)
    return int(torch.ops.bppsa.untrusted_products(torch.empty(0, device=device)))

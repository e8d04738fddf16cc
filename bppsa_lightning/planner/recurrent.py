"""Recurrent layers: the plan of their backward, what their forward keeps, and when to hand over.

T steps, B batch, I input, H state.
"""

from functools import lru_cache

import torch

from bppsa_lightning._library import HAS_CUDA_KERNELS
from bppsa_lightning.planner import dense, gpu
from bppsa_lightning.planner.plan import Plan, check_algorithm, workers

# PyTorch's own kernels do not take longer sequences on CUDA.
_MOST_STEPS_OF_CUDNN = 65535

# Bytes of shared memory a block can have on any GPU from compute capability 7.5 on.
_SHARED_MEMORY = 64 * 1024

# Samples of different lengths: up to so many steps PyTorch's own kernel was measured to be faster
# (experiments/benchmark_packed.py), and where more than half of the padded steps are padding.
_SHORT_AND_SPREAD = {"rnn_tanh": (13, 13), "rnn_relu": (13, 13), "gru": (3, 8), "lstm": (4, 8)}


def choose_recurrent(
    cell: str, T: int, B: int, H: int, device: torch.device, algorithm: str = "auto"
) -> Plan:
    """The plan for the backward of one direction of one recurrent layer.

    Args:
        cell: "rnn_tanh", "rnn_relu", "gru" or "lstm".
        T: steps. B: samples. H: size of the state.
        device: where it runs.
        algorithm: one of `ALGORITHMS`; anything but "auto" is obeyed.

    Raises:
        TypeError, ValueError: `algorithm` is none of those.
    """
    if device.type != "cuda":
        return dense.choose(T, B, H, device, algorithm)
    check_algorithm(algorithm, None)
    return _choose_on(_gpu(device), cell, int(T), int(B), int(H), algorithm)


@lru_cache(maxsize=4096)
def _choose_on(on: tuple[int, bool], cell: str, T: int, B: int, H: int, algorithm: str) -> Plan:
    return gpu.choose(gpu.Layer(cell, T, B, H, 1, *on), algorithm)


def keep(cell: str, T: int, B: int, H: int, device: torch.device) -> int:
    """How much the forward of a recurrent layer keeps for its backward.

    Computing the gates again costs time and saves memory: worth it where they would take much, and
    the cell is small. (A GPU has more of its own, and no cache to stay in: there from a GiB on.)

    Returns:
        2: all gates (4 T B H numbers of a GRU, 5 of an LSTM), or 1: only what they can be computed
        from again (nothing beside the output, an LSTM's T B H cells).
    """
    numbers = {"gru": 4, "lstm": 5}.get(cell, 0) * T * B * H
    if device.type == "cuda":
        return 1 if numbers > 1 << 28 else 2
    return 1 if numbers > 1 << 24 and H <= 64 else 2


def hand_over(
    cell: str,
    T: int,
    B: int,
    H: int,
    device: torch.device,
    I: int = 1,
    layers: int = 1,
    directions: int = 1,
    dtype: torch.dtype = torch.float32,
    projected: int = 0,
    spread: tuple[int, int] | None = None,
) -> str | None:
    """Why a recurrent module's call is better left to PyTorch's own kernels, or None.

    Args:
        cell: "rnn_tanh", "rnn_relu", "gru" or "lstm".
        T: steps. B: samples. H: hidden size. I: input size.
        device: where it runs.
        layers, directions: of the module.
        dtype: in which PyTorch would compute: under autocast, autocast's.
        projected: P of an LSTM with a projection, else 0.
        spread: of samples of different lengths, N, the number of all their steps, and the steps of
            all padded tensors that they are spread over (on the CPU nobody asks for these).
    """
    if device.type == "cuda":
        return _why_cudnn(cell, T, B, H, device, I, layers, directions, dtype, projected, spread)
    N = T * B if spread is None else spread[0]
    if _stock_is_faster(cell, T, B, H, N):
        lengths = "" if N == T * B else " and different lengths"
        return f"at T={T}, B={B}, H={H}{lengths} PyTorch's own kernel was measured to be faster"
    return None


def _why_cudnn(
    cell: str,
    T: int,
    B: int,
    H: int,
    device: torch.device,
    I: int,
    layers: int,
    directions: int,
    dtype: torch.dtype,
    projected: int,
    spread: tuple[int, int] | None,
) -> str | None:
    most = _most_units(cell, dtype)
    if most < H:
        return f"H={H}: on CUDA the recurrent kernels take at most {most} units of this cell"
    cudnn = torch.backends.cudnn
    if T > _MOST_STEPS_OF_CUDNN:
        return None  # PyTorch fails
    if not (cudnn.enabled and cudnn.is_available()):  # it launches the kernels of each step apart
        layer = gpu.Layer(cell, T, B, H, I, *_gpu(device), projected=projected)
        return gpu.not_resident(layer)
    if dtype != torch.float32 and H > gpu.MOST_COMPOSED:
        # A small state's steps wait for each other in any dtype; a large one's are arithmetic.
        name, least = str(dtype).removeprefix("torch."), gpu.MOST_COMPOSED
        return f"H={H} in {name}: above H={least} only float32 was measured beside cuDNN"
    return _why_cudnn_on(_gpu(device), cell, T, B, H, I, layers, directions, projected, spread)


def _most_units(cell: str, dtype: torch.dtype) -> int:
    """Of which two vectors of all gates fit into the shared memory of a block on any GPU."""
    gates = {"gru": 3, "lstm": 4}.get(cell, 1)
    return min(4096, _SHARED_MEMORY // (2 * gates * (8 if dtype == torch.float64 else 4)))


@lru_cache(maxsize=4096)
def _why_cudnn_on(
    on: tuple[int, bool],
    cell: str,
    T: int,
    B: int,
    H: int,
    I: int,
    layers: int,
    directions: int,
    projected: int,
    spread: tuple[int, int] | None,
) -> str | None:
    layer = gpu.Layer(cell, T, B, H, I, *on, projected=projected)
    return gpu.hand_over(layer, layers, directions, spread)


@lru_cache(maxsize=64)
def _gpu(device: torch.device) -> tuple[int, bool]:
    """Its multiprocessors, and whether blocks can share a cluster, and are built to.

    Their kernels are compiled for the least architecture that has clusters (csrc/cuda/cuda.cmake).
    """
    major, minor = torch.cuda.get_device_capability(device)
    built = [a for a in recurrent_architectures() if a >= 90]
    return workers(device), bool(built) and 10 * major + minor >= built[0]


def recurrent_architectures() -> list[int]:
    """The compute capabilities that the recurrent CUDA kernels were built for, times ten."""
    if not HAS_CUDA_KERNELS:
        return []
    return sorted(map(int, torch.ops.bppsa.recurrent_cuda_architectures().split(",")))


def _stock_is_faster(cell: str, T: int, B: int, H: int, N: int) -> bool:
    """What the grid of experiments/benchmark_recurrent.py showed, two cores, float32.

    Where a call is short, rearranging the weights takes longer than the steps do, or Python longer
    than both; and a large W_hh is read again for each step of each group of samples. To spread N
    steps of samples of different lengths over T * B takes longer still.
    """
    if N != T * B:
        short = _SHORT_AND_SPREAD[cell][2 * N < T * B]
        if short >= T:
            return True
    if cell == "lstm":
        short = T <= 2 or (T <= 10 and B <= 128)
        if H > 384:
            return short or B < 16 or (T < 500 and B < 32)
        if H > 192:
            return short or B == 1 or (T < 500 and B < 4)
        if T == 1 and B > 64 and H > 24:  # no slower on two cores, but on one of an AMD EPYC
            return True
        return H > 96 and (T == 1 or (T <= 10 and B == 1))
    if cell == "gru":
        if T == 1:
            return H > 48
        return T <= 10 and (H > 384 or (H > 192 and B < 16))
    return T <= 2 or (T <= 10 and (H > 384 or (H > 192 and B < 4)))

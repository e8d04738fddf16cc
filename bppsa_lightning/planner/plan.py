"""A plan: which scan algorithm computes one chain's backward; and what may be asked for."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

ALGORITHMS = ("auto", "linear", "chunked", "blelloch")


@dataclass(frozen=True)
class Plan:
    """How one chain's backward is computed.

    Attributes:
        algorithm: "linear", "chunked" or "blelloch".
        chunk: steps in a chunk ("chunked"; 0 otherwise).
        levels: up-sweep levels ("blelloch"; 0 otherwise).
        seconds: estimated duration: of the scan; of a recurrent layer on CUDA, of the whole
            backward.
        reason: one line for people.
    """

    algorithm: str
    chunk: int = 0
    levels: int = 0
    seconds: float = 0.0
    reason: str = ""


def workers(device: torch.device) -> int:
    """What works side by side on a device: multiprocessors, or torch's threads."""
    if device.type == "cuda" and torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(device).multi_processor_count)
    return torch.get_num_threads()


def max_levels(T: int) -> int:
    """Levels of the full tree over T steps: ceil(log2(T))."""
    return (T - 1).bit_length() if T > 1 else 0


def why(plans: Sequence[Plan], costs: Sequence[float], best: int, workers: int) -> str:
    """The reason for the plan of the least cost: how the best other algorithm compares."""
    if len(plans) == 1:
        return "too short to divide"
    others = [i for i in range(len(plans)) if plans[i].algorithm != plans[best].algorithm]
    rival = min(others, key=costs.__getitem__)
    ratio = costs[rival] / costs[best] if costs[best] else 1.0
    return (
        f"{workers} workers: next best {plans[rival].algorithm} is estimated {ratio:.1f}x as long"
    )


def check_algorithm(algorithm: str, levels: int | None, T: int | None = None) -> None:
    """Raises TypeError or ValueError if the pair is not a valid request for T steps."""
    if not isinstance(algorithm, str):
        raise TypeError(f"algorithm: found {type(algorithm).__name__}, wanted str")
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm: found {algorithm!r}, wanted one of {', '.join(ALGORITHMS)}")
    if levels is None:
        return
    if not isinstance(levels, int) or isinstance(levels, bool):
        raise TypeError(f"levels: found {type(levels).__name__}, wanted int or None")
    if algorithm not in ("auto", "blelloch"):
        raise ValueError(
            f"levels: found {levels} with algorithm={algorithm!r}, wanted None "
            "(levels belong to algorithm='blelloch')"
        )
    if levels < 0 or (T is not None and levels > max_levels(T)):
        wanted = "at least 0" if T is None else f"0 to ceil(log2(T)) = {max_levels(T)} for T = {T}"
        raise ValueError(f"levels: found {levels}, wanted {wanted}")

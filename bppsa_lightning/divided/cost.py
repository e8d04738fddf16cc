"""What the ways of dividing a sequence cost: steps one after another, and rounds of messages.

T steps of a rank, B samples, P ranks, S numbers of state a sample.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bppsa_lightning.divided.divide import Way
from bppsa_lightning.ranks import Exchange

# Of a step forward and backward, the backward's share.
_BACKWARD = 0.5


def seconds(
    cost: Callable[[int], float], T: int, B: int, S: int, P: int, way: Way,
    latency: float, of_byte: float, itemsize: int = 4, on_gpu: bool = False,
) -> float:  # fmt: skip
    """Of forward and backward of the rank that is done last.

    Args:
        cost: of a step of so many samples, forward and backward, in seconds.
        latency: of a round. of_byte: of each byte in it more.
    """
    state = latency + of_byte * itemsize * B * S
    if way.forward == "meet":
        walked = (way.warm + T) * cost(B) * (1 - _BACKWARD) + 3 * state
    else:
        turns = P - 1 + way.groups
        per_group = T * cost(max(1, B // way.groups)) * (1 - _BACKWARD)
        walked = turns * (per_group + state)
    if way.backward == "follow":
        return walked + (T + 2 * way.warm) * cost(B) * _BACKWARD + 3 * state
    if way.backward == "compose":
        rounds = 2 + max(0, P - 2).bit_length()
        maps = latency + of_byte * itemsize * B * S * (S + 1)
        # A map's S rows are walked as samples are, twice: with nothing direct, and then for good.
        # (A GPU walks those of all samples at once.)
        rows = cost(B * S) if on_gpu else B * cost(S)
        composed = T * (rows + 2 * cost(B)) * _BACKWARD
        return walked + composed + rounds * maps
    turns = P - 1 + way.groups
    return walked + turns * (T * cost(max(1, B // way.groups)) * _BACKWARD + state)


def choose(
    exchange: Exchange, cost: Callable[[int], float], T: int, B: int, S: int, algorithm: str,
    composes: bool, x: Tensor,
) -> Way:  # fmt: skip
    """The way for a recurrence that may not forget. Asks the other ranks.

    Args:
        algorithm: "linear" passes vectors on, "chunked" and "blelloch" compose, others choose.
        composes: whether maps can be composed. x: of the device and dtype of what is sent.
    """
    P, B = exchange.size, max(B, 1)
    relays = [Way("relay", "relay", groups) for groups in sorted({1, min(B, P), B}) if groups]
    if algorithm in ("chunked", "blelloch") and composes:
        return Way("relay", "compose")
    if P == 1:
        return relays[0]
    latency, of_byte = exchange.seconds(x.device)
    ways = relays if algorithm == "linear" or not composes else [*relays, Way("relay", "compose")]
    of_x = x.element_size(), x.is_cuda
    times = [seconds(cost, T, B, S, P, way, latency, of_byte, *of_x) for way in ways]
    # Ranks may be of different speed: they do as the first one says.
    found = torch.tensor([times.index(min(times))], device=x.device)
    return ways[int(exchange.gather(found)[0][0])]

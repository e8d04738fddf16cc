"""A training step of a divided sequence as events: P ranks with clocks, and messages between them.

A rank's clock moves on when it walks, and when it waits for a message: that arrives `latency` +
bytes * `of_byte` after its sender has sent it. Costs are measured (`scaling_ranks`); what is
scheduled is what `bppsa_lightning.divided` does, and, to compare, a Blelloch tree over ranks.

n steps in all, T of each rank, B samples, S numbers of state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

ALGORITHMS = ("linear", "pipelined", "recursive doubling", "blelloch", "speculative")


@dataclass(frozen=True)
class Costs:
    """Of one layer, in seconds.

    Attributes:
        forward, backward: of a step of all samples. start: of a step of a backward that looks for
            the gradient of the first state alone. compose: of composing a step, of all samples;
            merge: of two maps.
        groups: samples that are passed on one after another by "pipelined".
        group_forward, group_backward: of a step of one such group.
        latency: of a message. of_byte: of each byte in it. state: bytes of a state, map: of a map.
        warm: steps of warm-up, and that a gradient is followed for.
    """

    forward: float
    backward: float
    start: float
    compose: float
    merge: float
    latency: float
    of_byte: float
    state: float
    map: float
    warm: int
    groups: int = 1
    group_forward: float = 0.0
    group_backward: float = 0.0


class Ranks:
    """Clocks of P ranks."""

    def __init__(self, P: int, costs: Costs) -> None:
        self.P, self.costs = P, costs
        self.clocks = np.zeros(P)
        self.rounds = 0

    def work(self, seconds: float) -> None:
        """Of all ranks."""
        self.clocks += seconds

    def round(self, ahead: int, size: float, then: float = 0.0) -> None:
        """Every rank sends to the one `ahead` places later, if there is one; who gets works."""
        self.rounds += 1
        arrive = self.clocks + self.costs.latency + self.costs.of_byte * size
        if ahead > 0:
            self.clocks[ahead:] = np.maximum(self.clocks[ahead:], arrive[:-ahead]) + then
        else:
            self.clocks[:ahead] = np.maximum(self.clocks[:ahead], arrive[-ahead:]) + then

    def relay(self, ahead: int, size: float, work: float, groups: int = 1) -> None:
        """From one end of the chain to the other: each rank works on what it got, and passes on."""
        order = range(self.P) if ahead > 0 else range(self.P - 1, -1, -1)
        message = self.costs.latency + self.costs.of_byte * size
        for _ in range(groups):
            arrives = 0.0
            for rank in order:
                self.clocks[rank] = max(self.clocks[rank], arrives) + work
                arrives = self.clocks[rank] + message
        self.rounds += self.P - 1 + groups - 1

    def gather(self, size: float) -> None:
        """What each has, for all: in log2 P messages, each as long as all before."""
        rounds = (self.P - 1).bit_length()
        c = self.costs
        self.clocks[:] = self.clocks.max() + rounds * c.latency + c.of_byte * size * (self.P - 1)
        self.rounds += rounds


def simulate(algorithm: str, n: int, P: int, costs: Costs) -> tuple[float, int]:
    """Seconds of a step, forward and backward, and rounds of messages."""
    ranks = Ranks(P, costs)
    _SCHEDULES[algorithm](ranks, -(-n // P))
    return float(ranks.clocks.max()), ranks.rounds if P > 1 else 0


def _linear(ranks: Ranks, T: int) -> None:
    c = ranks.costs
    ranks.relay(1, c.state, T * c.forward)
    ranks.relay(-1, c.state, T * c.backward)


def _pipelined(ranks: Ranks, T: int) -> None:
    c = ranks.costs
    size = c.state / c.groups
    ranks.relay(1, size, T * c.group_forward, c.groups)
    ranks.relay(-1, size, T * c.group_backward, c.groups)


def _composed(ranks: Ranks, T: int, scan: Callable[[Ranks], None]) -> None:
    c = ranks.costs
    ranks.relay(1, c.state, T * c.forward)
    if ranks.P > 1:
        # (The first rank's map is nobody's, and the last rank's a vector.)
        ranks.work(T * (c.start + c.compose * (ranks.P > 2)))
        scan(ranks)
    ranks.work(T * c.backward)


def _doubling(ranks: Ranks) -> None:
    c = ranks.costs
    ranks.round(-1, c.map)
    ahead = 1
    while ahead < ranks.P - 1:
        ranks.round(-ahead, c.map, c.merge)
        ahead *= 2
    ranks.round(1, 8)  # whether it is to be believed


def _tree(ranks: Ranks) -> None:
    """Up and down: half as many products, twice as many rounds."""
    c, ahead = ranks.costs, 1
    while ahead < ranks.P:
        ranks.round(-ahead, c.map, c.merge)
        ahead *= 2
    while ahead > 1:
        ahead //= 2
        ranks.round(-ahead, c.state, c.merge / max(1.0, c.map / c.state))


def _speculative(ranks: Ranks, T: int) -> None:
    c = ranks.costs
    if ranks.P == 1:
        return _linear(ranks, T)
    warm = min(c.warm, T)
    ranks.gather(64)  # that all have come for the same
    ranks.round(1, c.state * warm)
    ranks.work(warm * c.forward + T * c.forward)
    ranks.gather(2 * c.state)
    ranks.work(T * c.backward)
    ranks.gather(c.state)
    ranks.work(min(2 * warm, T) * c.backward)
    if ranks.P > 2:
        ranks.gather(c.state)


schedules = {"recursive doubling": _doubling, "blelloch": _tree}

_SCHEDULES: dict[str, Callable[[Ranks, int], None]] = {
    "linear": _linear,
    "pipelined": _pipelined,
    "recursive doubling": lambda ranks, T: _composed(ranks, T, _doubling),
    "blelloch": lambda ranks, T: _composed(ranks, T, _tree),
    "speculative": _speculative,
}

"""Who does what: the stages, their delays, and the tasks that one process does for another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bppsa_lightning.layerpipe.delays import spans, stage_delays
from bppsa_lightning.layerpipe.links import rank_of


@dataclass(frozen=True)
class Plan:
    """The division of a chain over processes.

    Attributes:
        layers: how many the chain has.
        cuts: the first layer of every stage but the first.
        delays: d of each stage, in updates.
        lent: {layer: the stage whose process does its G}, for those that are not done at home.
        shared: {stage: the fraction of the batch for which its first layer's D is done at home};
            the stage before does the rest.
        bytes: of what each stage keeps for one mini-batch between its forward and its backward.
        stashed: bytes of one version of each stage's weights.
    """

    layers: int
    cuts: tuple[int, ...]
    delays: tuple[int, ...]
    lent: dict[int, int]
    shared: dict[int, float]
    bytes: tuple[int, ...] = ()
    stashed: tuple[int, ...] = ()

    @property
    def spans(self) -> list[range]:
        """The layers of each stage."""
        return spans(self.cuts, self.layers)

    def stage_of(self, layer: int) -> int:
        return next(s for s, span in enumerate(self.spans) if layer in span)

    def lent_by(self, stage: int) -> list[int]:
        """Layers whose G another stage does, the last first."""
        return sorted((m for m in self.lent if self.stage_of(m) == stage), reverse=True)

    def lent_to(self, stage: int) -> list[int]:
        """Layers of others whose G this stage does, the last first."""
        return sorted((m for m, other in self.lent.items() if other == stage), reverse=True)

    def offset(self, layer: int) -> int:
        """How many mini-batches enter the helper's stage before it does G of a lent layer.

        Stage s runs F(i) in interval s + i, and D(i - d) in the same; G is due in that of D.
        """
        owner, helper = self.stage_of(layer), self.lent[layer]
        return self.delays[owner] + owner - helper

    def in_flight(self, stage: int) -> int:
        """Mini-batches whose activations a stage holds at most at once."""
        return self.delays[stage] + 1

    def memory(self, stage: int, versions: str) -> int:
        """The bound in bytes: activations of all mini-batches in flight, and older weights."""
        copies = self.delays[stage] if versions == "stash" else min(1, self.delays[stage])
        return self.in_flight(stage) * self.bytes[stage] + copies * self.stashed[stage]

    def summary(self, schedule: str, versions: str) -> str:
        """What each process does, and the most that it keeps, for people."""
        lines = [f"layerpipe ({schedule}):"]
        for stage, span in enumerate(self.spans):
            megabytes = self.memory(stage, versions) / 2**20
            lines.append(
                f"  stage {stage} (rank {rank_of(stage, len(self.spans))}): layers {span.start} to "
                f"{span.stop - 1}, gradients {self.delays[stage]} updates late, at most "
                f"{megabytes:.1f} MiB of activations and older weights"
            )
            if stage + 1 in self.shared:
                part = 1 - self.shared[stage + 1]
                lines.append(
                    f"    does D of layer {span.stop} for {part:.0%} of the samples as well"
                )
            lines += [f"    does G of layer {layer} as well" for layer in self.lent_to(stage)]
        return "\n".join(lines)


def at_home(layers: int, cuts: Sequence[int], schedule: str, delayed: bool) -> Plan:
    """A plan in which every stage does its own tasks."""
    stages = len(cuts) + 1
    delays = stage_delays(schedule, stages) if delayed else [0] * stages
    return Plan(layers, tuple(cuts), tuple(delays), {}, {})

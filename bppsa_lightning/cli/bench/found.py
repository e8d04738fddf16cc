"""What a bench has found."""

from dataclasses import dataclass
from typing import Any

from bppsa_lightning.cli.bench.agreement import Agreement
from bppsa_lightning.cli.bench.clock import Compared


@dataclass(frozen=True)
class Bench:
    """What was found.

    Attributes:
        title: what was timed, and on which input. hardware: where.
        whole: the model. layers: {"name", "type", "size", "runs on", "how", "calls", "compared"}.
        others: layers that are not accelerated, and why.
        memory: {"stock": bytes, "bppsa": bytes}; None where it is not known. memory_of: what that
            is, for people.
        outputs, gradients: whether they agree.
        other_load: cores that others kept busy; None where it is not known.
    """

    title: str
    hardware: str
    whole: Compared
    layers: list[dict[str, Any]]
    others: list[tuple[str, str]]
    memory: dict[str, int | None]
    memory_of: str
    outputs: Agreement
    gradients: Agreement
    other_load: float | None

    @property
    def agrees(self) -> bool:
        """Whether both ways computed the same."""
        return self.outputs.holds and self.gradients.holds

    def data(self) -> dict[str, Any]:
        """For JSON; times in seconds, memory in bytes."""
        return {
            "target": self.title,
            "hardware": self.hardware,
            "whole": self.whole.data(),
            "layers": [
                {key: value for key, value in layer.items() if key != "compared"}
                | layer["compared"].data()
                for layer in self.layers
            ],
            "not_accelerated": [{"name": name, "reason": reason} for name, reason in self.others],
            "memory": self.memory | {"what": self.memory_of},
            "outputs": self.outputs.data(),
            "gradients": self.gradients.data(),
            "other_load": self.other_load,
        }

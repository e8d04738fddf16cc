"""Steps of a training as they ran, and as long as they would have taken with stock PyTorch.

A step's layers are run again, both ways; everything else in it is the same work, and is taken to
last as long. So nothing of the user's runs twice, and no number of the training changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from bppsa_lightning.gains.replay import Seconds

PARTS = ("forward", "backward", "optimizer", "rest")
SLOWER = 0.95  # of stock's speed; above, a difference may be chance


@dataclass
class Comparison:
    """What was measured so far.

    Attributes:
        steps: of each timed step: seconds of its parts, as `StepTimer` has them.
        layers: name of a layer: of each step, the seconds of ours and of stock's.
    """

    steps: list[Mapping[str, float]] = field(default_factory=list)
    layers: dict[str, list[tuple[Seconds, Seconds]]] = field(default_factory=dict)
    _layers: list[tuple[Seconds, Seconds]] = field(default_factory=list)  # together, of each step

    def add(self, step: Mapping[str, float], layers: Mapping[str, tuple[Seconds, Seconds]]) -> None:
        """One more step."""
        self.steps.append(step)
        ours, stock = Seconds(0.0, 0.0), Seconds(0.0, 0.0)
        for name, (mine, theirs) in layers.items():
            self.layers.setdefault(name, []).append((mine, theirs))
            ours, stock = ours.plus(mine), stock.plus(theirs)
        self._layers.append((ours, stock))

    def ours(self) -> dict[str, float]:
        """Median seconds of each part of a step, and "step", their sum; empty before the first."""
        return typical(self.steps)

    def stock(self) -> dict[str, float]:
        """The same with stock PyTorch's layers."""
        return typical([self._as_stock(i) for i in range(len(self.steps))])

    def _as_stock(self, i: int) -> dict[str, float]:
        """A step with stock's layers: they alone take their time, whatever ours took."""
        step, (ours, stock) = dict(self.steps[i]), self._layers[i]
        for part, mine, theirs in zip(Seconds._fields, ours, stock, strict=True):
            step[part] = max(step[part] + theirs - mine, theirs)
        return step

    def speed_ups(self) -> dict[str, float]:
        """By which factor forward, backward and step are faster than stock."""
        ours, stock = self.ours(), self.stock()
        parts = ("forward", "backward", "step")
        return {part: stock[part] / ours[part] for part in parts if ours.get(part)}

    def of_layers(self) -> list[dict[str, float | str]]:
        """A row for each layer: median seconds of both directions, ours and stock's."""
        return [
            {
                "layer": name or "(itself)",
                "forward": median(ours.forward for ours, _ in rows),
                "backward": median(ours.backward for ours, _ in rows),
                "stock_forward": median(stock.forward for _, stock in rows),
                "stock_backward": median(stock.backward for _, stock in rows),
            }
            for name, rows in self.layers.items()
        ]

    @property
    def is_slower(self) -> bool:
        """Whether a step takes longer than with stock PyTorch, by more than chance."""
        return self.speed_ups().get("step", 1.0) < SLOWER

    def text(self) -> str:
        """In a line, for people: "backward 3.1x, step 1.9x of stock on this machine (12 steps)"."""
        found = self.speed_ups()
        parts = ", ".join(f"{part} {_factor(found[part])}" for part in ("backward", "step"))
        count = len(self.steps)
        return f"{parts} of stock on this machine ({count} step{'s' * (count != 1)} each)"


def typical(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Median seconds of each part of some steps, and "step", their sum; empty without steps."""
    found = {part: median(step[part] for step in steps) for part in PARTS if steps}
    return {**found, "step": sum(found.values())} if found else {}


def _factor(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 20 else f"{ratio:.1f}x" if ratio >= 1.05 else f"{ratio:.2f}x"

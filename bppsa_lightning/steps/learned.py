"""What the scans of a training have learned, for its checkpoints.

In a process, a scan is found by the tensors that its step reads and by the step's code. Another
process knows neither, so in a checkpoint a scan has a name: that of the step, that of the first
parameter which it reads, the numbers that it was made with, and the sizes of its state and inputs.
Scans of one name are counted in the order in which they are first called.
"""

from collections.abc import Mapping, MutableMapping
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from bppsa_lightning.steps import known
from bppsa_lightning.steps.known import Known
from bppsa_lightning.windows import Memory

# Names begin like this, and those of chains do not: both are in one dictionary.
_PREFIX = "bl.scan("


class Scans:
    """The scans that are called between `begin` and `end`, which is while a model is trained."""

    def __init__(self) -> None:
        self._module: nn.Module | None = None
        # (Weak while there are some: a strategy that is sent to another process has none yet.)
        self._names: MutableMapping[Known, str] = {}
        self._loaded: dict[str, Any] = {}

    def begin(self, module: nn.Module) -> None:
        """From now on; parameters have their names in `module`."""
        self._module, self._names = module, WeakKeyDictionary()
        known.observers.append(self._meet)

    @property
    def any(self) -> bool:
        """Whether one has been called."""
        return bool(self._names)

    def end(self) -> None:
        """Forgets all scans."""
        if self._meet in known.observers:
            known.observers.remove(self._meet)
        self._module, self._names, self._loaded = None, {}, {}

    def state_dict(self) -> dict[str, Any]:
        """What each has learned, by its name, as far as it has."""
        met = {name: scan.memory for scan, name in self._names.items()}
        # (Nothing is learned before the first look, which finds levels.)
        learned = {name: m.state_dict() for name, m in met.items() if m.levels is not None}
        return self._loaded | learned

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """From a checkpoint, which may hold more than scans: without a state, a scan is as new."""
        self._loaded = {name: s for name, s in states.items() if name.startswith(_PREFIX)}
        for scan, name in self._names.items():
            self._give(scan, name)

    def _meet(self, scan: Known, first: Tensor | None) -> None:
        """A scan is about to be walked, of a step that reads `first` before other parameters."""
        if scan not in self._names:
            self._names[scan] = name = self._name(scan, first)
            if self._loaded:
                self._give(scan, name)

    def _give(self, scan: Known, name: str) -> None:
        scan.memory = Memory()
        if name in self._loaded:
            scan.memory.load_state_dict(self._loaded.pop(name), scan.device)

    def _name(self, scan: Known, first: Tensor | None) -> str:
        assert self._module is not None
        parameters = self._module.named_parameters()
        of = next((f"of {name}" for name, p in parameters if p is first), "")
        taken = set(self._names.values())
        words = filter(None, (scan.name, of, scan.made_with, scan.shapes))
        name = f"{_PREFIX}{' '.join(words)})"
        each = (f"{name} #{i}" if i > 1 else name for i in count(1))
        return next(one for one in each if one not in taken)

"""What is known of a step from earlier scans: kept as long as the parameters that it reads."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from operator import itemgetter
from types import CellType, CodeType, FunctionType
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary, WeakTensorKeyDictionary

from bppsa_lightning import windows
from bppsa_lightning.steps.checkpoints import Checkpoints
from bppsa_lightning.steps.engine import Step
from bppsa_lightning.windows import Cut, Memory
from bppsa_lightning.windows.cut import Leaves


class _Owner(NamedTuple):
    """Of a method, by its id."""

    id: int


_Constants = tuple[Any, ...]


class Known:
    """One step, over tensors of some shapes.

    Attributes:
        name: of the step, for people.
        made_with: the numbers that it was made with. shapes: of a sample's state and inputs; both
            in words that are the same in each process.
        device: of the state.
        sizes: (T, B) of the last scan. call: its number among all.
        memory: of its recurrence.
        cut: of the last scan; None if it was a loop. why: it was one.
        checkpoints: of the last scan.
    """

    def __init__(self, step: Step, constants: _Constants, state: Leaves, xs: Leaves) -> None:
        while isinstance(step, partial):
            step = step.func
        self.name = getattr(step, "__qualname__", type(step).__name__)
        self.made_with = _in_words(constants)
        self.shapes = " ".join(
            f"{str(t.dtype)[6:]}{list(t.shape[start:])}"
            for leaves, start in ((state, 1), (xs, 2))
            for t in leaves
        )
        self.device = state[0].device
        self.sizes, self.call = (0, 0), 0
        self.memory = Memory()
        self.cut: Cut | None = None
        self.why: str | None = None
        self.checkpoints: Checkpoints | None = None

    def __str__(self) -> str:
        T, B = self.sizes
        text = f"{self.name}, {T} steps, batch {B}: "
        if self.cut is None:
            text += f"a loop; {self.why}" if self.why else "a loop"
        else:
            text += windows.in_words(self.cut, self.memory.report)
        return text + str(self.checkpoints or "")

    def note(
        self, cut: Cut | None, why: str | None, checkpoints: Checkpoints | None = None
    ) -> None:
        """How the last scan was walked."""
        self.cut, self.why, self.checkpoints = cut, why, checkpoints


# Of steps of one code over tensors of the same shapes: those that were called last. A step may be
# made with another number in each forward, or belong to another object.
_MOST_KEPT = 8

_calls = count()

# Told of each scan before it is walked, and of the first parameter that its step reads, if any.
observers: list[Callable[[Known, Tensor | None], None]] = []

# By the first parameter that is read; of steps that read none, by their own code.
_by_tensor: Any = WeakTensorKeyDictionary()
_by_code: Any = WeakIdKeyDictionary()


def known_of(step: Step, tensors: Sequence[Tensor], state: Leaves, xs: Leaves) -> Known:
    """What is known of a step that reads some tensors, for states and inputs of these shapes."""
    inner = getattr(step, "__wrapped__", step)
    code, constants = _made_of(inner)
    leaves = [t for t in tensors if t.is_leaf]
    first = leaves[0] if leaves else None
    each: dict[Any, Known]
    each = _by_code.setdefault(code, {}) if first is None else _by_tensor.setdefault(first, {})
    key = (
        code, constants, step is inner, tuple((tuple(s.shape[1:]), s.dtype) for s in state),
        tuple((tuple(x.shape[2:]), x.dtype) for x in xs), state[0].device,
    )  # fmt: skip
    known = each.get(key)
    if known is None:
        known = each[key] = Known(inner, constants, state, xs)
        alike = [
            (other.call, k)
            for k, other in list(each.items())
            if other is not known and (k[0], *k[2:]) == (key[0], *key[2:])
        ]
        for _, oldest in sorted(alike, key=itemgetter(0))[: 1 - _MOST_KEPT]:
            each.pop(oldest, None)
    known.call = next(_calls)
    for observer in observers:
        observer(known, first)
    known.sizes = xs[0].shape[0], xs[0].shape[1]
    return known


def _made_of(step: Any, seen: frozenset[int] = frozenset()) -> tuple[Any, _Constants]:
    """A step's code, which is the same object for each function that a line makes, and the numbers
    that it was made with: other ones are another recurrence.
    """
    constants: list[Any] = []
    while isinstance(step, partial):
        constants += _constants([*step.args, *step.keywords.values()], seen)
        step = step.func
    seen |= {id(step)}  # a function that calls itself
    owner = getattr(step, "__self__", None)  # of a method
    constants += [] if owner is None else [_Owner(id(owner))]
    cells = getattr(step, "__closure__", None) or ()
    constants += _constants([cell.cell_contents for cell in cells if cell != CellType()], seen)
    constants += _constants(getattr(step, "__defaults__", None) or (), seen)
    return getattr(step, "__code__", None) or type(step), tuple(constants)


def _constants(values: Iterable[Any], seen: frozenset[int]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if isinstance(value, (int, float, str, bytes)) or value is None:
            found.append(value)
        elif isinstance(value, FunctionType) and id(value) not in seen:
            found += _made_of(value, seen)
    return found


def _in_words(constants: _Constants) -> str:
    """What of them is the same in each process."""
    words = []
    for constant in constants:
        if isinstance(constant, tuple) and not isinstance(constant, _Owner):
            words.append(_in_words(constant))
        elif not isinstance(constant, _Owner):
            words.append(constant.co_name if isinstance(constant, CodeType) else repr(constant))
    return " ".join(words)


def scans_of(parameters: Iterable[Tensor]) -> list[Known]:
    """The scans whose steps read one of some parameters first."""
    return [known for p in parameters for known in _by_tensor.get(p, {}).values()]

"""How many steps lie between checkpoints: the states that are kept for a backward.

A walk keeps what autograd saves of every step. With checkpoints it keeps the state before every
n-th step, and the backward walks these n steps again, which then keep all. Of T steps that is least
with n about the square root of T; windows of C steps, side by side, are checkpointed together.

B samples, K windows of C steps each; a walk without windows is one of T steps.
"""

from bisect import bisect_right
from typing import NamedTuple

import torch
from torch import Tensor

from bppsa_lightning.steps.engine import nodes_of
from bppsa_lightning.windows import Cut, Engine
from bppsa_lightning.windows.cut import Leaves

# What a node of autograd's graph takes beside the numbers that it saves, and a checkpoint beside
# its state, on a CPU: objects. (Five cells of 15 to 47 nodes took 614 to 956 bytes a node.)
_NODE, _CHECKPOINT = 750, 2000

# Where as little as possible is to be kept, so much more may be, for fewer and longer segments.
_NEARLY_LEAST = 1.25


class Kept(NamedTuple):
    """Bytes that are kept.

    Attributes:
        step, state: of B samples, in each step and in a state alone.
        objects, checkpoint: beside these, in each step and at each checkpoint, of all samples.
    """

    step: int
    state: int
    objects: int = 0
    checkpoint: int = 0

    def whole(self, cut: Cut) -> int:
        """Without checkpoints."""
        return cut.span * self._of_step(cut)

    def between(self, cut: Cut, n: int) -> int:
        """With a checkpoint every n steps: those, and one segment that is walked again."""
        return n * self._of_step(cut) + -(-cut.span // n) * self._of_checkpoint(cut)

    def least(self, cut: Cut) -> int:
        """The n with which least is kept, or nearly."""
        n = (cut.span * self._of_checkpoint(cut) / max(self._of_step(cut), 1)) ** 0.5
        return min(cut.span, max(1, round(n)))

    def _of_step(self, cut: Cut) -> int:
        return cut.windows * self.step + self.objects

    def _of_checkpoint(self, cut: Cut) -> int:
        # (The backward remembers the gradient at each of them, too.)
        return 2 * cut.windows * self.state + self.checkpoint


class Checkpoints(NamedTuple):
    """How a walk is checkpointed.

    Attributes:
        steps: between two checkpoints; 0 if all is kept.
        kept: bytes, by estimate. whole: how many there would be without checkpoints.
    """

    steps: int
    kept: int
    whole: int

    def __str__(self) -> str:
        if not self.steps:
            return ""
        return (
            f"; checkpoints every {self.steps} steps: about {_mebibytes(self.kept)} are kept "
            f"for the backward instead of {_mebibytes(self.whole)}"
        )


# All is kept.
NONE = Checkpoints(0, 0, 0)


def choose(kept: Kept, cut: Cut, budget: int) -> Checkpoints:
    """The fewest checkpoints with which so many bytes are kept, or hardly more than have to be."""
    whole, n = kept.whole(cut), kept.least(cut)
    if whole <= budget:
        return Checkpoints(0, whole, whole)
    most = max(budget, _NEARLY_LEAST * kept.between(cut, n))
    longer = range(n, cut.span + 1)
    fitting = bisect_right(longer, most, key=lambda n: kept.between(cut, n))
    n = longer[max(0, fitting - 1)]
    return Checkpoints(n, kept.between(cut, n), whole)


def whole(T: int) -> Cut:
    """A walk without windows."""
    return Cut(T, windows=1, span=T, warm=0)


def kept_of(engine: Engine, xs: Leaves, state: Leaves, steps: int = 1) -> Kept:
    """What a step of an engine keeps, by a call of it.

    Args:
        xs: (T, B, ...) each. state: (B, ...) each.
        steps: of that call.
    """
    tensors = (*xs, *engine.tensors, *engine.constants)
    there = {t.untyped_storage().data_ptr() for t in tensors}
    steps = min(steps, len(xs[0]))
    saved: dict[int, Tensor] = {}

    def pack(t: Tensor) -> Tensor:
        if t.untyped_storage().data_ptr() not in there:
            saved[t.untyped_storage().data_ptr()] = t
        return t

    leaves = [s.detach().clone() for s in state]
    leaves = [s.requires_grad_() if s.is_floating_point() else s for s in leaves]
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        ys, last = engine([x[:steps] for x in xs], [s.clone() for s in leaves])
    step = sum(t.untyped_storage().nbytes() for t in saved.values()) // steps
    kept = Kept(step, sum(s.nbytes for s in state))
    if state[0].device.type != "cpu":
        return kept
    return kept._replace(
        objects=_NODE * len(nodes_of([*ys, *last])) // steps, checkpoint=_CHECKPOINT
    )


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.3g} MiB"

"""A sequence divided over ranks: each walks a span of time, and they exchange what crosses ends.

Nothing here knows a cell or a kernel: a rank walks its span by an `Engine` of
`bppsa_lightning.windows`, or by what knows how (`Walk`).

- forward (`states`): states are relayed from rank to rank, or all ranks begin at once, each warmed
  up on the end of its neighbour's span, and compare;
- backward (`gradients`): vectors are relayed, spans are composed to maps and scanned by recursive
  doubling, or what leaves a span is followed as far as it reaches.
"""

from bppsa_lightning.divided.cost import choose, seconds
from bppsa_lightning.divided.divide import Division, Way
from bppsa_lightning.divided.memory import RankMemory
from bppsa_lightning.divided.ragged import RaggedWalk
from bppsa_lightning.divided.states import Report
from bppsa_lightning.divided.walk import Gradients, GraphWalk, Leaves, Walk, added, is_nothing
from bppsa_lightning.divided.words import in_words

__all__ = [
    "Division", "Gradients", "GraphWalk", "Leaves", "RaggedWalk", "RankMemory", "Report",
    "Walk", "Way", "added", "choose", "in_words", "is_nothing", "seconds",
]  # fmt: skip

"""The ranks of a process group that hold one chain: who holds what, and what goes between them.

n devices that hold n parts of a chain take Θ(n) steps of back-propagation one after the other; a
scan over the parts takes Θ(log n) (arXiv:1907.10134): `suffix`. Messages are torch.distributed's,
and counted: `exchange`.
"""

from bppsa_lightning.ranks.adjoints import span_of, summed, whole_of
from bppsa_lightning.ranks.exchange import Counts, Exchange, packed, unpacked
from bppsa_lightning.ranks.spans import Spans
from bppsa_lightning.ranks.suffix import DenseMaps, Map, Maps, carry, reaches, relay

__all__ = [
    "Counts", "DenseMaps", "Exchange", "Map", "Maps", "Spans", "carry", "packed", "reaches",
    "relay", "span_of", "summed", "unpacked", "whole_of",
]  # fmt: skip

"""What can be a chain: one file a kind."""

from bppsa_lightning.chains.base import Chain, LeftAlone
from bppsa_lightning.chains.recurrent import RecurrentChain

__all__ = ["Chain", "LeftAlone", "RecurrentChain"]

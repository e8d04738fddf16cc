"""What can be a chain: recurrent layers, and what they are made of."""

from bppsa_lightning.chains.base import Chain, LeftAlone
from bppsa_lightning.chains.recurrent import RecurrentChain

__all__ = ["Chain", "LeftAlone", "RecurrentChain"]

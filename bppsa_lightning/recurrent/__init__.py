"""What can be a chain: recurrent layers, and what they are made of."""

from bppsa_lightning._replacement import Chain, LeftAlone
from bppsa_lightning.recurrent.layer import RecurrentChain

__all__ = ["Chain", "LeftAlone", "RecurrentChain"]

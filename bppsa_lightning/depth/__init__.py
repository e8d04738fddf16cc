"""Chains over depth: nn.Sequential."""

from bppsa_lightning.depth.scan import LayerScan, Step, csr_step
from bppsa_lightning.depth.stack import FeedforwardChain, is_candidate, unsupported

__all__ = ["LayerScan", "Step", "csr_step"]

"""A module's chains and pruned layers as rows of text, for `explain` and for loggers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bppsa_lightning._replacement import Chain
from bppsa_lightning.pruned import SparseLayer

Row = tuple[str, ...]
CHAINS: Row = ("chain", "cell", "layers", "T", "B", "H", "algorithm", "chunk", "estimate", "why")
LAYERS: Row = ("pruned layer", "kind", "weights", "density", "path", "estimate", "why")


def of_chains(chains: Iterable[tuple[str, Chain]]) -> list[Row]:
    """A row of CHAINS for each: the plan of its last call."""
    return [_chain(name or "(itself)", chain) for name, chain in chains]


def of_layers(pruned: Mapping[str, SparseLayer]) -> list[Row]:
    """A row of LAYERS for each pruned layer."""
    return [_layer(name or "(itself)", layer) for name, layer in pruned.items()]


def _chain(name: str, chain: Chain) -> Row:
    plan = chain.plan()
    first = (name, chain.cell, chain.stack)
    if plan is None or chain.shape is None:
        H = str(getattr(chain.module, "hidden_size", "?"))
        why = "no call scanned so far" if chain.handed_over else "planned at the first call"
        return (*first, "?", "?", H, chain.algorithm, "?", "?", why)
    T, B, H = (str(size) for size in chain.shape)
    chunk = {"chunked": f"{plan.chunk}", "blelloch": f"{plan.levels} levels"}.get(
        plan.algorithm, "-"
    )
    estimate = _duration(plan.seconds) if plan.seconds else "-"
    return (*first, T, B, H, plan.algorithm, chunk, estimate, plan.reason)


def _layer(name: str, layer: SparseLayer) -> Row:
    pattern, plan = layer.pattern, layer.plan
    left = layer.handed_over and (layer.reason is not None or not layer.calls)
    path = "?" if not layer.calls + layer.handed_over else "dense" if left else "sparse"
    estimate = "?" if plan is None else _duration(plan.seconds)
    reason = layer.reason if left else plan and plan.reason
    why = reason or "planned at the first call"
    if layer.followers:
        why += f"; {' and '.join(layer.followers)} in the same pass"
    kept = (f"{pattern.nnz}", f"{pattern.density:.4f}")
    return (name, layer.kind, *kept, path, estimate, why)


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"

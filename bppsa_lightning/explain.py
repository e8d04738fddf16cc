"""What of a module is accelerated, how, and what is not, and why: for people and for loggers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from bppsa_lightning import depth, pruned, recurrent, steps
from bppsa_lightning import nn as own
from bppsa_lightning._replacement import NotAccelerated, Replacement, replacement_of
from bppsa_lightning.attach import check_module, inside_of_stacks
from bppsa_lightning.chain import Chain, named_chains
from bppsa_lightning.planner import Plan, crowded, suggestion

_NOT_CALLED = "planned at the first call"


class ChainRow(NamedTuple):
    """A chain and the plan of its last call, in words."""

    layer: str
    type: str
    layers: str
    seq_len: str
    batch: str
    hidden: str
    backward: str
    estimate: str
    why: str

    @property
    def key(self) -> tuple[str, ...]:
        """What the plan is, apart from the sizes and estimates of one call."""
        return self.layer, self.type, self.layers, self.backward

    @staticmethod
    def of(name: str, chain: Chain) -> ChainRow:
        """The row of an attached chain."""
        first = (name or "(itself)", chain.cell, chain.stack)
        T, B, H = chain.sizes
        plan = chain.plan
        if plan is None:
            H = str(getattr(chain.module, "hidden_size", H))
            why = "no call accelerated so far" if chain.fallback_calls else _NOT_CALLED
            return ChainRow(*first, T, B, H, chain.algorithm, "?", why)
        estimate = _duration(plan.seconds) if plan.seconds else "-"
        return ChainRow(*first, T, B, H, _algorithm(plan), estimate, plan.reason)


class PrunedRow(NamedTuple):
    """A pruned layer and the plan of its last call, in words."""

    layer: str
    type: str
    weights: str
    density: str
    path: str
    estimate: str
    why: str

    @property
    def key(self) -> tuple[str, ...]:
        """As of `ChainRow`."""
        return self.layer, self.type, self.weights, self.path

    @staticmethod
    def of(name: str, layer: pruned.SparseLayer) -> PrunedRow:
        """The row of an attached pruned layer."""
        pattern, plan = layer.pattern, layer.plan
        dense = layer.fallback_calls and (layer.reason is not None or not layer.calls)
        called = layer.calls + layer.fallback_calls
        path = "?" if not called else "dense" if dense else "sparse"
        estimate = "?" if plan is None else _duration(plan.seconds)
        why = (layer.reason if dense else plan and plan.reason) or _NOT_CALLED
        if layer.followers:
            why += f"; {' and '.join(layer.followers)} in the same pass"
        kept = (str(pattern.nnz), f"{pattern.density:.4f}")
        return PrunedRow(name or "(itself)", layer.kind, *kept, path, estimate, why)


def chain_rows(module: nn.Module) -> list[ChainRow]:
    """A row for each attached chain of a module."""
    return [ChainRow.of(name, chain) for name, chain in named_chains(module).items()]


def pruned_rows(module: nn.Module) -> list[PrunedRow]:
    """A row for each attached pruned layer of a module."""
    return [PrunedRow.of(name, layer) for name, layer in pruned.sparse_layers(module).items()]


def explain(module: nn.Module) -> str:
    """A table of a module's chains and their plans, and what is not accelerated, and why.

    Sizes and plan are those of the last call; before the first they read "?". A module that is
    not attached is described as it stands: nothing is accelerated.

    Returns:
        Text for print().

    Raises:
        TypeError: `module` is no nn.Module.
    """
    check_module(module)
    chains, layers = chain_rows(module), pruned_rows(module)
    others = not_accelerated(module)
    running = sum(row.path != "dense" for row in layers)
    counts = _counts(module, running, others)
    lines = [f"{type(module).__name__}: {', '.join(counts) or 'nothing'} accelerated"]
    lines += _table([ChainRow._fields, *chains]) if chains else []
    for name, chain in named_chains(module).items():
        below = [line.strip() for line in chain.details()]
        if chain.fallback_calls:
            accelerated = f"{chain.calls} of {chain.calls + chain.fallback_calls} calls accelerated"
            below.insert(0, f"{accelerated}; last fallback: {chain.last_fallback}")
        lines += [f"{name or '(itself)'}: {line}" for line in below]
    lines += _table([PrunedRow._fields, *layers]) if layers else []
    lines += [f"scan of {known}" for known in steps.scans_of(module.parameters())]
    if dropouts := recurrent.count_dropouts(module):
        lines.append(f"nn.Dropout, on a CPU by bl.ops.dropout with PyTorch's numbers: {dropouts}")
    if others:
        lines.append("not accelerated:")
        lines += _table([(other.name or "(itself)", other.reason) for other in others])
    return "\n".join(lines + layers_of_nn(module) + _unchanged(module) + _suggestion(module))


def summary(module: nn.Module) -> str:
    """What is accelerated of a module that was just attached; in a line, if it is not much."""
    others = not_accelerated(module)
    layers = [(name, chain.cell) for name, chain in named_chains(module).items()]
    sparse = pruned.sparse_layers(module)
    layers += [(name, f"pruned {layer.kind}") for name, layer in sparse.items()]
    if not layers and (of_nn := layers_of_nn(module)):
        text = f"BPPSA has nothing to attach: {of_nn[0]}"
    elif not layers:
        text = (
            "BPPSA accelerates no layer of this model (it supports nn.RNN, nn.GRU, nn.LSTM and "
            "pruned Conv2d and Linear layers)"
        )
    else:
        counts = ", ".join(_counts(module, len(sparse), others))
        text = f"BPPSA accelerates {counts}{_listed(': ', layers)}"
    more = _suggestion(module)
    left = _listed("Not accelerated: ", [(other.name, other.reason) for other in others])
    return ". ".join(filter(None, (text, left, *more, "Details: bl.explain(model)")))


def not_accelerated(module: nn.Module) -> list[NotAccelerated]:
    """The modules that look like chains or pruned layers but keep PyTorch's path, and why."""
    rows = []
    inside: set[nn.Module] = set()  # of stacks that were listed
    scanned = inside_of_stacks(named_chains(module).values())
    for name, child in module.named_modules():
        if child in scanned or replacement_of(child, Chain):
            continue
        reason = None
        if recurrent.is_candidate(child):
            reason = recurrent.unsupported(child) or "not attached"
            reason = "; ".join(filter(None, (reason, recurrent.cost_of_loop(child))))
        elif depth.is_candidate(child) and child not in inside:
            inside |= set(child.modules())
            reason = _stack_reason(name, child)
        elif pruned.is_candidate(child) and replacement_of(child, Replacement) is None:
            reason = pruned.unsupported(child) or "not attached"
        if reason is not None:
            rows.append(NotAccelerated(name, child, reason))
    return rows


def _stack_reason(name: str, stack: nn.Module) -> str:
    if replacement_of(stack, pruned.LayerStack):
        return "nn.Sequential is scanned only on request; its pruned layers are listed above"
    return depth.unsupported(stack) or (
        f"nn.Sequential is scanned only on request: algorithm={{{name!r}: 'blelloch'}}; on few "
        "cores this is slower"
    )


def _counts(module: nn.Module, sparse: int, others: Sequence[NotAccelerated]) -> list[str]:
    """How many layers of each kind are accelerated, of how many; `sparse` of the pruned ones."""
    chains = named_chains(module).values()
    stacks = sum(isinstance(chain, depth.FeedforwardChain) for chain in chains)
    parts = [f"{stacks} stack{'s' * (stacks != 1)} of layers"] if stacks else []
    for kind, family, running, attached in (
        ("pruned", pruned, sparse, len(pruned.sparse_layers(module))),
        ("recurrent", recurrent, len(chains) - stacks, len(chains) - stacks),
    ):
        total = attached + sum(family.is_candidate(other.module) for other in others)
        if total:
            parts.append(f"{running} of {total} {kind} layers")
    return parts


def layers_of_nn(module: nn.Module) -> list[str]:
    """How many there are of each layer of `bl.nn`: a line, or none."""
    kinds = Counter(type(m).__name__ for m in module.modules() if isinstance(m, own.Recurrent))
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return [f"layers of bl.nn, accelerated by themselves: {listed}"] if listed else []


def _unchanged(module: nn.Module) -> list[str]:
    kinds = Counter(
        type(child).__name__
        for child in module.modules()
        if not recurrent.is_candidate(child)
        and not isinstance(child, own.Recurrent)
        and not pruned.is_candidate(child)
        and next(child.parameters(recurse=False), None) is not None
    )
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return [f"other layers (unchanged): {listed}"] if listed else []


def _suggestion(module: nn.Module) -> list[str]:
    """How threads and plans could fit this machine better, where that is likely: lines, or none."""
    on_cpu = (next(chain.module.parameters(), None) for chain in named_chains(module).values())
    if not any(weight is not None and weight.is_cpu for weight in on_cpu):
        return []
    return [line.rstrip(".") for line in (crowded(), suggestion()) if line is not None]


def _listed(title: str, items: Sequence[tuple[str, str]]) -> str:
    """Up to three in a line, more in a line each."""
    named = [f"{name or '(itself)'} ({what})" for name, what in items]
    if not named:
        return ""
    return title + (", ".join(named) if len(named) <= 3 else "".join(f"\n  {n}" for n in named))


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    padded = ((cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return ["  " + "  ".join(row).rstrip() for row in padded]


def _algorithm(plan: Plan) -> str:
    if plan.algorithm == "chunked":
        return f"chunked ({plan.chunk} steps)"
    if plan.algorithm == "speculative":
        return f"speculative ({plan.windows} windows)"
    return f"blelloch ({plan.levels} levels)" if plan.algorithm == "blelloch" else plan.algorithm


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"

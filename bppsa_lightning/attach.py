"""Finds the chains of a module; puts them into scan mode and back; explains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import nn

from bppsa_lightning import explain as tables
from bppsa_lightning import planner, pruned
from bppsa_lightning._replacement import Chain, LeftAlone
from bppsa_lightning.depth import stack as feedforward
from bppsa_lightning.depth.stack import FeedforwardChain
from bppsa_lightning.recurrent import RecurrentChain
from bppsa_lightning.recurrent import support as refusal

_RECURRENT = (nn.RNNBase, nn.RNNCellBase)


def attach(module: nn.Module, algorithm: str | Mapping[str, str] = "auto") -> list[Chain]:
    """Puts every chain of a module into scan mode: exact gradients, by a scan over Jacobians.

    Pruned layers (`nn.Conv2d` and `nn.Linear` with a mask of `torch.nn.utils.prune`) then compute
    forward and gradients of their surviving weights only, where that is faster; `explain` lists
    them.

    Works on any `nn.Module`, with or without Lightning. Parameter names, the state_dict, hooks,
    device placement and (beyond rounding) the results of forward stay as they are. Attaching
    twice is attaching once, with the newer algorithm.

    Args:
        module: searched with all its submodules.
        algorithm: "auto" (the planner chooses), "linear", "chunked" or "blelloch"; or a dict of
            dotted names and one of these each. A name is that of a chain, or of a module that
            holds chains; the longest name that covers a chain decides, "" covers all, and a chain
            that none covers gets "auto": ``{"": "linear", "encoder": "auto"}``. The attribute
            ``algorithm`` of a chain may be set afterwards, too. Stacks of layers (nn.Sequential)
            are chains over depth where "linear" or "blelloch" is asked for; otherwise they are
            left to PyTorch.

    Returns:
        The chains found, in the order of ``module.named_modules()``; empty if there is none.

    Raises:
        TypeError, ValueError: `module` is no nn.Module, an algorithm is unknown, or a name holds
            no chain. Nothing is attached then.
    """
    _check_module(module)
    chains: dict[str, Chain] = {}
    inside: set[nn.Module] = set()
    for name, child in module.named_modules():
        chain = _chain_of(child)
        if chain is None and isinstance(child, nn.RNNBase) and refusal.of_module(child) is None:
            chain = RecurrentChain(name, child)
        if chain is None and child not in inside and _is_chain_over_depth(child):
            assert isinstance(child, nn.Sequential)
            chain = FeedforwardChain(name, child)
        if isinstance(chain, FeedforwardChain):
            inside |= set(child.modules())
        if chain is not None:
            chains[name] = chain
    found = []
    for (name, chain), chosen in zip(
        chains.items(), _algorithms(module, chains, algorithm), strict=True
    ):
        chain.name, chain.algorithm = name, chosen
        if isinstance(chain, FeedforwardChain) and chosen not in feedforward.ALGORITHMS:
            chain.detach()
            continue
        chain.attach()
        found.append(chain)
    pruned.attach_layers(module, _inside_of_stacks(found))
    return found


def _inside_of_stacks(chains: list[Chain]) -> set[nn.Module]:
    """The modules whose forwards chains over depth take over."""
    stacks = [chain.module for chain in chains if isinstance(chain, FeedforwardChain)]
    return {child for stack in stacks for child in stack.modules()}


def check_algorithm(algorithm: str | Mapping[str, str]) -> None:
    """Raises TypeError or ValueError unless `algorithm` is one, or a dict of names and algorithms.

    Whether a module has these names is seen by `attach`.
    """
    if not isinstance(algorithm, Mapping):
        return planner.check_algorithm(algorithm, None)
    for name, value in algorithm.items():
        if not isinstance(name, str):
            raise TypeError(
                f"algorithm: found the key {name!r}, wanted the dotted name of a module, or ''"
            )
        planner.check_algorithm(value, None)


def _algorithms(
    module: nn.Module, chains: Mapping[str, Chain], algorithm: str | Mapping[str, str]
) -> list[str]:
    """The algorithm of each chain."""
    check_algorithm(algorithm)
    if isinstance(algorithm, str):
        return [algorithm] * len(chains)
    modules = dict(module.named_modules(remove_duplicate=False))
    found = dict.fromkeys(chains, "auto")
    for name in sorted(algorithm, key=len):
        inside = set(modules[name].modules()) if name in modules else set()
        covered = [own for own, chain in chains.items() if chain.module in inside]
        if not covered and name:
            raise ValueError(
                f"algorithm: found the name {name!r}, wanted '' or the name of a chain or of a "
                f"module that holds one; the chains are {', '.join(map(repr, chains)) or 'none'}"
            )
        found |= dict.fromkeys(covered, algorithm[name])
    return list(found.values())


def detach(module: nn.Module) -> None:
    """Takes a module's chains out of scan mode, its pruned layers too: as it was before `attach`.

    Raises:
        TypeError: `module` is no nn.Module.
    """
    _check_module(module)
    for chain in attached(module):
        chain.detach()
    pruned.detach_layers(module)


def attached(module: nn.Module) -> list[Chain]:
    """The chains of a module that are in scan mode now."""
    return [chain for _, chain in named_chains(module)]


def named_chains(module: nn.Module) -> list[tuple[str, Chain]]:
    """The chains that are in scan mode now, with the names that their modules have in `module`."""
    return [(name, c) for name, child in module.named_modules() if (c := _chain_of(child))]


def left_alone(module: nn.Module) -> list[LeftAlone]:
    """The modules that look like chains but keep PyTorch's path, each with its reason."""
    found = []
    inside: set[nn.Module] = set()
    scanned = _inside_of_stacks(attached(module))
    for name, child in module.named_modules():
        if child in scanned:
            continue
        if isinstance(child, _RECURRENT) and _chain_of(child) is None:
            reason = refusal.of_module(child) or "not attached"
            found.append(LeftAlone(name, child, reason))
        elif isinstance(child, nn.Sequential) and len(child) > 1 and child not in inside:
            if _chain_of(child) is None:
                found.append(LeftAlone(name, child, _why_stack_is_left(child)))
            inside |= set(child.modules())
        elif "weight_mask" in child._buffers and pruned.stand_in_of(child) is None:
            found.append(LeftAlone(name, child, pruned.of_module(child) or "not attached"))
    return found


def _is_chain_over_depth(module: nn.Module) -> bool:
    return feedforward.is_stack(module) and feedforward.refusal(module) is None  # type: ignore


def _why_stack_is_left(module: nn.Sequential) -> str:
    if not feedforward.is_stack(module):
        return "its forward has been replaced"
    if isinstance(pruned.stand_in_of(module), pruned.LayerStack):
        return "no scan over depth was asked for; its pruned layers are listed above"
    return feedforward.refusal(module) or (
        "no scan over depth was asked for: there products of Jacobians take more work than "
        "back-propagation, and PyTorch walks the layers; ask for 'linear' or 'blelloch' to scan it"
    )


def explain(module: nn.Module) -> str:
    """A table of a module's chains and their plans, and what was left alone, and why.

    T, B and the plan are those of the last call; before the first they read "?". A module that is
    not attached is described as it stands: everything left alone.

    Returns:
        Text for print().

    Raises:
        TypeError: `module` is no nn.Module.
    """
    _check_module(module)
    chains = named_chains(module)
    lines = [f"{len(chains)} chain{'' if len(chains) == 1 else 's'} in {type(module).__name__}"]
    if chains:
        lines += _table([tables.CHAINS, *tables.of_chains(chains)])
    for name, chain in chains:
        if chain.handed_over:
            lines.append(
                f"{name or '(itself)'}: {chain.handed_over} of {chain.calls + chain.handed_over} "
                f"calls left to PyTorch; last: {chain.reason or 'scanned again since'}"
            )
        lines += [f"{name or '(itself)'}: {line.strip()}" for line in chain.details()]
    rows = tables.of_layers(pruned.sparse_layers(module))
    lines += _table([tables.LAYERS, *rows]) if rows else []
    alone = left_alone(module)
    if alone:
        lines.append("left to PyTorch:")
        lines += _table([(item.name or "(itself)", item.reason) for item in alone])
    others = Counter(
        type(child).__name__
        for child in module.modules()
        if not isinstance(child, _RECURRENT)
        and "weight_mask" not in child._buffers
        and next(child.parameters(recurse=False), None) is not None
    )
    if others:
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(others.items()))
        lines.append(f"other layers, nothing to scan: {listed}")
    return "\n".join(lines)


def _chain_of(module: nn.Module) -> Chain | None:
    forward = module.__dict__.get("forward")
    return forward if isinstance(forward, Chain) else None


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    padded = ((cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return ["  " + "  ".join(row).rstrip() for row in padded]


def _check_module(module: object) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(f"module: found {type(module).__name__}, wanted a torch.nn.Module")

"""Finds what can be accelerated in a module, and puts it in place of PyTorch's forward and back."""

from collections.abc import Mapping

from torch import nn

from bppsa_lightning import depth, planner, pruned, recurrent
from bppsa_lightning._replacement import Replacement
from bppsa_lightning.chain import Chain, chain_of, named_chains


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
            ``algorithm`` of a chain may be set afterwards, too. It names the scan of a backward
            that is computed here. Whether a call is computed here, "auto" and the others decide
            alike: a call of a recurrent layer that PyTorch's own kernels were measured or
            estimated to compute faster goes to them whatever was asked for, and `explain` says so.
            Stacks of layers (nn.Sequential) are chains over depth where "linear" or "blelloch" is
            asked for; otherwise they are left to PyTorch.

    Returns:
        The chains found, in the order of ``module.named_modules()``; empty if there is none.

    Raises:
        TypeError, ValueError: `module` is no nn.Module, an algorithm is unknown, or a name holds
            no chain. Nothing is attached then.
    """
    check_module(module)
    chains = _find_chains(module)
    return _attach(module, chains, _algorithms(module, chains, algorithm))[0]


def attach_missing(
    module: nn.Module, algorithm: str | Mapping[str, str] = "auto"
) -> tuple[list[Chain], list[Replacement]]:
    """As `attach`, but what is attached already stays as it is, with its own algorithm.

    Returns:
        All attached chains, as `attach`; and the replacements that this call attached.
    """
    already = {id(chain): chain.algorithm for _, chain in named_chains(module)}
    chains = _find_chains(module)
    algorithms = _algorithms(module, chains, algorithm)
    for name, chain in chains.items():
        algorithms[name] = already.get(id(chain), algorithms[name])
    attached, layers = _attach(module, chains, algorithms)
    return attached, [*(chain for chain in attached if id(chain) not in already), *layers]


def detach(module: nn.Module) -> None:
    """Takes a module's chains out of scan mode, its pruned layers too: as it was before `attach`.

    Raises:
        TypeError: `module` is no nn.Module.
    """
    check_module(module)
    for _, chain in named_chains(module):
        chain.detach()
    pruned.detach_layers(module)


def _find_chains(module: nn.Module) -> dict[str, Chain]:
    """By name, those that are attached and those that could be."""
    chains: dict[str, Chain] = {}
    inside: set[nn.Module] = set()  # of stacks
    for name, child in module.named_modules():
        chain = chain_of(child)
        if chain is None and recurrent.unsupported(child) is None:
            chain = recurrent.replace(name, child)
        if chain is None and child not in inside and depth.unsupported(child) is None:
            chain = depth.replace(name, child)
        if isinstance(chain, depth.FeedforwardChain):
            inside |= set(child.modules())
        if chain is not None:
            chains[name] = chain
    return chains


def _attach(
    module: nn.Module, chains: Mapping[str, Chain], algorithms: Mapping[str, str]
) -> tuple[list[Chain], list[Replacement]]:
    """The chains that are attached now, and the pruned layers that this call attached."""
    attached = []
    for name, chain in chains.items():
        chain.name, chain.algorithm = name, algorithms[name]
        if chain.algorithm in chain.algorithms:
            chain.attach()
            attached.append(chain)
        else:
            chain.detach()
    return attached, pruned.attach_layers(module, inside_of_stacks(attached))


def inside_of_stacks(chains: list[Chain]) -> set[nn.Module]:
    """The modules whose forwards chains over depth take over."""
    stacks = [chain.module for chain in chains if isinstance(chain, depth.FeedforwardChain)]
    return {child for stack in stacks for child in stack.modules()}


def check_module(module: object) -> None:
    """Raises TypeError unless `module` is an nn.Module."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"module: found {type(module).__name__}, wanted a torch.nn.Module")


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
) -> dict[str, str]:
    """The algorithm of each chain."""
    check_algorithm(algorithm)
    if isinstance(algorithm, str):
        return dict.fromkeys(chains, algorithm)
    modules = dict(module.named_modules(remove_duplicate=False))
    algorithms = dict.fromkeys(chains, "auto")
    for name in sorted(algorithm, key=len):
        inside = set(modules[name].modules()) if name in modules else set()
        covered = [own for own, chain in chains.items() if chain.module in inside]
        if not covered and name:
            raise ValueError(
                f"algorithm: found the name {name!r}, wanted '' or the name of a chain or of a "
                f"module that holds one; the chains are {', '.join(map(repr, chains)) or 'none'}"
            )
        algorithms |= dict.fromkeys(covered, algorithm[name])
    return algorithms

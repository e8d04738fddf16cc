"""Finds what can be accelerated in a module, and puts it in place of PyTorch's forward and back."""

from collections.abc import Iterable, Mapping

from torch import nn
from torch.distributed import ProcessGroup

from bppsa_lightning import depth, pruned, recurrent
from bppsa_lightning._replacement import Made, Replacement, replacement_of, replacements
from bppsa_lightning.chain import Chain, named_chains
from bppsa_lightning.chain import check_algorithm as check_one
from bppsa_lightning.nn.base import Recurrent


def attach(
    module: nn.Module,
    algorithm: str | Mapping[str, str] = "auto",
    group: ProcessGroup | None = None,
    sharded: bool = False,
) -> list[Chain]:
    """Puts every chain of a module into scan mode: exact gradients, by a scan over Jacobians.

    Pruned layers (`nn.Conv2d` and `nn.Linear` with a mask of `torch.nn.utils.prune`) then compute
    forward and gradients of their surviving weights only, where that is faster; `explain` lists
    them. On a CPU, nn.Dropout beside recurrent layers (of `bl.nn`, too) draws the same numbers in
    less time.

    Works on any `nn.Module`, with or without Lightning. Parameter names, the state_dict, hooks,
    device placement and (beyond rounding) the results of forward stay as they are. Attaching
    twice is attaching once, with the newer algorithm. Of a subclass of nn.RNN, nn.GRU or nn.LSTM
    that overrides forward, the calls of ``super().forward`` are what is accelerated; while it is
    attached, its class is a subclass of its own one with the same name.

    Args:
        module: searched with all its submodules.
        algorithm: "auto" (the planner chooses), "linear", "chunked", "blelloch" or "speculative"
            (windows of time side by side, verified; "auto" does not choose it); or a dict of
            dotted names and one of these each. A name is that of a chain, or of a module that
            holds chains; the longest name that covers a chain decides, "" covers all, and a chain
            that none covers gets "auto": ``{"": "linear", "encoder": "auto"}``. The attribute
            ``algorithm`` of a chain may be set afterwards, too. What is named is obeyed. Only
            "auto" leaves calls of a recurrent layer to PyTorch: those that its own kernels were
            measured or estimated to compute faster, and on CUDA those of kernels that are not
            known to be right on this GPU. `explain` says so.
            Stacks of layers (nn.Sequential) are chains over depth where "linear" or "blelloch" is
            asked for; otherwise they are left to PyTorch.
        group: a process group of torch.distributed, over whose ranks recurrent layers are divided:
            each rank holds a span of time, in the order of ranks. All ranks call alike. See
            docs/ranks.md.
        sharded: whether layers are given, and give, this rank's span alone, and parameters get this
            rank's terms of their gradients, which are to be added up over the ranks; else all ranks
            are given the same input, and give the same output and gradients.

    Returns:
        The chains found, in the order of ``module.named_modules()``; empty if there is none.

    Raises:
        TypeError, ValueError: `module` is no nn.Module, an algorithm is unknown, a name holds no
            chain, `group` is no process group, or `sharded` without one. Nothing is attached then.
    """
    if group is not None and not isinstance(group, ProcessGroup):
        found = type(group).__name__
        raise TypeError(
            f"group: found {found}, wanted a process group of torch.distributed, or None"
        )
    if sharded and group is None:
        raise ValueError("sharded: found True, wanted False without a group")
    chains = attach_chains(module, algorithm, sharded=sharded)[0]
    divide(chains, group, sharded)
    return chains


def divide(
    chains: Iterable[Chain], group: ProcessGroup | None, sharded: bool = False, alike: bool = False
) -> None:
    """Divides chains over the ranks of a group; over none if that is None.

    Recurrent layers are divided over time, stacks over depth.

    Args:
        alike: whether random numbers are the same in all ranks, which is then looked after.
    """
    for chain in chains:
        if isinstance(chain, recurrent.RecurrentChain | depth.FeedforwardChain):
            chain.divide(group, sharded, alike)


def attach_chains(
    module: nn.Module,
    algorithm: str | Mapping[str, str],
    keep: bool = False,
    sharded: bool = False,
    before: Iterable[Replacement] = (),
) -> tuple[list[Chain], list[Replacement]]:
    """As `attach`; and says what is new.

    Args:
        keep: whether what is attached already stays as it is, with its own algorithm.
        sharded: whether stacks are this rank's part of one.
        before: detached ones, which are used again.

    Returns:
        All attached chains, as `attach`; and the replacements that this call attached.
    """
    check_module(module)
    already = list(named_chains(module).values())
    made = Made(before)
    chains = _find_chains(module, sharded, made)
    algorithms = _algorithms(module, chains, algorithm)
    attached = []
    for name, chain in chains.items():
        chain.name = name
        if not keep or chain not in already:
            chain.algorithm = algorithms[name]
        if chain.algorithm in chain.algorithms:
            chain.attach()
            attached.append(chain)
        else:
            chain.detach()
    new: list[Replacement] = [chain for chain in attached if chain not in already]
    new += recurrent.watch_cells(module, made)
    inside = inside_of_stacks(attached)
    accelerated = (*attached, *module.modules())
    if any(isinstance(one, recurrent.RecurrentChain | Recurrent) for one in accelerated):
        new += recurrent.attach_dropouts(module, inside, made)
    return attached, new + pruned.attach_layers(module, inside, made)


def detach(module: nn.Module) -> None:
    """Takes a module's chains out of scan mode, its pruned layers too: as it was before `attach`.

    Raises:
        TypeError: `module` is no nn.Module.
    """
    check_module(module)
    for replacement in replacements(module, Replacement).values():
        replacement.detach()


def _find_chains(module: nn.Module, sharded: bool, made: Made) -> dict[str, Chain]:
    """By name, those that are attached and those that could be."""
    chains: dict[str, Chain] = {}
    inside: set[nn.Module] = set()  # of stacks
    for name, child in module.named_modules():
        chain = replacement_of(child, Chain)
        if chain is None and recurrent.unsupported(child) is None:
            chain = made(recurrent.RecurrentChain, name, child)
        if chain is None and child not in inside and depth.unsupported(child, sharded) is None:
            chain = made(depth.FeedforwardChain, name, child)
        if isinstance(chain, depth.FeedforwardChain):
            inside |= set(child.modules())
        if chain is not None:
            chains[name] = chain
    return chains


def inside_of_stacks(chains: Iterable[Chain]) -> set[nn.Module]:
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
        return check_one(algorithm)
    for name, value in algorithm.items():
        if not isinstance(name, str):
            raise TypeError(
                f"algorithm: found the key {name!r}, wanted the dotted name of a module, or ''"
            )
        check_one(value)


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

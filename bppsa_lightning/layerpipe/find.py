"""The chain of layers in a model, and whether it can be divided."""

from collections.abc import Iterator, Sequence

from torch import nn

from bppsa_lightning.layerpipe.delays import spans


def find_chain(model: nn.Module, name: str | None = None) -> tuple[str, nn.Sequential]:
    """The `nn.Sequential` that is divided, and its dotted name in the model.

    Args:
        model: the user's module.
        name: which; by default the only one that lies in no other.

    Raises:
        ValueError: there is none of this name, none at all, or several.
    """
    if name is not None:
        found = dict(model.named_modules()).get(name)
        if not isinstance(found, nn.Sequential):
            what = "no module" if found is None else f"a {type(found).__name__}"
            raise ValueError(
                f"chain: found {what} at {name!r}, wanted the name of an nn.Sequential"
            )
        return name, found
    outermost = list(_outermost(model, ""))
    if len(outermost) != 1:
        names = ", ".join(repr(n) for n, _ in outermost) or "none"
        raise ValueError(
            f"chain: found {names} in {type(model).__name__}, wanted one nn.Sequential; "
            'name the one to divide: LayerPipeStrategy(chain="name")'
        )
    return outermost[0]


def _outermost(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Sequential]]:
    if isinstance(module, nn.Sequential):
        yield name, module
        return
    for child_name, child in module.named_children():
        yield from _outermost(child, f"{name}.{child_name}".lstrip("."))


def check(
    model: nn.Module, name: str, chain: nn.Sequential, processes: int, cuts: Sequence[int] | None
) -> None:
    """Refuses a chain that cannot be divided over so many processes.

    Args:
        model: the user's module.
        name: the chain's.
        chain: which lies in it.
        processes: how many there are.
        cuts: the user's, if they gave any.

    Raises:
        ValueError: as `check_whole`, `check_count` and `check_cuts`.
    """
    check_whole(model, name, chain)
    check_count(chain, name, processes)
    if cuts is not None:
        check_cuts(chain, cuts, processes)


def check_whole(model: nn.Module, name: str, chain: nn.Sequential) -> None:
    """Refuses a model with parameters outside its chain, or that would be trained otherwise.

    Raises:
        ValueError: there are parameters outside: no stage would train them; the chain's own
            forward is more than its layers, one after the other; or somebody waits for gradients
            to be accumulated, which no stage does by autograd.
    """
    if type(chain).forward is not nn.Sequential.forward:
        raise ValueError(
            f"chain: found {type(chain).__name__} at {name!r}, which overrides forward, wanted an "
            "nn.Sequential that calls its layers one after the other: stages call layers alone"
        )
    hooked = [n for n, p in chain.named_parameters() if p._post_accumulate_grad_hooks]
    if hooked:
        raise ValueError(
            f"chain: found a hook of register_post_accumulate_grad_hook on {name}.{hooked[0]}, "
            "wanted none: no stage would call it. One of register_hook is called"
        )
    check_frozen(name, beside(model, chain))


def beside(model: nn.Module, chain: nn.Sequential) -> list[tuple[str, nn.Parameter]]:
    """The parameters of a model outside its chain."""
    inside = {id(p) for p in chain.parameters()}
    return [(n, p) for n, p in model.named_parameters() if id(p) not in inside]


def check_frozen(name: str, parameters: Sequence[tuple[str, nn.Parameter]]) -> None:
    """Refuses parameters outside a chain that are to be trained, then or later.

    Raises:
        ValueError: naming the first of them.
    """
    outside = [n for n, p in parameters if p.requires_grad]
    if outside:
        raise ValueError(
            f"chain: found parameters outside of {name!r} ({', '.join(outside[:4])}"
            f"{', …' if len(outside) > 4 else ''}), wanted all of them inside: no stage would "
            "train them. Move their layers into the nn.Sequential, or freeze them"
        )


def check_count(chain: nn.Sequential, name: str, processes: int) -> None:
    """Refuses more processes than layers.

    Raises:
        ValueError: there are more.
    """
    if processes > len(chain):
        raise ValueError(
            f"devices: found {processes}, wanted at most {len(chain)}: the chain {name!r} has "
            f"{len(chain)} layers, and each process needs one"
        )


def check_cuts(chain: nn.Sequential, cuts: Sequence[int], processes: int) -> None:
    """Refuses cuts that do not fit the layers or the processes, and those through a shared weight.

    Raises:
        ValueError: naming `cuts`, what was found and what was wanted.
    """
    ranges = spans(cuts, len(chain))
    if len(ranges) != processes:
        raise ValueError(
            f"cuts: found {tuple(cuts)}, which makes {len(ranges)} stages, wanted {processes} "
            "stages, one for each process"
        )
    owner: dict[int, tuple[int, str]] = {}
    for stage, span in enumerate(ranges):
        for layer in span:
            for name, parameter in chain[layer].named_parameters():
                first = owner.setdefault(id(parameter), (stage, f"{layer}.{name}"))
                if first[0] != stage:
                    raise ValueError(
                        f"cuts: found the parameter {first[1]} of stage {first[0]} again as "
                        f"{layer}.{name} in stage {stage}, wanted shared parameters in one stage"
                    )


def parameters_outside(chain: nn.Sequential, name: str, span: range) -> dict[int, str]:
    """{id: dotted name in the model} of the parameters of all layers but some.

    Args:
        name: of the chain.
        span: the layers that are left out, those of a stage.
    """
    return {
        id(parameter): f"{name}.{index}.{key}"
        for index, layer in enumerate(chain)
        for key, parameter in layer.named_parameters()
        if index not in span
    }

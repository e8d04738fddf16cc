"""The recurrent layer of a network that is being trained: its windows, its time and its error.

The layer is measured by itself, on the input that the network gives it, and from the gradients that
the network's loss gives its results.
"""

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.utils import _pytree as pytree

import bppsa_lightning as bl
from bppsa_lightning.chain import named_chains
from bppsa_lightning.recurrent.layer import RecurrentChain
from experiments.benchmarks import timing
from experiments.benchmarks.trained_tasks import Task
from experiments.benchmarks.windows import WALK, WINDOWS, error

AUTO = "auto"
ALGORITHMS = {WALK: "linear", WINDOWS: "speculative", AUTO: "auto"}


def happened(network: nn.Module) -> dict[str, Any]:
    """What became of the windows of an attached network's last call, its backward included."""
    [chain] = (c for c in named_chains(network).values() if isinstance(c, RecurrentChain))
    memory, cut = chain._windows._memories[0], chain._windows._cuts[0]
    if cut is None or memory.report is None:
        return {"walked": memory.reason}
    return vars(memory.report).copy()


class Call(NamedTuple):
    """A recurrent layer within a network, for one sequence: its input, and its results' gradients.

    Attributes:
        layer: with the network's weights, attached to nothing.
        grads: of all its results; None of one that is not used.
    """

    layer: nn.RNNBase
    x: Tensor
    grads: list[Tensor | None]


def long_call(task: Task, network: nn.Module, T: int) -> Call:
    """With one held-out sequence, the same at every step of training."""
    other = task.network()
    other.load_state_dict(network.state_dict())
    [layer] = (m for m in other.modules() if isinstance(m, nn.RNNBase))
    inputs: list[Tensor] = []
    results: list[Tensor] = []

    def keep(layer: nn.Module, given: tuple[Tensor, ...], found: Any) -> None:
        inputs.append(given[0].detach())
        results.extend(pytree.tree_leaves(found))
        for result in results:
            result.retain_grad()

    x, y = task.draw(T, 1, Generator().manual_seed(1), True)
    bl.attach(other, ALGORITHMS[WALK])
    with layer.register_forward_hook(keep):
        task.loss(other(x), y).backward()
    bl.detach(other)
    return Call(layer, inputs[0], [r.grad for r in results])


def step_of(call: Call, algorithm: str | None) -> tuple[nn.Module, Callable[[], list[Tensor]]]:
    """A copy of the layer that knows nothing of windows yet; its results and gradients.

    Args:
        algorithm: None for PyTorch in float64.
    """
    layer = copy.deepcopy(call.layer)
    dtype = torch.float32 if algorithm else torch.float64
    bl.attach(layer, algorithm) if algorithm else layer.double()
    x = call.x.to(dtype, copy=True).requires_grad_()
    inputs = [x, *layer.parameters()]

    def run() -> list[Tensor]:
        for t in inputs:
            t.grad = None
        pairs = zip(pytree.tree_leaves(layer(x)), call.grads, strict=True)
        used = [(result, grad.to(dtype)) for result, grad in pairs if grad is not None]
        torch.autograd.backward(*map(list, zip(*used, strict=True)))
        return [*(result.detach() for result, _ in used), *(t.grad for t in inputs)]

    return layer, run


def seen_in_windows(call: Call) -> dict[str, Any]:
    """What becomes of the windows of a layer that knows nothing of them yet."""
    layer, run = step_of(call, ALGORITHMS[WINDOWS])
    run()
    return happened(layer)


def measure(call: Call, seconds: float) -> dict[str, Any]:
    """Medians and errors of all ways, and what became of the windows that were asked for."""
    layers, runs = {}, {}
    for way, algorithm in ALGORITHMS.items():
        layers[way], runs[way] = step_of(call, algorithm)
    exact = step_of(call, None)[1]()
    errors = {way: error(run(), exact) for way, run in runs.items()}
    seen = happened(layers[WINDOWS])

    def timed(run: Callable[[], list[Tensor]]) -> timing.Step:
        return lambda: timing.timed(torch.device("cpu"), step=run)

    ways = {way: timed(run) for way, run in runs.items()}
    # A look is one of few calls after windows did not pay; it is no median of three.
    turns = timing.take_turns(ways, seconds, most=50, least=3, shortest=3)
    return {
        "seconds": {way: timing.medians(turn)["step"] for way, turn in turns.items()},
        "gain": timing.ratios(turns[WALK], turns[WINDOWS])["step"],
        "auto_over_walk": timing.ratios(turns[AUTO], turns[WALK])["step"],
        "error": errors,
        "happened": seen,
    }

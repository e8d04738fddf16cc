"""A stack of layers as a chain over depth: nn.Sequential, its backward by a scan over Jacobians.

n layers, B samples, N numbers of the largest state a sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from bppsa_lightning import planner
from bppsa_lightning._replacement import Chain
from bppsa_lightning.depth import layers
from bppsa_lightning.depth.layers import Layer
from bppsa_lightning.jacobians.device_copies import why_not
from bppsa_lightning.jacobians.product import DEFAULT_BUDGET
from bppsa_lightning.ops.layers import LayerScan, Step
from bppsa_lightning.ops.log import record_scan
from bppsa_lightning.pruned import LayerStack

ALGORITHMS = ("linear", "blelloch")
_DTYPES = (torch.float32, torch.float64)
_KEPT_SCANS = 16  # runs times shapes of input; beyond, all are planned anew


def modules_of(sequential: nn.Module) -> Iterator[nn.Module]:
    """The layers of a stack in order, nested stacks opened."""
    for module in sequential._modules.values():  # children() leaves out what comes twice
        assert module is not None
        if is_stack(module) and not any(
            (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks,
             module._backward_pre_hooks)
        ):  # fmt: skip
            yield from modules_of(module)
        else:
            yield module


def is_stack(module: nn.Module) -> bool:
    """Whether a module only calls its children one after another."""
    plain = type(module).forward is nn.Sequential.forward
    return isinstance(module, nn.Sequential) and plain and _own_forward(module)


def _own_forward(module: nn.Module) -> bool:
    forward = module.__dict__.get("forward")
    return forward is None or isinstance(forward, FeedforwardChain | LayerStack)


def refusal(sequential: nn.Sequential) -> str | None:
    """Why a stack holds no chain: no two neighbours that have Jacobians. None if it holds one."""
    reasons = [(type(m).__name__, layers.refusal(m)) for m in modules_of(sequential)]
    if any(a is None and b is None for (_, a), (_, b) in zip(reasons, reasons[1:], strict=False)):
        return None
    named = [f"{name}: {reason}" for name, reason in reasons if reason]
    why = "; ".join(dict.fromkeys(named)) or "a single layer"
    return f"no two neighbouring layers with known Jacobians ({why})"


class FeedforwardChain(Chain):
    """The forward of an attached nn.Sequential.

    Its maximal runs of layers with known Jacobians are chains over depth: their backward is
    "linear", layer by layer with PyTorch's own kernels, or "blelloch", `levels` levels of products
    of sparse Jacobians. Other layers between them run as they are.

    Attributes:
        levels: up-sweep levels of "blelloch"; products that do not pay off in memory (`budget`) are
            walked. 2 as in the paper (arXiv:1907.10134, section 5.2).
        budget: bytes that plans and values of a run's products may take together.
        scans: the plans of each run, for each shape of its input.
    """

    cell = "layers"

    def __init__(self, name: str, module: nn.Sequential, algorithm: str = "linear") -> None:
        super().__init__(name, module, algorithm)
        self.levels = 2
        self.budget: int | None = DEFAULT_BUDGET
        self.stack = str(sum(1 for _ in modules_of(module)))
        self._layers: dict[Any, Layer] = {}
        self.scans: dict[Any, LayerScan] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_layers": {}, "scans": {}}

    def __call__(self, input: Any) -> Any:
        modules = list(modules_of(self.module))
        reason = _refusal_of_call(input, self.algorithm)
        scanned = False
        i = 0
        while i < len(modules):
            j = i if reason else _end_of_run(modules, i, input)
            if j - i >= 2:
                input, scanned = self._run(modules[i:j], i, input), True
                i = j
            else:
                input = modules[i](input)
                i += 1
        self.count(reason or (None if scanned else "no run of two layers with known Jacobians"))
        return input

    def _run(self, modules: Sequence[nn.Module], first: int, x: Tensor) -> Tensor:
        parameters = []
        for module in modules:
            for hook in module._forward_pre_hooks.values():  # pruning: puts the weight together
                hook(module, (x,))
            parameters.append(layers.parameters_of(module))
        flat = [p for group in parameters for p in group]
        if not (torch.is_grad_enabled() and any(t.requires_grad for t in (x, *flat))):
            for module in modules:
                x = module(x)
            return x
        return _Run.apply(self, modules, first, [len(group) for group in parameters], x, *flat)

    def layer(self, position: int, module: nn.Module, input_size: tuple[int, ...]) -> Layer:
        """The layer at a position of the stack, with the patterns it has built so far."""
        key = (position, input_size)
        found = self._layers.get(key)
        if found is None or found.module is not module:
            found = self._layers[key] = layers.layer_of(module, input_size)
        return found

    def scan_of(
        self, first: int, run: Sequence[Layer], parameters: Sequence[Sequence[Tensor]], x: Tensor
    ) -> LayerScan:
        """The plans of a run's products, made anew where a pattern has changed."""
        levels = min(self.levels, (len(run) - 1).bit_length())
        B = x.shape[0]
        key = (first, len(run), tuple(x.shape[1:]), x.dtype, levels, self.budget)
        patterns = [layer.pattern(p) for layer, p in zip(run, parameters, strict=True)]
        known = self.scans.get(key)
        if (
            known is None
            or known.batch < B
            or any(a is not b for a, b in zip(known.patterns, patterns, strict=True))
        ):
            if len(self.scans) >= _KEPT_SCANS:
                self.scans.clear()
                self._layers.clear()
            self.scans[key] = LayerScan.of(patterns, levels, self.budget, x.dtype, B)
        return self.scans[key]

    def plan(self) -> planner.Plan | None:
        if self.shape is None:
            return None
        if self.algorithm == "blelloch":
            reason = "as asked for: products of sparse Jacobians by fixed plans"
            return planner.Plan("blelloch", levels=self.levels, reason=reason)
        return planner.Plan("linear", reason="as asked for: layer by layer")

    def details(self) -> list[str]:
        """What the plans of the last calls say of each product."""
        return [line for scan in self.scans.values() for line in scan.describe().splitlines()]


def _refusal_of_call(input: Any, algorithm: str) -> str | None:
    if algorithm not in ALGORITHMS:
        return f"algorithm {algorithm!r}: over depth, 'linear' or 'blelloch' can be asked for"
    if not isinstance(input, Tensor):
        return f"input is a {type(input).__name__}, no tensor"
    missing = why_not(input.device)
    if missing is not None:
        return f"input is on {input.device}: {missing}"
    if input.dtype not in _DTYPES or torch.is_autocast_enabled(input.device.type):
        return f"dtype {input.dtype}, or autocast"
    if torch.compiler.is_compiling():
        return "inside torch.compile"
    if torch._C._are_functorch_transforms_active():
        return "inside a torch.func transform"
    if forward_ad._current_level >= 0:
        return "inside forward-mode differentiation"
    return None


def _end_of_run(modules: Sequence[nn.Module], i: int, x: Any) -> int:
    """The first layer from i on that cannot belong to the run that begins at i with x."""
    if not isinstance(x, Tensor) or x.dtype not in _DTYPES or not x.numel():
        return i
    dims = x.dim()
    while i < len(modules) and layers.refusal(modules[i]) is None:
        if not layers.fits_input(modules[i], dims):
            break
        if any(p.dtype != x.dtype for p in modules[i].parameters(recurse=False)):
            break
        dims = 2 if isinstance(modules[i], nn.Flatten) else dims
        i += 1
    return i


class _Run(torch.autograd.Function):
    """A run of layers: forward layer by layer, backward by the chain's algorithm."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        chain: FeedforwardChain,
        modules: Sequence[nn.Module],
        first: int,
        counts: Sequence[int],
        x: Tensor,
        *parameters: Tensor,
    ) -> Tensor:
        run, states, extras = [], [x], []
        for k, (module, own) in enumerate(zip(modules, _groups(parameters, counts), strict=True)):
            layer = chain.layer(first + k, module, tuple(x.shape[1:]))
            x, extra = layer.forward(x, own)
            layer.output_size = tuple(x.shape[1:])
            run.append(layer)
            states.append(x)
            extras.append(extra)
        ctx.chain, ctx.run, ctx.first, ctx.counts = chain, run, first, counts
        ctx.output_size = x.shape
        # Fixed now: the chain may be told otherwise before the backward.
        ctx.levels = chain.levels if chain.algorithm == "blelloch" else 0
        ctx.save_for_backward(*states[:-1], *extras, *parameters)
        numbers = max(math.prod(s.shape[1:]) for s in states)
        chain.shape, chain.device = (len(run), x.shape[0], numbers), x.device
        return x.view_as(x) if x is states[0] else x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        n = len(ctx.run)
        saved = ctx.saved_tensors
        states, extras, parameters = saved[:n], saved[n : 2 * n], saved[2 * n :]
        groups = _groups(parameters, ctx.counts)
        needs_x, *needs = ctx.needs_input_grad[4:]
        if torch.is_grad_enabled():  # for a gradient of the gradient
            inputs = (states[0], *parameters)
            needed = ctx.needs_input_grad[4:]
            grads = _differentiable(ctx.run, inputs, needed, extras, groups, grad)
            return (None,) * 4 + grads
        if ctx.levels:
            states_grads = _scanned(ctx, states, extras, groups, grad, needs_x)
        else:
            states_grads = _walked(ctx.run, states, extras, groups, grad, needs_x)
        chain = ctx.chain
        plan = planner.Plan("blelloch" if ctx.levels else "linear", levels=ctx.levels)
        T, B, N = chain.shape
        record_scan(chain.cell, T, B, N, plan)
        found: list[Tensor | None] = []
        wanted = iter(needs)
        for layer, x, own, g in zip(ctx.run, states, groups, states_grads[1:], strict=True):
            found += layer.parameter_grads(g, x, own, [next(wanted) for _ in own])
        return (None, None, None, None, states_grads[0] if needs_x else None, *found)


def _groups(parameters: Sequence[Tensor], counts: Sequence[int]) -> list[Sequence[Tensor]]:
    """The parameters of each layer."""
    ends = [sum(counts[: k + 1]) for k in range(len(counts))]
    return [parameters[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _walked(
    run: Sequence[Layer],
    states: Sequence[Tensor],
    extras: Sequence[Any],
    groups: Sequence[Sequence[Tensor]],
    grad: Tensor,
    needs_x: bool,
) -> list[Tensor]:
    """The gradient at every state, layer by layer."""
    found = [grad]
    for k in reversed(range(len(run))):
        if k == 0 and not needs_x:
            found.append(states[0])  # not asked for
        else:
            found.append(run[k].vjp(found[-1], states[k], extras[k], groups[k]))
    return found[::-1]


def _scanned(
    ctx: Any,
    states: Sequence[Tensor],
    extras: Sequence[Any],
    groups: Sequence[Sequence[Tensor]],
    grad: Tensor,
    needs_x: bool,
) -> list[Tensor]:
    """The gradient at every state that somebody asks for, by up-sweep and down-sweep.

    Where the run's input needs none, the chain begins behind the first layer: its Jacobian would
    go into products, often the largest of all.
    """
    first = 0 if needs_x else 1
    scan = ctx.chain.scan_of(ctx.first + first, ctx.run[first:], groups[first:], states[first])
    B = grad.shape[0]
    sizes = [*(s.shape for s in states), ctx.output_size]

    def step(k: int) -> Step:
        layer, of_call = ctx.run[k], (states[k], extras[k], groups[k])
        values = cache(lambda: layer.values(*of_call))
        return Step(lambda g: layer.apply(g, *of_call, values), values)

    steps = [step(k) for k in range(first, len(ctx.run))]
    grads = [None] * len(steps) + [grad.reshape(B, -1).t()]
    # Of a layer without parameters, nobody asks for the output's gradient.
    wanted = {k + 1 - first for k, own in enumerate(groups) if own} | {0}
    found = scan.run(steps, grads, wanted)
    known = [
        x if g is None else g.t().reshape(size)
        for g, size, x in zip(found, sizes[first:], [*states[first:], grad], strict=True)
    ]
    return [*states[:first], *known]  # in front: what is not asked for


def _differentiable(
    run: Sequence[Layer],
    inputs: Sequence[Tensor],
    needed: Sequence[bool],
    extras: Sequence[Any],
    groups: Sequence[Sequence[Tensor]],
    grad: Tensor,
) -> tuple[Tensor | None, ...]:
    """The gradients of inputs, x first, by PyTorch's own path, with a graph behind them."""
    y = inputs[0]
    for layer, extra, own in zip(run, extras, groups, strict=True):
        y = layer.again(y, extra, own)
    wanted = [t for t, need in zip(inputs, needed, strict=True) if need]
    grads = iter(torch.autograd.grad(y, wanted, grad, create_graph=True, allow_unused=True))
    return tuple(next(grads) if need else None for need in needed)

"""A stack of layers as a chain over depth: nn.Sequential, its backward by a scan over Jacobians.

n layers, B samples, N numbers of the largest state a sample.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.module import _has_any_global_hook

from bppsa_lightning import planner
from bppsa_lightning._context import (
    OVERRIDES_FORWARD,
    has_hooks,
    masks_written,
    overrides_forward,
    recorded,
    unsupported_transform,
)
from bppsa_lightning._library import missing_jacobian_kernels
from bppsa_lightning._replacement import Replacement
from bppsa_lightning._scripting import Scriptable
from bppsa_lightning.chain import Chain
from bppsa_lightning.depth import layers
from bppsa_lightning.depth.autograd import Run, RunFunction
from bppsa_lightning.depth.divided import DividedStack
from bppsa_lightning.depth.divided_run import RankRun, RankRunFunction
from bppsa_lightning.depth.layer import DepthLayer, LayerCall
from bppsa_lightning.depth.scan import LayerScan
from bppsa_lightning.jacobians.product import DEFAULT_BUDGET
from bppsa_lightning.ops._checks import FLOATS
from bppsa_lightning.ranks import summed

_KEPT_SCANS = 16  # runs times shapes of input; beyond, all are planned anew


def modules_of(sequential: nn.Module) -> Iterator[nn.Module]:
    """The layers of a stack in order, nested stacks opened."""
    for module in sequential._modules.values():  # children() leaves out what comes twice
        assert module is not None
        if is_stack(module) and not has_hooks(module):
            yield from modules_of(module)
        else:
            yield module


def is_stack(module: nn.Module) -> bool:
    """Whether a module only calls its children one after another."""
    return isinstance(module, nn.Sequential) and not overrides_forward(
        module, nn.Sequential, Replacement
    )


def is_candidate(module: nn.Module) -> bool:
    """Whether a module may be a stack of layers."""
    return isinstance(module, nn.Sequential) and len(module) > 1


def unsupported(module: nn.Module, sharded: bool = False) -> str | None:
    """Why a module is no chain over depth; None if two neighbours in it have Jacobians.

    Args:
        sharded: whether it is a rank's part of a stack, which may be a single layer.
    """
    if not isinstance(module, nn.Sequential):
        return f"{type(module).__name__}: no nn.Sequential"
    if not is_stack(module):
        return OVERRIDES_FORWARD
    reasons = [(type(m).__name__, layers.unsupported(m)) for m in modules_of(module)]
    if any(a is None and b is None for (_, a), (_, b) in pairwise(reasons)):
        return None
    if sharded and all(reason is None for _, reason in reasons):
        return None
    named = [f"{name}: {reason}" for name, reason in reasons if reason]
    why = "; ".join(dict.fromkeys(named)) or "a single layer"
    return f"no two neighbouring layers with known Jacobians ({why})"


class FeedforwardChain(Scriptable, Chain):
    """The forward of an attached nn.Sequential.

    Its maximal runs of layers with known Jacobians are chains over depth: their backward is
    "linear", layer by layer with PyTorch's own kernels, or "blelloch", `levels` levels of products
    of sparse Jacobians. Other layers between them run as they are, and so do those that cannot
    begin a run: which change its input, or let others change it before the backward.

    Attributes:
        levels: up-sweep levels of "blelloch"; products that do not pay off in memory (`budget`) are
            walked. 2 as in the paper (arXiv:1907.10134, section 5.2).
        budget: bytes that plans and values of a run's products may take together.
        scans: the plans of each run, for each shape of its input.
    """

    cell = "layers"
    algorithms = ("linear", "blelloch")

    lasts = False  # its products of Jacobians are large

    def __init__(self, name: str, module: nn.Sequential, algorithm: str = "linear") -> None:
        super().__init__(name, module, algorithm)
        self.levels = 2
        self.budget: int | None = DEFAULT_BUDGET
        self.stack = str(sum(1 for _ in modules_of(module)))
        self._layers: dict[Any, DepthLayer] = {}
        self.scans: dict[Any, LayerScan] = {}
        self.divided: DividedStack | None = None

    def divide(self, group: Any, sharded: bool = False, alike: bool = False) -> None:
        """Divides layers over the ranks of a process group, None over none: as `DividedStack`."""
        self.divided = None if group is None else DividedStack(self.name, group, sharded)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_layers": {}, "scans": {}}

    def __call__(self, input: Any) -> Any:
        modules = list(modules_of(self.module))
        reason = _unsupported_call(input, self.algorithm)
        if self.divided is not None and self.divided.sharded:
            return self._sharded(modules, input, reason)
        if reason is None and _has_any_global_hook():
            reason = "a global hook looks at every module's calls"
        scanned = False
        i = 0
        while i < len(modules):
            j = i if reason else _end_of_run(modules, i, input)
            if j - i >= 2 and layers.can_begin(modules[i]):
                input, scanned = self._run(modules[i:j], i, input), True
                i = j
            else:
                input = modules[i](input)
                i += 1
        self.record_call(
            reason or (None if scanned else "no run of two layers with known Jacobians")
        )
        return input

    def _run(self, modules: Sequence[nn.Module], first: int, x: Tensor) -> Tensor:
        parameters = []
        for module in modules:
            masks_written(module, x)
            parameters.append(layers.parameters_of(module))
        flat = [p for group in parameters for p in group]
        if not (torch.is_grad_enabled() and any(t.requires_grad for t in (x, *flat))):
            for module in modules:
                x = module(x)
            return x
        run = Run(self, modules, first, [len(group) for group in parameters], self._new_plan())
        if self.divided is not None and self.divided.exchange.size > 1:
            return self._over_ranks(self.divided, run, x, flat)
        return RunFunction.apply(run, x, *flat)

    def _new_plan(self) -> planner.Plan:
        over = "" if self.divided is None else f", over {self.divided.exchange.size} ranks"
        if self.algorithm != "blelloch":
            return planner.Plan("linear", reason=f"as asked: layer by layer{over}")
        reason = f"as asked: products of sparse Jacobians by fixed plans{over}"
        return planner.Plan("blelloch", levels=self.levels, reason=reason)

    def _over_ranks(
        self, divided: DividedStack, run: Run, x: Tensor, parameters: Sequence[Tensor]
    ) -> Tensor:
        """A run whose layers all ranks hold; each computes its own."""
        divided.begin(x, run.plan.algorithm, True)
        own = divided.layers_of(run.modules, run.first, x)
        random = any(isinstance(m, _DropoutNd) and m.training and m.p for m in run.modules)
        before = sum(run.counts[: own.start])
        until = before + sum(run.counts[own])
        mine = run._replace(
            modules=run.modules[own], first=run.first + own.start, counts=run.counts[own]
        )
        given = summed(divided.exchange, tuple(parameters))
        call = RankRun(mine, divided, run.first, x.requires_grad, random)
        return RankRunFunction.apply(call, x, *given[before:until], *given[:before], *given[until:])

    def _sharded(self, modules: Sequence[nn.Module], x: Any, reason: str | None) -> Tensor:
        """A call whose layers are this rank's part of a stack."""
        divided = self.divided
        assert divided is not None
        if reason is None and divided.exchange.is_first and x.numel():
            end = _end_of_run(modules, 0, x)
            if end < len(modules):
                reason = f"layer {end} ({type(modules[end]).__name__}) does not fit its input"
        reasons = (f"{type(m).__name__}: {why}" for m in modules if (why := layers.unsupported(m)))
        reason = next(reasons, reason)
        if reason is not None:
            raise ValueError(f"{self.name or 'module'}: found {reason}; that is not divided")
        parameters = []
        for module in modules:
            masks_written(module, x)
            parameters.append(layers.parameters_of(module))
        flat = [p for group in parameters for p in group]
        wants_x = divided.exchange.is_first and x.requires_grad
        wanted = torch.is_grad_enabled() and (wants_x or any(p.requires_grad for p in flat))
        anchor = [x.new_zeros((), requires_grad=True)] * divided.begin(x, self.algorithm, wanted)
        run = Run(self, modules, 0, [len(group) for group in parameters], self._new_plan())
        self.record_call(None)
        call = RankRun(run, divided, 0, wants_x, False)
        return RankRunFunction.apply(call, x, *flat, *anchor)

    def record_run(
        self, shape: tuple[int, int, int], device: torch.device, plan: planner.Plan
    ) -> None:
        """Notes a run: (layers, samples, numbers of its largest state), where, its plan."""
        self.shape, self.device, self._plan = shape, device, plan

    def layer(self, position: int, module: nn.Module, input_size: tuple[int, ...]) -> DepthLayer:
        """The layer at a position of the stack, with the patterns it has built so far."""
        key = (position, input_size)
        layer = self._layers.get(key)
        if layer is None or not layer.is_of(module):
            layer = self._layers[key] = layers.layer_of(module, input_size)
        return layer

    def scan_of(
        self, first: int, run: Sequence[DepthLayer], calls: Sequence[LayerCall], levels: int
    ) -> LayerScan:
        """The plans of a run's products, made anew where a pattern has changed."""
        levels = min(levels, (len(run) - 1).bit_length())
        x = calls[0].x
        B = x.shape[0]
        key = (first, len(run), tuple(x.shape[1:]), x.dtype, levels, self.budget)
        patterns = [layer.pattern(call.parameters) for layer, call in zip(run, calls, strict=True)]
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

    @property
    def sizes(self) -> tuple[str, str, str]:
        return "-", "?" if self.shape is None else str(self.shape[1]), "-"

    def details(self) -> list[str]:
        """What the plans of the last calls say of each product."""
        divided = [] if self.divided is None else self.divided.details()
        scans = [line for scan in self.scans.values() for line in scan.describe().splitlines()]
        return divided + scans


def _unsupported_call(input: Any, algorithm: str) -> str | None:
    if algorithm not in FeedforwardChain.algorithms:
        return f"algorithm {algorithm!r}: over depth, 'linear' or 'blelloch' can be asked for"
    if not isinstance(input, Tensor):
        return f"input is a {type(input).__name__}, no tensor"
    missing = missing_jacobian_kernels(input.device)
    if missing is not None:
        return f"input is on {input.device}: {missing}"
    if input.dtype not in FLOATS or torch.is_autocast_enabled(input.device.type):
        return f"dtype {input.dtype}, or autocast"
    if torch.compiler.is_compiling():
        return "inside torch.compile"
    return recorded() or unsupported_transform()


def _end_of_run(modules: Sequence[nn.Module], i: int, x: Any) -> int:
    """The first layer from i on that cannot belong to the run that begins at i with x."""
    if not isinstance(x, Tensor) or x.dtype not in FLOATS or not x.numel():
        return i
    dims = x.dim()
    while i < len(modules) and layers.unsupported(modules[i]) is None:
        if not layers.fits_input(modules[i], dims):
            break
        if any(p.dtype != x.dtype for p in modules[i].parameters(recurse=False)):
            break
        dims = 2 if isinstance(modules[i], nn.Flatten) else dims
        i += 1
    return i

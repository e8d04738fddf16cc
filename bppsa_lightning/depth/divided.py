"""A stack whose layers lie on different ranks: each computes its own.

Forward, activations go from rank to rank. Backward, "linear" passes gradients back likewise, P
ranks one after another; with "blelloch" all ranks multiply the Jacobians of their layers at the
same time, an exclusive scan over ranks (`ranks.reaches`) tells each what reaches its last layer,
and all walk their layers back at the same time: the paper's model parallelism (arXiv:1907.10134,
section 3).

P ranks, B samples, N numbers a sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from bppsa_lightning import ranks
from bppsa_lightning.depth.composition import Limits
from bppsa_lightning.depth.rank_maps import Factors, RankMap, RankProducts, SparseMaps
from bppsa_lightning.depth.scan import Factor, LayerScan, Step, values_of
from bppsa_lightning.jacobians.pattern import Pattern
from bppsa_lightning.jacobians.product import PlanTooLarge
from bppsa_lightning.ops._checks import FLOATS
from bppsa_lightning.ranks import Exchange, Spans

_BROUGHT = (
    "the number of the call", "its dtype", "whether gradients are wanted", "its algorithm",
    "its batch", "its features", "",
)  # fmt: skip
_MOST_DIMS = 8

# Beside a layer's floating-point operations: those that a number takes to be read and written.
_OF_A_NUMBER = 8

# A gradient (B, N) behind a rank's layers -> all gradients of its states, and that before them.
Walk = Callable[[Tensor], list[Tensor]]


class DividedStack:
    """A stack over the ranks of a process group.

    Args:
        name: of the stack, for errors.
        sharded: whether a rank's stack is its own layers alone, whose input the first rank is
            given, and whose output the last one gives; else all ranks hold all layers.

    Attributes:
        exchange: the way to the other ranks, and what went over it.
        spans: which layers of the last run each rank computed (not known of the others if sharded).
        passed_on: why gradients were passed on, where products were asked for.
    """

    def __init__(self, name: str, group: dist.ProcessGroup, sharded: bool) -> None:
        self.exchange, self.sharded = Exchange(group, name), sharded
        self.spans = Spans([0])
        self.passed_on: str | None = None
        self._calls = 0
        self._spans: dict[Any, Spans] = {}
        self._sent: dict[int, _Known | None] = {}  # by run: this rank's product, as others know it
        self._products: dict[int, RankProducts | str] = {}  # by run; or why there are none

    def __deepcopy__(self, memo: dict[int, Any]) -> DividedStack:
        return DividedStack(self.exchange.name, self.exchange.group, self.sharded)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self.exchange.name or 'module'}: found a stack divided over a process group, which "
            "cannot be pickled; wanted one that is not: bl.detach(module)"
        )

    # Forward

    def begin(self, x: Tensor, algorithm: str, differentiated: bool) -> bool:
        """Before anything is exchanged: that all ranks have come for the same.

        Returns:
            Whether any rank wants gradients.
        """
        self._calls += 1
        own = [0, 0] if self.sharded else [x.shape[0], math.prod(x.shape[1:])]
        brought = [
            self._calls, FLOATS.index(x.dtype), int(torch.is_grad_enabled()),
            int(algorithm == "blelloch"), *own, int(differentiated),
        ]  # fmt: skip
        found = self.exchange.agree(brought, _BROUGHT, x.device)
        return any(numbers[-1] for numbers in found)

    def layers_of(self, modules: Sequence[nn.Module], first: int, x: Tensor) -> slice:
        """Which of a run's layers, all of them on all ranks, this one computes."""
        key = first, len(modules), tuple(x.shape)
        if key not in self._spans:
            costs = work_of(modules, x)
            self._spans[key] = Spans.balanced(costs, self.exchange.size)
        self.spans = self._spans[key]
        return self.spans.of(self.exchange.rank)

    def forward(
        self, x: Tensor, layers: Callable[[Tensor], Tensor], random: bool
    ) -> tuple[Tensor, Tensor]:
        """What enters this rank's layers, and what the call gives.

        Args:
            x: what enters the first rank's; elsewhere, of its dtype and device. layers: this
                rank's. random: whether the generator goes from rank to rank, as in one process.

        Returns:
            As to the output: the last rank's on all ranks; if sharded, a zero on the others.
        """
        exchange, last = self.exchange, self.exchange.size - 1
        entering = self._received(x, random)
        y = layers(entering)
        if not exchange.is_last:
            exchange.pass_on([_header(y)], None)
            exchange.pass_on([y], None)
            if random:
                exchange.pass_on([_generator(y)], None)
        if self.sharded:
            return entering, y if exchange.is_last else y.new_zeros(())
        dims, *shape = exchange.gather(_header(y))[0][last].tolist()
        output = exchange.of_rank(last, y if exchange.is_last else y.new_empty(shape[:dims]))
        if random:
            _set_generator(exchange.of_rank(last, _generator(y)))
        return entering, output

    def _received(self, x: Tensor, random: bool) -> Tensor:
        exchange = self.exchange
        if exchange.is_first:
            return x
        [header] = exchange.pass_on(None, [_header(x[:0])]) or []
        dims, *shape = header.tolist()
        [entering] = exchange.pass_on(None, [x.new_empty(shape[:dims])]) or []
        if random:
            [state] = exchange.pass_on(None, [_generator(x)]) or []
            _set_generator(state)
        return entering

    # Backward

    def relayed(self, grad: Tensor, leaving: int, walk: Walk) -> list[Tensor]:
        """This rank's gradients, from what is passed on to it.

        Args:
            grad: (B, N) behind the whole run, read on the last rank. leaving: N behind this rank's
                layers. walk: this rank's layers back.
        """
        nothing = grad.new_zeros(len(grad), leaving)
        grads: list[Tensor]
        grads, _ = ranks.relay(self.exchange, nothing, self._pull(grad, walk))
        return grads

    def scanned(
        self, run: int, grad: Tensor, entering: int, leaving: int,
        scan: Callable[[], LayerScan], steps: Sequence[Step], walk: Walk, limits: Limits,
    ) -> list[Tensor]:  # fmt: skip
        """This rank's gradients, by products of the Jacobians of all ranks' layers.

        Args:
            run: the position of its first layer. grad, leaving, walk: as of `relayed`.
            entering: N before this rank's layers. scan: plans their product. steps: of them.
            limits: of all products.
        """
        exchange = self.exchange
        r, B = exchange.rank, grad.shape[0]
        own = self._own_product(scan, steps, entering, grad) if self._is_inner else None
        products, sizes = self._planned(run, own, entering, limits, grad.device)
        if isinstance(products, str):
            self.passed_on = products
            return self.relayed(grad, leaving, walk)
        self.passed_on = None
        behind = grad.new_zeros(B, leaving)
        found: list[list[Tensor]] = []

        def pull(reached: Tensor) -> tuple[list[Tensor], Tensor]:
            if not found:  # (the last rank has walked already)
                found.append(walk(grad if exchange.is_last else reached))
            return found[0], found[0][0].flatten(1)

        own_map = None
        if exchange.is_last:
            own_map = RankMap(r, 1, vector=pull(grad)[1].contiguous())
        elif own is not None:
            own_map = RankMap(r, 1, own.factors, sound=own.factors is not None)
        maps = SparseMaps(products, grad, sizes, B)
        return ranks.carry(exchange, maps, own_map, behind, pull)[0]  # type: ignore[no-any-return]

    def _pull(self, grad: Tensor, walk: Walk) -> Callable[[Tensor], tuple[list[Tensor], Tensor]]:
        def pull(reached: Tensor) -> tuple[list[Tensor], Tensor]:
            grads = walk(grad if self.exchange.is_last else reached)
            return grads, grads[0].flatten(1)

        return pull

    @property
    def _is_inner(self) -> bool:
        return not self.exchange.is_first and not self.exchange.is_last

    def _own_product(
        self, scan: Callable[[], LayerScan], steps: Sequence[Step], N: int, like: Tensor
    ) -> _Product:
        if not steps:  # nothing happens to a gradient
            ones = Step(lambda g: g, lambda: like.new_ones(N))
            return _Product(("nothing", N), (Pattern.diagonal(N),), [ones])
        plan = scan()
        composition = plan.composition
        if isinstance(composition, str):
            return _Product(plan, (), None, composition)
        return _Product(plan, composition.factors, plan.composed(steps))

    def _planned(
        self, run: int, own: _Product | None, entering: int, limits: Limits, device: torch.device
    ) -> tuple[RankProducts | str, list[int]]:
        """The products of this run, and N before each rank's layers.

        Products are planned anew if any rank's own one looks another way.
        """
        known = None if own is None else own.known(self._sent.get(run))
        changed = run not in self._products or self._sent[run] != known
        own_numbers = torch.tensor([int(changed), entering], device=device)
        found_on = self.exchange.gather(own_numbers)[0].cpu()
        if found_on[:, 0].any():
            self._sent[run] = known
            of_ranks: list[Any] = [None] * self.exchange.size
            found = None if own is None or known is None else own.shown(known)
            dist.all_gather_object(of_ranks, found, self.exchange.group)
            self._products[run] = self._plan(of_ranks, limits, device)
        return self._products[run], found_on[:, 1].tolist()

    def _plan(
        self, of_ranks: Sequence[Any], limits: Limits, device: torch.device
    ) -> RankProducts | str:
        reasons = [f"rank {r}: {found}" for r, found in enumerate(of_ranks) if type(found) is str]
        if reasons:
            return reasons[0]
        reason, products = "", None
        try:
            products = RankProducts(
                [() if found is None else _factors(found) for found in of_ranks],
                self.exchange.rank, limits,
            )  # fmt: skip
        except PlanTooLarge as error:
            reason = str(error)
        fails = self.exchange.most([float(products is None)], device)
        if products is None or any(fails):
            return reason or "a product that another rank needs is too large"
        return products

    # For people

    def details(self) -> list[str]:
        """Lines for `explain`."""
        if not self._calls:
            return []
        exchange, counts = self.exchange, self.exchange.counts
        layers = ", ".join(map(str, self.spans.lengths))
        what = "a part of the layers each" if self.sharded else f"{layers} layers of the last run"
        lines = [
            f"divided over {exchange.size} ranks, {what}; so far {self._calls} calls, "
            f"{counts.rounds} rounds, {counts.bytes:,} bytes sent, {counts.collectives} collectives"
        ]
        if self.passed_on is not None:
            lines.append(f"gradients are passed on from rank to rank: {self.passed_on}")
        return lines


# By what a rank's own product is known: its plan, why there is none, which factors are batched.
_Known = tuple[Any, str | None, tuple[bool, ...]]


class _Product(NamedTuple):
    """The product of this rank's own Jacobians.

    Attributes:
        plan: what it was made by. patterns: of its factors.
        factors: their values; None where they left the range of their dtype.
        refused: why it is not formed.
    """

    plan: Any
    patterns: tuple[Pattern, ...]
    factors: Sequence[Factor] | None
    refused: str | None = None

    def known(self, before: _Known | None) -> _Known:
        """Beside what it was known by before."""
        if self.factors is not None:
            return self.plan, None, tuple(values_of(f).dim() == 2 for f in self.factors)
        if self.refused is None and before is not None and before[:2] == (self.plan, None):
            return before
        return self.plan, self.refused or "a product left the range of its dtype", ()

    def shown(self, known: _Known) -> Any:
        """What the other ranks are told."""
        _, refused, batched = known
        if refused is not None:
            return refused
        return [(p.crow, p.col, p.shape, own) for p, own in zip(self.patterns, batched)]  # noqa: B905


def _factors(shown: Sequence[Any]) -> Factors:
    return tuple((Pattern.trusted(crow, col, shape), own) for crow, col, shape, own in shown)


def _header(y: Tensor) -> Tensor:
    """Its shape, as a message of one length."""
    if y.dim() > _MOST_DIMS:
        raise ValueError(f"input: found {y.dim()} dimensions, wanted at most {_MOST_DIMS}")
    shape = [*y.shape, *[0] * (_MOST_DIMS - y.dim())]
    return torch.tensor([y.dim(), *shape], device=y.device)


def _generator(beside: Tensor) -> Tensor:
    """The state of the random numbers of a tensor's device, on it."""
    cuda = beside.is_cuda
    return (torch.cuda.get_rng_state(beside.device) if cuda else torch.get_rng_state()).to(
        beside.device
    )


def _set_generator(state: Tensor) -> None:
    if state.is_cuda:
        torch.cuda.set_rng_state(state.cpu(), state.device)
    else:
        torch.set_rng_state(state)


def work_of(modules: Sequence[nn.Module], x: Tensor) -> list[float]:
    """What each layer of a run costs for x, counted: operations, and numbers that it writes."""
    found = []
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
        y = mode.from_tensor(x.detach())
        for module in modules:
            with FlopCounterMode(display=False) as counter:
                y = module(y)
            found.append(counter.get_total_flops() + _OF_A_NUMBER * y.numel())
    return found

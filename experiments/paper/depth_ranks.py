"""A stack whose layers lie on ranks, measured; and what `depth_scaling` simulates beyond.

n layers (a Linear and an activation each), B samples, N wide, P ranks, L = n / P.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import bppsa_lightning as bl
from bppsa_lightning.depth import LayerScan
from bppsa_lightning.depth.autograd import calls_of, forward, gradients_of, steps_of, walked
from bppsa_lightning.depth.composition import Composition, Limits
from bppsa_lightning.depth.scan import multiplied, through, values_of
from bppsa_lightning.depth.stack import FeedforwardChain
from bppsa_lightning.ranks import Exchange, Spans

WAYS = ("linear", "blelloch", "gpipe")


def stack(n: int, N: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(n) for layer in (nn.Linear(N, N), nn.Tanh())])


def compared(
    group: dist.ProcessGroup, n: int, B: int, N: int, groups: int, pairs: int
) -> dict[str, Any]:
    """Seconds of a step, forward and backward, of one process and of two ranks, in turns.

    "gpipe" is torch.distributed.pipelining's, with `groups` micro-batches.
    """
    rank, P = dist.get_rank(group), dist.get_world_size(group)
    own = Spans.equal(n, P).of(rank)
    x, target = torch.randn(B, N), torch.zeros(B, N)
    whole = _step(stack(n, N), x, target) if rank == 0 else None
    steps = {}
    for way in ("linear", "blelloch"):
        part = stack(n, N)[2 * own.start : 2 * own.stop]
        bl.attach(part, way, group=group, sharded=True)
        steps[way] = _step(part, x, target if rank == P - 1 else None)
    steps["gpipe"] = _gpipe(stack(n, N)[2 * own.start : 2 * own.stop], group, x, target, groups)
    times: dict[str, list[float]] = {name: [] for name in ("one", *WAYS)}
    for turn in range(3 + pairs):
        for name in times:
            dist.barrier()
            run = whole if name == "one" else steps[name]
            took = torch.tensor([0.0 if run is None else median(run() for _ in range(5))])
            dist.all_reduce(took, dist.ReduceOp.MAX)
            if turn >= 3:
                times[name].append(float(took))
    return {
        "n": n, "B": B, "N": N, "P": P, "groups": groups,
        "seconds": {name: median(taken) for name, taken in times.items()},
        "speed_up": {
            way: median(a / b for a, b in zip(times["one"], times[way], strict=True))
            for way in WAYS
        },
    }  # fmt: skip


def _step(module: nn.Module, x: Tensor, target: Tensor | None) -> Callable[[], float]:
    def run() -> float:
        module.zero_grad()
        start = time.perf_counter()
        y = module(x)
        (y if target is None else nn.functional.mse_loss(y, target)).backward()
        return time.perf_counter() - start

    return run


def _gpipe(
    part: nn.Module, group: dist.ProcessGroup, x: Tensor, target: Tensor, groups: int
) -> Callable[[], float]:
    rank, P = dist.get_rank(group), dist.get_world_size(group)
    stage = PipelineStage(part, rank, P, x.device, group=group)
    schedule = ScheduleGPipe(stage, groups, nn.functional.mse_loss)

    def run() -> float:
        part.zero_grad()
        start = time.perf_counter()
        if rank == 0:
            schedule.step(x)
        elif rank == P - 1:
            schedule.step(target=target, losses=[])
        else:
            schedule.step()
        return time.perf_counter() - start

    return run


def costs(group: dist.ProcessGroup, n: int, B: int, N: int, most: int) -> dict[str, Any]:
    """What the simulation counts, in seconds, by one process; and of messages, by both.

    Args:
        most: ranks; costs are those of n / P layers for P = 1, 2, 4, … most.
    """
    latency, of_byte = Exchange(group, "costs").calibrate(torch.device("cpu"))
    by_ranks: dict[int, dict[str, Any]] = {}
    if dist.get_rank(group):
        return {}  # one process measures, while the others wait
    for P in (1 << k for k in range(most.bit_length())):
        found = of_layers(n // P, B, N, P > 2)  # of two ranks neither composes
        groups = max(1, min(B, 4 * P))
        small = found if groups == 1 else of_layers(n // P, max(1, B // groups), N, False)
        by_ranks[P] = found | {
            "groups": groups, **{f"group_{k}": small[k] for k in ("forward", "back", "weights")}
        }  # fmt: skip
    return {"latency": latency, "of_byte": of_byte, "state": 4.0 * B * N, "ranks": by_ranks}


def of_layers(L: int, B: int, N: int, composes: bool) -> dict[str, float]:
    """Of L layers on one rank: forward, back (gradients of states), weights, compose; of whole
    ranks' maps: merge, and through (a vector)."""
    module = stack(L, N)
    chain = FeedforwardChain("stack", module)
    run = _run(chain, module)
    x, grad = torch.randn(B, N), torch.randn(B, N)
    parameters = [p.detach() for p in module.parameters()]
    _, layers, saved, _ = forward(run, x, parameters)
    calls = calls_of(run, saved)
    grads = walked(layers, calls, grad, True)
    needs = [True] * len(parameters)
    found = {
        "forward": _of(lambda: forward(run, x, parameters)),
        "back": _of(lambda: walked(layers, calls, grad, True)),
        "weights": _of(lambda: gradients_of(layers, calls, grads[1:], needs)),
    }
    if not composes:
        return found
    patterns = [layer.pattern(call.parameters) for layer, call in zip(layers, calls, strict=True)]
    scan = LayerScan.of(patterns, (len(patterns) - 1).bit_length(), None, x.dtype, B)
    found["compose"] = _of(lambda: scan.composed(steps_of(layers, calls)))
    factors = scan.composed(steps_of(layers, calls))
    own = scan.composition
    assert factors is not None and isinstance(own, Composition)
    joined = Composition.of(own, own, Limits(None, x.dtype, B))
    found["merge"] = _of(lambda: multiplied(joined, factors, factors))
    found["through"] = _of(lambda: through(own.factors, factors, grad.t()))
    found["map"] = 4.0 * sum(values_of(factor).numel() for factor in factors)
    return found


def _run(chain: FeedforwardChain, module: nn.Sequential) -> Any:
    from bppsa_lightning import planner
    from bppsa_lightning.depth.autograd import Run

    counts = [len(list(layer.parameters())) for layer in module]
    return Run(chain, list(module), 0, counts, planner.Plan("linear"))


@torch.no_grad()
def _of(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(12):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return median(times[2:])

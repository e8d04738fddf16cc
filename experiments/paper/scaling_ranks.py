"""Layers divided over processes of one thread each, measured; and what the simulation needs.

T steps in all, B samples, H hidden, P ranks.
"""

from __future__ import annotations

import copy
import os
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

import bppsa_lightning as bl
from bppsa_lightning._replacement import replacement_of
from bppsa_lightning.ranks import Spans

# Steps in which nothing has faded: what has, is not composed any further.
SHORT = 50

TURN, FEWEST = 0.5, 3  # seconds of steps in a row; steps

ALGORITHMS = ("linear", "blelloch", "speculative", "auto")


def on_ranks(P: int, task: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What a task returns in each of P processes of one thread; called with a group first."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_begin, (P, Path(folder), task, arguments), P)
        return [torch.load(Path(folder) / f"{r}.pt", weights_only=False) for r in range(P)]


def _begin(
    rank: int, P: int, folder: Path, task: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    _bind(rank, P)
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), P)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=P, timeout=timedelta(minutes=10)
    )
    torch.save(task(dist.group.WORLD, *arguments), folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def _bind(rank: int, P: int) -> None:
    """To cores of its own, if there are enough, as launchers of MPI do: gloo's threads, too.

    Left to itself, Linux has the two busy processes of a machine with two cores share one of them
    now and then, for whole steps, while the other has nothing to do.
    """
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) >= P:
        os.sched_setaffinity(0, cores[rank * len(cores) // P : (rank + 1) * len(cores) // P])


def _are_bound(P: int) -> bool:
    """Whether no core may run two of the processes. All call it."""
    if not hasattr(os, "sched_getaffinity"):
        return False
    cores: list[Any] = [None] * P
    dist.all_gather_object(cores, os.sched_getaffinity(0))
    return len(set().union(*cores)) == sum(map(len, cores))


def layer(kind: str, I: int, H: int) -> nn.RNNBase:
    torch.manual_seed(0)
    found: nn.RNNBase = getattr(nn, kind)(I, H)
    return found


def step(module: nn.Module, x: Tensor, grad: Tensor) -> Callable[[], float]:
    """Forward, and backward from a gradient of every output: its seconds."""
    x = x.detach().clone().requires_grad_()

    def run() -> float:
        module.zero_grad()
        x.grad = None
        start = time.perf_counter()
        module(x)[0].backward(grad)
        return time.perf_counter() - start

    return run


def compared(
    group: dist.ProcessGroup, kind: str, T: int, B: int, H: int, algorithm: str, pairs: int,
    seconds: float = TURN,
) -> dict[str, Any]:  # fmt: skip
    """One process over the whole, and all over their spans, in turns, while the others wait.

    A turn is some seconds of steps in a row, as a training's are: the first ones after a pause,
    in which a machine has put cores to sleep, take milliseconds more.

    Returns:
        Seconds of both, medians; the ratio, the median of those of pairs; the seconds that each
        rank takes over its span by itself, at the same time; rounds and bytes of a step; whether
        each process is bound to cores of its own.
    """
    rank, P = dist.get_rank(group), dist.get_world_size(group)
    x = torch.randn(T, B, H, generator=torch.Generator().manual_seed(1))
    grad = torch.randn(T, B, H, generator=torch.Generator().manual_seed(2))
    span = Spans.equal(T, P).of(rank)
    alone, divided, apart = (layer(kind, H, H) for _ in range(3))
    of_one = "auto" if algorithm == "auto" else "linear"
    bl.attach(alone, of_one)
    bl.attach(apart, "speculative" if algorithm == "speculative" else of_one)
    bl.attach(divided, algorithm, group=group, sharded=True)
    whole = step(alone, x, grad) if rank == 0 else None
    parts = step(divided, x[span], grad[span])
    by_itself = step(apart, x[span].contiguous(), grad[span].contiguous())
    counts = replacement_of(divided, bl.Chain).divided.exchange.counts
    times: dict[str, list[float]] = {"one": [], "divided": [], "span": []}
    count = 1
    for turn in range(2 + pairs):
        dist.barrier()
        one = in_a_row(whole, count) if whole is not None else 0.0
        dist.barrier()
        before = copy.copy(counts)
        took = in_a_row(parts, count)
        sent = [(getattr(counts, name) - getattr(before, name)) // count
                for name in ("rounds", "bytes")]  # fmt: skip
        dist.barrier()
        own = in_a_row(by_itself, count)
        [one, took, own] = _latest([one, took, own])
        count = max(FEWEST, int(seconds / one))
        if turn >= 2:
            for name, seconds in zip(times, (one, took, own), strict=True):
                times[name].append(seconds)
    pairwise = zip(times["one"], times["divided"], strict=True)
    return {
        "kind": kind, "T": T, "B": B, "H": H, "P": P, "algorithm": algorithm,
        "seconds": {name: median(taken) for name, taken in times.items()},
        "speed_up": median(a / b for a, b in pairwise), "rounds": sent[0], "bytes": sent[1],
        "how": bl.explain(divided).splitlines()[-1].strip(), "bound": _are_bound(P),
    }  # fmt: skip


def in_a_row(run: Callable[[], float], count: int) -> float:
    """Seconds of a step: the median of some in a row."""
    return median(run() for _ in range(count))


def _latest(seconds: list[float]) -> list[float]:
    found = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return found.tolist()


def memory(group: dist.ProcessGroup, kind: str, T: int, B: int, H: int, algorithm: str) -> int:
    """The most bytes that a step has in memory beyond what the process had before its input."""
    rank, P = dist.get_rank(group), dist.get_world_size(group)
    n = Spans.equal(T, P).lengths[rank]
    module = layer(kind, H, H)
    bl.attach(module, algorithm, group=group if P > 1 else None, sharded=P > 1)
    small = torch.randn(max(2, 400 // P), B, H, requires_grad=True)
    module(small)[0].sum().backward()  # what any first call sets up
    dist.barrier()
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    x = torch.randn(n, B, H, requires_grad=True)
    output = module(x)[0]
    output.backward(torch.ones_like(output))
    return _resident("VmHWM") - before


def _resident(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith(what)]
    return int(line.split()[1]) * 1024


def costs(group: dist.ProcessGroup, kind: str, B: int, H: int) -> dict[str, float]:
    """What the simulation counts, of one layer, by one process; and of messages, by both."""
    from bppsa_lightning.divided import Walk
    from bppsa_lightning.recurrent.kernel_walk import KernelWalk

    exchange = replacement_of(_attached(kind, H, group), bl.Chain).divided.exchange
    latency, of_byte = exchange.calibrate(torch.device("cpu"))
    found = {"latency": latency, "of_byte": of_byte}
    module, T = layer(kind, H, H), 2000
    cell = {"RNN": "rnn_tanh", "GRU": "gru", "LSTM": "lstm"}[kind]
    weights = [*(w.detach() for w in module.parameters()), None]

    def walked(samples: int, T: int = T) -> tuple[Walk, Tensor, list[Tensor]]:
        x = torch.randn(T, samples, H)
        state = [torch.zeros(samples, H)] * (1 + (kind == "LSTM"))
        walk = KernelWalk(cell, weights, [x], state, 0, True, [True] * 5)
        return walk, torch.randn(T, samples, H), state

    def of_step(run: Callable[[], Any]) -> float:
        run()
        return median(_seconds(run) for _ in range(7)) / T

    for samples, name in ((B, ""), (1, "group_")):
        walk, grad, state = walked(samples)
        found[f"{name}forward"] = of_step(lambda samples=samples: walked(samples))
        found[f"{name}backward"] = of_step(lambda w=walk, g=grad, s=state: w.pull([g], s))
    walk, grad, state = walked(B)
    found["start"] = of_step(lambda: walk.start([grad], state))
    walk = walked(B, SHORT)[0]
    found["compose"] = of_step(walk.jacobian) * T / SHORT
    A = walk.jacobian()
    found["merge"] = median(_seconds(lambda: A @ A) for _ in range(20))
    S = A.shape[-1]
    return found | {"state": 4.0 * B * S, "map": 4.0 * B * S * (S + 1), "groups": B}


def _attached(kind: str, H: int, group: dist.ProcessGroup) -> nn.Module:
    module = layer(kind, H, H)
    bl.attach(module, "linear", group=group, sharded=True)
    return module


def _seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start

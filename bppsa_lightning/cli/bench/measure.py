"""Puts a bench together: compares results, times layers and the whole, measures memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bppsa_lightning._cores import busy_cores
from bppsa_lightning.attach import attach
from bppsa_lightning.cli.answer import FINE, PROBLEMS, Answer, WrongUsage
from bppsa_lightning.cli.bench import clock, layers, memory, picture, table, target
from bppsa_lightning.cli.bench.agreement import agreement
from bppsa_lightning.cli.bench.found import Bench
from bppsa_lightning.cli.bench.inputs import Input, parsed
from bppsa_lightning.cli.bench.step import SEED, WholeStep
from bppsa_lightning.explain import not_accelerated
from bppsa_lightning.planner import machine


def measure(asked: Any) -> Answer:
    """Runs what is asked for on the command line."""
    device = _device(asked)
    if not asked.inputs:
        raise WrongUsage("--input: found none, wanted the sizes of each input, as in 16,1000,20")
    wanted = [parsed(text) for text in asked.inputs]
    path = picture.path(asked.picture) if asked.picture else None
    if asked.threads:
        torch.set_num_threads(asked.threads)
    torch.manual_seed(SEED)
    if asked.memory_of:
        return Answer({"bytes": _grown(asked, wanted)}, "")
    found = bench(asked, wanted, device)
    data, text = found.data(), table.text(found)
    if path is not None:
        picture.draw(found, path)
        data["picture"], text = str(path), f"{text}\npicture: {path}"
    return Answer(data, text, FINE if found.agrees else PROBLEMS)


def bench(asked: Any, wanted: list[Input], device: torch.device) -> Bench:
    """Compares first: what disagrees is worth no time."""
    busy = busy_cores()
    stock, ours = target.twins(asked)
    try:
        attach(ours, asked.algorithm)
    except (TypeError, ValueError) as error:
        raise WrongUsage(f"--{error}") from None
    inputs = _drawn(wanted, asked.device)
    one = WholeStep(stock, inputs, asked.training_step)
    other = WholeStep(ours, inputs, asked.training_step)
    _say("comparing results")
    (outputs, grads), (our_outputs, our_grads) = one.results(), other.results()
    found = layers.attached(ours)
    recorded = layers.record(stock, list(found), one)
    called = {name: layer for name, layer in found.items() if recorded[name].calls}
    rows = []
    each = asked.seconds / (1 + len(called)) if called else asked.seconds
    for number, (name, layer) in enumerate(called.items(), 1):
        _say(f"timing {name or type(ours).__name__} ({number} of {len(called)} layers)")
        alone, attached = (
            layers.LayerStep(model.get_submodule(name), recorded[name], device)
            for model in (stock, ours)
        )
        row = layers.described(name, layer) | {"calls": recorded[name].calls}
        rows.append(row | {"compared": clock.compared(alone, attached, each)})
    _say("timing the whole model")
    whole = clock.compared(one, other, each)
    _say("measuring memory")
    used, what = _memory(asked, {"stock": one, "bppsa": other}, device)
    return Bench(
        f"{_name(asked)}, input {', '.join(map(str, wanted))}",
        _hardware(device),
        whole,
        rows,
        [(name or "(itself)", reason) for name, _, reason in not_accelerated(ours)],
        used,
        what,
        agreement(outputs, our_outputs),
        agreement(grads, our_grads),
        busy,
    )


def _memory(
    asked: Any, ways: dict[str, WholeStep], device: torch.device
) -> tuple[dict[str, int | None], str]:
    if device.type == "cuda":
        used: dict[str, int | None] = {w: memory.of_cuda(s, device) for w, s in ways.items()}
        return used, "peak of torch's allocator in one step"
    return (
        {way: memory.of_process(asked, way) for way in memory.WAYS},
        "peak growth of a process in its first step",
    )


def _grown(asked: Any, wanted: list[Input]) -> int | None:
    """In a process of its own: what one way's first step takes."""
    model = target.model(asked)
    if asked.memory_of == "bppsa":
        attach(model, asked.algorithm)
    return memory.growth(WholeStep(model, _drawn(wanted, asked.device), asked.training_step))


def _drawn(wanted: list[Input], device: str) -> list[Tensor]:
    torch.manual_seed(SEED)
    return [one.draw(device) for one in wanted]


def _device(asked: Any) -> torch.device:
    try:
        device = torch.device(asked.device)
    except RuntimeError:
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda"):
        raise WrongUsage(f"--device: found {asked.device}, wanted cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise WrongUsage("--device: found cuda, but torch finds no GPU; `bppsa doctor` says why")
    return device


def _name(asked: Any) -> str:
    name = asked.target or Path(asked.checkpoint).name
    return f"{name} of {Path(asked.checkpoint).name}" if asked.checkpoint and asked.target else name


def _hardware(device: torch.device) -> str:
    this, threads = machine.this_cpu(), torch.get_num_threads()
    where = f"{this['name']}, {this['cores']} cores, {threads} thread{'s' * (threads != 1)}"
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    return f"{where} ({this['kernels']} kernels); torch {torch.__version__}"


def _say(what: str) -> None:
    print(f"bppsa bench: {what}", file=sys.stderr, flush=True)

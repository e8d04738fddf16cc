"""The user's model: by name, with its arguments, or from a checkpoint."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import traceback
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bppsa_lightning.cli.answer import Failed, WrongUsage

_CLASS = "_class_path"  # where LightningCLI keeps the name, among hyperparameters


def model(asked: Any) -> nn.Module:
    """A new model, in training mode on the device asked for.

    Raises:
        WrongUsage: there is no such target, checkpoint or argument.
        Failed: the user's code raises.
    """
    found = _checkpointed(asked) if asked.checkpoint else _made(asked)
    if not isinstance(found, nn.Module):
        raise WrongUsage(
            f"TARGET: {asked.target} gives {type(found).__name__}, wanted an nn.Module"
        )
    try:
        return found.to(asked.device).train()
    except (RuntimeError, AssertionError) as error:
        raise WrongUsage(f"--device: {asked.device} cannot be used ({first_line(error)})") from None


def twins(asked: Any) -> tuple[nn.Module, nn.Module]:
    """Two models with the same weights."""
    one, other = model(asked), model(asked)
    if one is other:
        raise WrongUsage(
            f"TARGET: {asked.target} gives the same module twice, wanted a class, or a function "
            "that makes a new one"
        )
    other.load_state_dict(one.state_dict())
    return one, other


def calling(what: str, call: Callable[[], Any]) -> Any:
    """Runs the user's code.

    Raises:
        Failed: it raised or exits; where, is on stderr.
    """
    try:
        return call()
    except Failed:
        raise
    except Exception as error:
        traceback.print_exc(limit=-3)
        raise Failed(f"{what} raises {type(error).__name__}: {first_line(error)}") from error
    except SystemExit as error:  # it would end bench without an answer, and with status 0 maybe
        traceback.print_exc(limit=-3)
        raise Failed(
            f"{what} calls sys.exit({'' if error.code is None else repr(error.code)}); guard what "
            'is for the script alone with `if __name__ == "__main__":`'
        ) from error


def first_line(error: BaseException) -> str:
    """Of what it says."""
    return (str(error).splitlines() or [""])[0]


def _made(asked: Any) -> Any:
    if not asked.target:
        raise WrongUsage("TARGET: found none, wanted package.module:NAME or file.py:NAME")
    arguments = _arguments(asked.args)
    found = _named(asked.target)
    if isinstance(found, nn.Module) or not callable(found):
        raise WrongUsage(
            f"TARGET: {asked.target} is {type(found).__name__}, wanted a class, or a function that "
            "returns a module"
        )
    return calling(f"{asked.target}({_shown(arguments)})", lambda: found(**arguments))


def _arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise WrongUsage(f"--args: found {text!r}, which is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise WrongUsage(f"""--args: found {text!r}, wanted a JSON object: '{{"hidden": 20}}'""")
    return found


def _shown(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def _named(target: str) -> Any:
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise WrongUsage(f"TARGET: found {target!r}, wanted package.module:NAME or file.py:NAME")
    found = _module(where)
    for part in name.split("."):
        if not hasattr(found, part):
            raise WrongUsage(f"TARGET: {where} has no {name}")
        found = getattr(found, part)
    return found


def _module(where: str) -> Any:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    if not where.endswith(".py"):
        return calling(f"import {where}", lambda: _imported(where))
    path = Path(where).resolve()
    if not path.is_file():
        raise WrongUsage(f"TARGET: found no file {path}")
    return _run_once(path)


@lru_cache
def _run_once(path: Path) -> Any:
    """The module in a file, under the file's name."""
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # of a .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name], loader = module, spec.loader
    calling(str(path), lambda: loader.exec_module(module))
    return module


def _imported(where: str) -> Any:
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name and f"{where}.".startswith(f"{error.name}."):
            raise WrongUsage(
                f"TARGET: found no module {error.name} in {Path.cwd()}, nor installed"
            ) from None
        raise


def _checkpointed(asked: Any) -> Any:
    path = Path(asked.checkpoint)
    if not path.is_file():
        raise WrongUsage(f"--checkpoint: found no file {path.resolve()}")
    found = _named(asked.target or _class_of(path, asked.trust_checkpoint))
    if not hasattr(found, "load_from_checkpoint"):
        raise WrongUsage(f"--checkpoint: {asked.target} is no LightningModule class")
    arguments = _arguments(asked.args)
    unsafe = {"weights_only": False} if asked.trust_checkpoint else {}

    def load() -> Any:
        return found.load_from_checkpoint(path, map_location="cpu", **unsafe, **arguments)

    return calling(f"{found.__name__}.load_from_checkpoint({path})", load)


def _class_of(path: Path, trusted: bool) -> str:
    """ "package.module:Class" of what a checkpoint was made of."""

    def load() -> Any:
        return torch.load(path, map_location="cpu", weights_only=not trusted)

    checkpoint = calling(f"reading {path}", load)
    hyperparameters = checkpoint.get("hyper_parameters") if isinstance(checkpoint, dict) else None
    name = (hyperparameters or {}).get(_CLASS)
    if not isinstance(name, str) or "." not in name:
        raise WrongUsage(
            f"--checkpoint: {path} does not say of which class it is, wanted TARGET too: "
            "package.module:Class"
        )
    module, _, cls = name.rpartition(".")
    return f"{module}:{cls}"

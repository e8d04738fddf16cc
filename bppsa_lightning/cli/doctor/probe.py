"""What torch, Lightning and the package say of themselves, stage by stage, as lines of JSON.

Run by its path, in a process of its own: a library that is broken may end it at any line. Each
stage is announced before it begins, so that whoever reads knows where it ended. Nothing of the
package is imported at the top.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

Facts = dict[str, Any]


def of_torch() -> Facts:
    """Version, threads and devices."""
    import torch

    facts: Facts = {
        "version": torch.__version__,
        "path": os.path.dirname(torch.__file__ or ""),
    }
    if _before(torch.__version__, (2, 11)):
        return facts  # more may not be there
    return facts | {
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "devices": _devices(torch),
        "no_devices": _why_no_devices(torch),
    }


def _before(version: str, wanted: tuple[int, int]) -> bool:
    parts = version.split("+")[0].split(".")[:2]
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in parts) < wanted


def _devices(torch: Any) -> list[str]:
    if not torch.version.cuda or not torch.cuda.is_available():
        return []
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def _why_no_devices(torch: Any) -> str | None:
    if not torch.version.cuda or torch.cuda.is_available():
        return None
    try:
        torch.cuda.init()
    except Exception as error:
        return str(error).splitlines()[0].partition(". ")[0]
    return "no device"


def of_lightning() -> Facts:
    """The versions of both packages, where they import."""
    facts: Facts = {}
    for name in ("lightning", "pytorch_lightning"):
        module = "lightning.pytorch" if name == "lightning" else name
        try:
            importlib.import_module(module)
            facts[name] = {"version": sys.modules[name].__version__}
        except ModuleNotFoundError as error:
            if error.name != name:
                facts[name] = {"error": f"it does not import: {error}", "missing": error.name}
        except Exception as error:
            facts[name] = {"error": f"it does not import: {type(error).__name__}: {error}"}
    return facts


def of_package() -> Facts:
    """Imports it."""
    package = importlib.import_module("bppsa_lightning")
    return {"version": package.__version__, "path": os.path.dirname(package.__file__ or "")}


def of_library() -> Facts:
    """Which is loaded, for which instruction set, and whether it computes what PyTorch does."""
    from bppsa_lightning import _library

    return {
        "path": _library._find("_C"),
        "kernels": _library.cpu_kernels(),
        "error": _error(),
        "cuda_path": _library._find("_C_cuda"),
        "cuda": _library.HAS_CUDA_KERNELS,
        "cuda_architectures": _library.recurrent_architectures(),
    }


def _error() -> float:
    """The largest relative difference of a small GRU's gradients from PyTorch's."""
    import torch

    from bppsa_lightning.attach import attach

    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        layer, x = torch.nn.GRU(3, 8), torch.rand(20, 4, 3)
        found = []
        for attached in (False, True):
            if attached:
                attach(layer, "linear")
            layer.zero_grad()
            layer(x)[0].sum().backward()
            grads = (parameter.grad for parameter in layer.parameters())
            found.append([grad.clone() for grad in grads if grad is not None])
    return max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(*found, strict=True))


def of_cuda() -> Facts:
    """For each device: why the kernels cannot run there, and what is known of it."""
    import torch

    from bppsa_lightning import _library
    from bppsa_lightning.planner import gpu_tables

    facts: Facts = {"devices": []}
    if not torch.version.cuda or not torch.cuda.is_available():
        return facts
    for number in range(torch.cuda.device_count()):
        device = torch.device("cuda", number)
        table = gpu_tables.own(device)
        facts["devices"].append(
            {
                "name": torch.cuda.get_device_name(device),
                "missing": _library.missing_recurrent_kernels(device),
                "table": table and table.source,
                "wrong": sorted(table.wrong) if table else [],
            }
        )
    return facts


def of_calibration() -> Facts:
    """Which tables the planner goes by on the CPU."""
    from bppsa_lightning.planner import machine, tables

    this = machine.this_cpu()
    path = tables.user_path(this)
    asked = os.environ.get(machine.TABLE)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        own = tables.read_user(this)
        used = machine.cpu()
        far = machine.suggestion()
    return {
        "machine": dict(this),
        "path": str(path),
        "own": bool(own) and used.get("measured") == (own or {}).get("measured"),
        "unfit": [str(warning.message) for warning in said],
        "asked": asked,
        "used": dict(used["machine"]),
        "measured": dict(used["measured"]),
        "threads": [part["threads"] for part in used["hand_over"]],
        "far": far,
    }


STAGES: dict[str, Callable[[], Facts]] = {
    "torch": of_torch,
    "lightning": of_lightning,
    "package": of_package,
    "library": of_library,
    "cuda": of_cuda,
    "calibration": of_calibration,
}
NEEDED = ("torch", "package")  # without which the next ones say nothing


def main(descriptor: int) -> None:
    """Writes a line when a stage begins, and one with its facts or its error."""
    with open(descriptor, "w", encoding="utf-8") as out:
        for name, stage in STAGES.items():
            print(json.dumps({"begins": name}), file=out, flush=True)
            try:
                line: Facts = {"stage": name, "facts": stage()}
            except Exception as error:
                line = {"stage": name, "error": _described(error)}
            print(json.dumps(line), file=out, flush=True)
            if "error" in line and name in NEEDED:
                return


def _described(error: Exception) -> Facts:
    said, cause = [str(error)], error.__cause__
    while cause is not None:
        if str(cause) not in said[-1]:
            said.append(str(cause))
        cause = cause.__cause__
    return {
        "type": type(error).__name__,
        "message": "; ".join(said),
        "missing": error.name if isinstance(error, ModuleNotFoundError) else None,
    }


if __name__ == "__main__":
    main(int(sys.argv[1]))

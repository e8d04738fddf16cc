"""Does a GPU compute with our kernels, and if not, why?"""

from __future__ import annotations

from typing import Any

from bppsa_lightning.cli.doctor import versions
from bppsa_lightning.cli.doctor.asked import Told
from bppsa_lightning.cli.doctor.finding import NOTE, PROBLEM, Finding

AREA = "cuda"
CALIBRATE = "`bppsa calibrate --device cuda` tests and times the kernels there, in about a minute"


def findings(told: Told) -> list[Finding]:
    """A line for a machine without a GPU, else one for each."""
    torch = told.facts.get("torch", {})
    if "threads" not in torch:
        return []
    if torch["hip"]:
        return [Finding(AREA, "not used: this torch is for ROCm, the kernels are for CUDA", NOTE)]
    if not torch["cuda"]:
        return [Finding(AREA, "not used: this torch was built without CUDA")]
    if not torch["devices"]:
        return [Finding(AREA, f"not used: torch finds no GPU ({torch['no_devices']})")]
    if "cuda" not in told.facts:
        return _unknown(told, torch["devices"])
    return [_device(device) for device in told.facts["cuda"]["devices"]]


def _unknown(told: Told, devices: list[str]) -> list[Finding]:
    names = ", ".join(devices)
    if "library" not in told.facts:
        return [Finding(AREA, f"{names}: nothing is known before the library loads", NOTE)]
    error = told.errors.get("cuda")
    why = f"{error['type']}: {error['message']}" if error else told.ended
    remedy = f"run `nvidia-smi`; then {versions.pip()} check"
    return [Finding(AREA, f"{names}: {why}", PROBLEM, remedy)]


def _device(device: dict[str, Any]) -> Finding:
    if device["missing"]:
        what, _, remedy = device["missing"].partition(": ")
        remedy = remedy or "docs/troubleshooting.md#building"
        return Finding(AREA, f"{device['name']}: PyTorch computes all; {what}", PROBLEM, remedy)
    if device["wrong"]:
        what = f"{device['name']}: {len(device['wrong'])} kernels gave wrong results, not used"
        return Finding(AREA, what, NOTE, CALIBRATE)
    if device["table"] is None:
        what = f'{device["name"]}: no kernel was tested there, so "auto" uses none'
        return Finding(AREA, what, NOTE, CALIBRATE)
    return Finding(AREA, f"{device['name']}: kernels used; {device['table']}")

"""The CUDA kernels' own sources, compiled for the host; what it does is told in the test files."""

import ctypes
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "csrc"
GXX = shutil.which("g++")
needs_gxx = pytest.mark.skipif(GXX is None, reason="the emulator is compiled with g++: none found")


def compiled(driver, *flags):
    """The library of csrc/testing/drivers/<driver>.cpp; skips without a compiler.

    It is compiled once for the sources as they are: build/emulator/ keeps it for the next session.
    """
    if GXX is None:
        pytest.skip(needs_gxx.kwargs["reason"])
    include = Path(torch.__file__).parent / "include"
    command = [GXX, "-std=c++20", "-O1", "-shared", "-fPIC", f"-isystem{include}", *flags]
    command += ["-U_FORTIFY_SOURCE"]  # hardening takes the emulator's jumps for an attack
    command += [str(CSRC / "testing" / "drivers" / f"{driver}.cpp")]
    path = ROOT / "build" / "emulator" / f"{driver}-{fingerprint(command)}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        mine = path.with_suffix(f".{os.getpid()}")  # another session may be at it too
        subprocess.run([*command, "-o", str(mine)], check=True)
        mine.replace(path)
    return ctypes.CDLL(str(path))


def fingerprint(command):
    """Of a command and of all sources that it could read."""
    of_all = hashlib.sha256("\0".join(command).encode())
    for path in sorted(CSRC.rglob("*")):
        if path.suffix in (".h", ".cuh", ".cpp"):
            of_all.update(f"\0{path.relative_to(CSRC)}\0".encode() + path.read_bytes())
    return of_all.hexdigest()[:16]


def fields(kind, *names):
    """Fields of one type in a request."""
    return [(name, kind) for name in names]


def numbers(*names):
    return fields(ctypes.c_int64, *names)


def pointers(*names):
    return fields(ctypes.c_void_p, *names)


class Device(ctypes.Structure):
    """Mirrors Device in csrc/testing/drivers/driver.h: what is emulated, and what is answered."""

    _fields_ = [
        *numbers("seed", "shared_limit", "processors", "scratch_limit", "grid_limit", "untrusted"),
        ("answer", ctypes.c_char * 4096),
    ]

    def __init__(self, **limits):
        given = {"seed": 1, "shared_limit": 227 * 1024, "processors": 132}
        given |= {"scratch_limit": 1 << 30, "grid_limit": 2**31 - 1}
        super().__init__(**given | limits)

    @property
    def launches(self):
        """The names of the kernels that were launched, in order."""
        return self.answer.decode().splitlines()


def run(driver, device, *arguments):
    """Calls a driver, which answers in `device`."""
    failed = driver(*arguments)
    assert not failed, device.answer.decode()
    return device


def name_of(dtype):
    """As a request names it."""
    return str(dtype).removeprefix("torch.").encode()

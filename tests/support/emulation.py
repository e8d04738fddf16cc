"""The CUDA kernels' own sources, compiled for the host; what it does is told in the test files."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

CUDA = Path(__file__).parents[2] / "csrc" / "cuda"
GXX = shutil.which("g++")
needs_gxx = pytest.mark.skipif(GXX is None, reason="the emulator is compiled with g++: none found")


def compiled(source, folder):
    """The library of csrc/cuda/<source>, built in `folder`; skips without a compiler."""
    if GXX is None:
        pytest.skip(needs_gxx.kwargs["reason"])
    path = (folder / source).with_suffix(".so")
    include = Path(torch.__file__).parent / "include"
    command = [GXX, "-std=c++20", "-O1", "-shared", "-fPIC", f"-isystem{include}"]
    command += ["-U_FORTIFY_SOURCE"]  # hardening takes the emulator's jumps for an attack
    subprocess.run([*command, str(CUDA / source), "-o", str(path)], check=True)
    return ctypes.CDLL(str(path))


def fields(kind, *names):
    """Fields of one type in a request."""
    return [(name, kind) for name in names]


def numbers(*names):
    return fields(ctypes.c_int64, *names)


def pointers(*names):
    return fields(ctypes.c_void_p, *names)


# What the scans that report their launches are told of the device, and what they report.
DEVICE = [
    *numbers("seed", "shared_limit", "processors", "scratch_limit", "grid_limit", "untrusted"),
    ("launches", ctypes.c_char * 4096),
]
LIMITS = {
    "seed": 1,
    "shared_limit": 227 * 1024,
    "processors": 132,
    "scratch_limit": 1 << 30,
    "grid_limit": 2**31 - 1,
}


def name_of(dtype):
    """As a request names it."""
    return str(dtype).removeprefix("torch.").encode()

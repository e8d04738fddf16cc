"""The CUDA kernels' own sources, compiled for the host; what it does is told in the test files."""

import ctypes
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "csrc"
GXX = shutil.which("g++")
FLAGS = os.environ.get("BPPSA_EMULATOR_FLAGS", "").split()  # such as -fsanitize=undefined
needs_gxx = pytest.mark.skipif(GXX is None, reason="the emulator is compiled with g++: none found")


def compiled(driver):
    """The library of csrc/testing/drivers/<driver>.cpp; skips without a compiler.

    It is compiled once for the sources as they are: build/emulator/ keeps it for the next session.
    """
    if GXX is None:
        pytest.skip(needs_gxx.kwargs["reason"])
    include = Path(torch.__file__).parent / "include"
    command = [GXX, "-std=c++20", "-O1", "-shared", "-fPIC", f"-isystem{include}", *FLAGS]
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
        *numbers("seed", "shared_limit", "processors", "scratch_limit", "grid_limit"),
        *numbers("untrusted", "barriers"),
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


def mirror(name, *groups):
    """A struct of csrc/requests/ with the fields of all groups."""
    return type(name, (ctypes.Structure,), {"_fields_": [f for group in groups for f in group]})


STORAGE = [torch.float32, torch.float64, torch.bfloat16, torch.float16]  # requests/plan.h
ALGORITHMS = ["linear", "chunked", "blelloch"]
storage = fields(ctypes.c_int, "storage")
Plan = mirror("Plan", fields(ctypes.c_int, "algorithm"), numbers("chunk", "levels"))


def plan_of(algorithm, chunk=1, levels=0):
    return Plan(ALGORITHMS.index(algorithm), chunk, levels)


def storage_of(tensor):
    return STORAGE.index(tensor.dtype)


def run(driver, *arguments, **limits):
    """Calls a driver, with structs and addresses, on a device of these limits; it answers there."""
    device = Device(**limits)
    failed = driver(
        *(
            ctypes.c_void_p(argument) if isinstance(argument, int) else ctypes.byref(argument)
            for argument in (*arguments, device)
        )
    )
    assert not failed, device.answer.decode()
    return device


def first_step(tensor, backwards=False):
    """The address of the step that a recurrence begins at, as in csrc/operators/tensors.h."""
    last = tensor.shape[0] - 1 if backwards and tensor.shape[0] else 0
    return tensor.data_ptr() + last * tensor.stride(0) * tensor.element_size()


def strides_of(tensor, dimensions, backwards=False):
    """Those of the first `dimensions`; time first, negative where it runs backwards."""
    stride = list(tensor.stride()[:dimensions])
    return [-stride[0] if backwards else stride[0], *stride[1:]]


def scan_request(kind, maps, grad, out, backwards):
    """A DenseScanRequest or DiagonalScanRequest."""
    strides = strides_of(maps, maps.dim(), backwards)
    if backwards and maps.dim() == 4:
        strides[2:] = strides[:1:-1]
    T, B, H = maps.shape[:3]
    return kind(
        storage_of(grad), T, B, H,
        first_step(grad, backwards), (ctypes.c_int64 * 3)(*strides_of(grad, 3, backwards)),
        first_step(out, backwards), (-1 if backwards else 1) * B * H,
        first_step(maps, backwards), (ctypes.c_int64 * maps.dim())(*strides),
    )  # fmt: skip


def scan_request_type(name, dimensions):
    return mirror(
        name, storage, numbers("T", "B", "H"), pointers("grad"),
        [("grad_stride", ctypes.c_int64 * 3)], pointers("out"), numbers("out_step"),
        pointers("maps"), [("stride", ctypes.c_int64 * dimensions)],
    )  # fmt: skip


DenseScanRequest = scan_request_type("DenseScanRequest", 4)
DiagonalScanRequest = scan_request_type("DiagonalScanRequest", 3)

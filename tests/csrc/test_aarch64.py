"""The CPU kernels of aarch64 (NEON), compiled and run in an emulator, or on such a machine; without
torch, which compares from outside.

Letters: T steps, B batch, I input, H state, G gates.
"""

import platform
import shutil
import subprocess

import numpy as np
import pytest
import torch
from filelock import FileLock
from support.native_build import ROOT, build
from support.recurrent_layers import GATES, module

from bppsa_lightning import reference

CROSS = "aarch64-linux-gnu-"
PLANS = [("linear", 1, 0), ("chunked", 4, 0), ("blelloch", 1, 3)]
# Of rows that fill vectors of 16 bytes, that do not, and that have less than one.
SIZES = [(13, 5, 8), (9, 2, 7), (6, 1, 3), (4, 70, 20)]


@pytest.fixture(scope="module")
def levels():
    """Runs the program of csrc/testing/drivers/levels.cpp: arguments and arrays in, numbers out."""
    options, emulator = [], []
    if platform.machine() != "aarch64":
        found, compiler = shutil.which("qemu-aarch64"), shutil.which(f"{CROSS}g++")
        if not (found and compiler):
            pytest.skip(f"aarch64 is compiled with {CROSS}g++ and run with qemu-aarch64: not found")
        options = [f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_SYSTEM_NAME=Linux"]
        options += ["-DCMAKE_SYSTEM_PROCESSOR=aarch64", "-DCMAKE_EXE_LINKER_FLAGS=-static"]
        emulator = [found]
    # Kept for the next session, and made by one of several processes.
    folder = ROOT / "build" / "aarch64"
    folder.parent.mkdir(exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        build(folder, "-DBPPSA_OPTIMIZATION=-O1", *options, targets=("levels",))
    program = folder / "levels"

    def run(what, plan, sizes, arrays, *more):
        kind = {"float32": "f32", "float64": "f64"}[str(arrays[0].dtype)]
        command = [*emulator, str(program), what, kind, *map(str, (*plan, *sizes, *more))]
        given = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)
        ran = subprocess.run(command, input=given, capture_output=True, timeout=120)
        assert ran.returncode == 0, ran.stderr.decode()
        assert ran.stderr.decode() == "aarch64\n"
        return np.frombuffer(ran.stdout, dtype=arrays[0].dtype)

    return run


def tolerance(dtype):
    return {"float32": 2e-5, "float64": 1e-12}[dtype]


def close(found, wanted, dtype):
    wanted = wanted.numpy()
    scale = max(abs(wanted).max(), 1e-30)
    assert found.shape == wanted.shape and abs(found - wanted).max() / scale < tolerance(dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan[0])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_scan_of_dense_jacobians(levels, sizes, plan, dtype):
    T, B, H = sizes
    generator = np.random.default_rng(0)
    jac_t = generator.normal(size=(T, B, H, H)).astype(dtype) / np.sqrt(H).astype(dtype)
    grad = generator.normal(size=(T + 1, B, H)).astype(dtype)
    found = levels("scan", plan, sizes, [jac_t, grad])
    wanted = reference.reverse_scan(*(torch.from_numpy(a).double() for a in (jac_t, grad)))
    close(found.reshape(grad.shape), wanted, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan[0])
@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_recurrent_layer_and_its_gradients(levels, sizes, cell, plan, dtype):
    (T, B, H), I = sizes, 5
    torch.manual_seed(0)
    two = cell == "lstm"
    layer = module(cell, I, H).to(torch.float64)
    weights = [p.detach().to(getattr(torch, dtype)) for p in layer.parameters()]
    with torch.no_grad():  # the same numbers, at both precisions
        for parameter, weight in zip(layer.parameters(), weights):
            parameter.copy_(weight)
    rows = [(T, B, I), (B, H), *[(B, H)] * two, (T, B, H)]
    x, *states, grad = (torch.randn(size).to(getattr(torch, dtype)) for size in rows)
    found = levels("layer", plan, sizes, [t.numpy() for t in (x, *states, *weights, grad)], I, cell)

    leaves = [t.double().requires_grad_() for t in (x, *states)]
    hx = [t[None] for t in leaves[1:]]
    output = layer(leaves[0], tuple(hx) if two else hx[0])[0]
    wanted = [output, *torch.autograd.grad(output, [*leaves, *layer.parameters()], grad.double())]
    assert found.size == sum(t.numel() for t in wanted)
    for part, tensor in zip(np.split(found, np.cumsum([t.numel() for t in wanted])[:-1]), wanted):
        close(part.reshape(tensor.shape), tensor.detach(), dtype)

"""Builds of csrc/ apart from the installed one: other levels, other flags."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def tool(name):
    """Where a build tool lies, beside this Python or on PATH; skips without it."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        pytest.skip(f"the library is built with {name}: none found")
    return found


def build(folder, *options, targets=("_C",)):
    """Configures csrc/ in `folder` with CMake's options, builds the targets; the folder.

    A warning of the compiler fails the build; so does what `options` turn into errors.
    """
    environment = {key: value for key, value in os.environ.items() if key != "CI"}
    tool("g++")
    configure = [tool("cmake"), "-S", str(ROOT / "csrc"), "-B", str(folder), "-G", "Ninja"]
    configure += [f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", f"-DPython_EXECUTABLE={sys.executable}"]
    configure += ["-DBPPSA_CUDA=OFF", *options]
    for command in (configure, [tool("ninja"), "-C", str(folder), "-j2", *targets]):
        ran = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    return folder

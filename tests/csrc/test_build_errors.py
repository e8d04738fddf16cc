"""What a build says where it cannot succeed: before it compiles, and what to do."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.native_build import ROOT, tool

CSRC = ROOT / "csrc"


def configure(folder, *options, **environment):
    """What CMake says of csrc/, which it is to refuse."""
    command = [tool("cmake"), "-S", str(CSRC), "-B", str(folder), "-G", "Ninja"]
    command += [f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", *options]
    environment = {**os.environ, "CI": "false", **environment}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ran.returncode != 0
    return in_a_line(ran.stderr)


def in_a_line(text):
    said = " ".join(text.split())
    page = (ROOT / "docs" / "installation.md").read_text()
    headings = {h.lower().replace(" ", "-") for h in re.findall("^## (.*)$", page, re.M)}
    assert set(re.findall(r"installation\.md#([\w-]+)", said)) <= headings
    return said


@pytest.mark.parametrize("system", ["Darwin", "Windows"])
def test_other_systems(tmp_path, system):
    script = tmp_path / "elsewhere.cmake"
    script.write_text(
        f"set(CMAKE_HOST_LINUX OFF)\nset(CMAKE_HOST_SYSTEM_NAME {system})\n"
        f"include({(CSRC / 'cmake' / 'platform.cmake').as_posix()})\n"
    )
    ran = subprocess.run([tool("cmake"), "-P", str(script)], capture_output=True, text=True)
    said = in_a_line(ran.stderr)
    assert ran.returncode != 0 and f"found {system}, wanted Linux" in said


@pytest.mark.parametrize("name, version", [("Clang", "19.1"), ("GNU", "10.2.1")])
def test_other_compilers(tmp_path, name, version):
    script = tmp_path / "other.cmake"
    script.write_text(
        f"include({(CSRC / 'cmake' / 'platform.cmake').as_posix()})\n"
        f"set(CMAKE_CXX_COMPILER_ID {name})\nset(CMAKE_CXX_COMPILER_VERSION {version})\n"
        "bppsa_check_compiler()\n"
    )
    ran = subprocess.run([tool("cmake"), "-P", str(script)], capture_output=True, text=True)
    said = in_a_line(ran.stderr)
    assert ran.returncode != 0 and f"found {name} {version}, wanted GCC 11 or newer" in said


def test_a_python_without_torch(tmp_path):
    python = tmp_path / "environment" / "bin" / "python"
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(python.parents[1])], check=True
    )
    said = configure(tmp_path / "build", f"-DPython_EXECUTABLE={python}", PYTHONPATH="")
    assert f"{python} has no torch" in said and "install torch >= 2.11" in said


@pytest.mark.parametrize("version", ["2.9.1+cpu", "2.10.0", "1.13"])
def test_a_torch_that_is_too_old(tmp_path, version):
    torch = tmp_path / "site" / "torch"
    torch.mkdir(parents=True)
    (torch / "__init__.py").write_text("")
    (torch / "version.py").write_text(f"__version__ = '{version}'\n")
    found = ".".join(version.split(".")[:2])
    said = configure(
        tmp_path / "build",
        f"-DPython_EXECUTABLE={sys.executable}",
        PYTHONPATH=str(Path(torch).parent),
    )
    assert f"found torch {found} in {torch}, wanted 2.11 or newer" in said

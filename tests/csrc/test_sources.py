"""What holds for the sources of csrc/cuda as a whole."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.emulation import CSRC, needs_gxx

INCLUDE = re.compile(r'^#include "(.+)"', flags=re.MULTILINE)
CELLS = "recurrent_cell.cu"  # compiled once for each cell: no two objects have a kernel in common


def reached(source):
    """The files that a source includes, directly or not, and itself."""
    found, new = set(), [source.resolve()]
    while new:
        path = new.pop()
        if path not in found:
            found.add(path)
            new += [(path.parent / name).resolve() for name in INCLUDE.findall(path.read_text())]
    return found


def test_kernels_that_count_are_compiled_in_one_source():
    """Each object counts for itself what was not trusted (cuda/device/untrusted.cuh)."""
    counting = [
        path for path in (CSRC / "cuda").rglob("*.cuh") if "report_untrusted();" in path.read_text()
    ]
    users = {
        path.relative_to(CSRC / "cuda").as_posix(): [
            source.name for source in (CSRC / "cuda").glob("*.cu") if path in reached(source)
        ]
        for path in counting
    }
    assert users == {
        "dense/carry.cuh": ["scans.cu"],
        "diagonal/kernels.cuh": ["scans.cu"],
        "recurrent/carry.cuh": [CELLS],
    }


# What is run of the emulator's tests, compiled to stop at undefined behaviour.
WATCHED = {
    ("", "_recurrent", "_jacobians"): (
        "-k",
        "strides or empty or launches or gates_again or options or projections or products",
    ),
    ("_indrnn", "_regularised", "_windows"): ("-m", "not another_case"),
}


@needs_gxx
@pytest.mark.slow
@pytest.mark.parametrize("names", WATCHED, ids="".join)
def test_kernels_do_nothing_undefined(names):
    tests = [str(Path(__file__).with_name(f"test_emulation{name}.py")) for name in names]
    flags = "-O0 -fsanitize=undefined -fno-sanitize-recover=all"
    # These cost most to compile; a null pointer ends the process by itself.
    flags += " -fno-sanitize=null,pointer-overflow,vptr"
    few = WATCHED[names]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *few, *tests],
        env=os.environ | {"BPPSA_EMULATOR_FLAGS": flags},
        check=True,
    )


def test_all_emulated_kernels_are_watched():
    names = {f"test_emulation{name}.py" for names in WATCHED for name in names}
    assert names == {path.name for path in Path(__file__).parent.glob("test_emulation*.py")}

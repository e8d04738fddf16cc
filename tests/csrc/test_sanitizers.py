"""The CPU operators under GCC's sanitizers: no access out of bounds, nothing undefined.

A library of one level is built with them; tests of the operators run with it in a process of their
own.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.native_build import build, tool

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
# What ASan sees by itself, at the access, is not looked for at each pointer as well.
FLAGS = [
    "-fsanitize=address,undefined",
    "-fno-sanitize=null,alignment,object-size,pointer-overflow,vptr",
    "-fno-sanitize-recover=undefined",
]
# Of each operator the cases that go through every branch of its kernel at small sizes.
CHOSEN = {
    "ops/test_instruction_sets.py": "lower and v2",  # every family of kernels, every dtype
    "ops/test_recurrent.py": "may_be_absent or strides or (set_of_wanted and projected)",
    "ops/test_reverse_scan.py": "empty or below_python or (every_plan and bfloat16 and 13)",
    "ops/test_diagonal_scan.py": "below_python",
    "ops/test_linear.py": "no_rows or views or only_gradients",
    "ops/test_sparse.py": "empty or linear",
    "jacobians/test_elementwise.py": "67 or beyond_a_block",
    "jacobians/test_pooling.py": "of_a_batch or nan_and",
    "jacobians/test_products.py": "cases_of and float32 and not places",
    "jacobians/test_weights.py": "conv2d or test_linear",
    "pruned/test_batch_norm.py": "operator_is or constant_channel",
    "csrc/test_hazards.py": "longer or refuses",
}
# A library that is loaded before the package is the one that it takes.
CHILD = """
import sys, torch
torch.ops.load_library(sys.argv[1])
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""


def run(*arguments, folder):
    """Python on `arguments`, which may load a library that was compiled with FLAGS."""
    # ASan has to be the first library, and to find what it wraps: exceptions are in libstdc++.
    preloaded = [
        subprocess.check_output([tool("g++"), f"-print-file-name={name}.so"], text=True).strip()
        for name in ("libasan", "libstdc++")
    ]
    environment = {
        **{name: v for name, v in os.environ.items() if not name.startswith("PYTEST_")},
        "LD_PRELOAD": " ".join(preloaded),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python frees little at its end
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "2",
    }
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="builds a level of x86-64")
def test_they_find_nothing_in_the_cpu_operators(tmp_path):
    # The lowest level: its vectors are the compiler's own, and each access is checked.
    options = ["-DBPPSA_LEVELS=x86-64-v2", "-DBPPSA_OPTIMIZATION=-O0", "-DCMAKE_BUILD_TYPE=None"]
    flags = f"-DCMAKE_CXX_FLAGS={' '.join([*FLAGS, '-fno-omit-frame-pointer'])}"
    build(tmp_path, *options, flags)
    chosen = " or ".join(f"({Path(name).stem} and ({which}))" for name, which in CHOSEN.items())
    # What is found is written to file descriptor 2, which pytest would otherwise hold back.
    ran = run(
        *("-c", CHILD, tmp_path / "_C.so", "-q", "-x", "--capture=sys", "-p", "no:cacheprovider"),
        *("-m", "not gpu", "-k", chosen, *(TESTS / name for name in CHOSEN)),
        folder=tmp_path,
    )
    assert ran.returncode == 0, f"{ran.stdout[-8000:]}\n{ran.stderr[-8000:]}"
    assert int(re.search(r"(\d+) passed", ran.stdout).group(1)) > 200
    assert "skipped" not in ran.stdout, ran.stdout


FAULTS = """
#include <stdexcept>
extern "C" int beyond(int n) { int* p = new int[n]; int found = p[n]; delete[] p; return found; }
extern "C" int overflow(int n) { return n + 2147483647; }
extern "C" int fine(int n) {
  try {
    throw std::runtime_error("");
  } catch (const std::exception&) {
    return n;
  }
}
"""


def test_what_they_look_for_is_found(tmp_path):
    source, library = tmp_path / "faults.cpp", tmp_path / "faults.so"
    source.write_text(FAULTS)
    flags = [*FLAGS, "-O0", "-shared", "-fPIC"]
    subprocess.run([tool("g++"), *flags, str(source), "-o", str(library)], check=True)

    def call(function):
        script = f"import ctypes; print(ctypes.CDLL({str(library)!r}).{function}(3))"
        return run("-c", script, folder=tmp_path)

    assert call("fine").stdout == "3\n"
    for function, said in (("beyond", "heap-buffer-overflow"), ("overflow", "signed integer ")):
        ran = call(function)
        assert ran.returncode != 0 and said in ran.stderr, ran.stderr

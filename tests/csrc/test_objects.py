"""Builds of the CPU library: levels are sealed, names mean one thing."""

import platform
import re
import subprocess

import pytest
from support.native_build import build, tool

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="its levels are those of x86-64"),
]

LEVELS = ["x86-64-v2", "x86-64-v3", "x86-64-v4"]
# Defined by the compiler itself, the same in every object; constructors without a body, which are
# functions only where nothing is inlined.
OF_THE_COMPILER = {"DW.ref.__gxx_personality_v0"} | {
    f"_ZNSt{of}C{kind}Ev" for of in ("9exception", "9bad_alloc") for kind in (1, 2)
}


def leaked(objects, level):
    """What the objects of a level define for others to see, outside the level's namespace.

    The linker keeps one of several weak functions of a name: one that two levels share may be the
    one with the instructions that this machine lacks.
    """
    name = level.replace("-", "_")
    sealed = re.compile(rf"_Z(GV|T[VISTC]|Z)*N[VK]*5bppsa{len(name)}{name}")
    nm = [tool("nm"), "--defined-only", "--format=posix", "--no-sort", *map(str, objects)]
    lines = subprocess.run(nm, check=True, capture_output=True, text=True).stdout.splitlines()
    symbols = [line.split()[:2] for line in lines if not line.endswith(":")]
    assert any(sealed.match(symbol) for symbol, kind in symbols), "no object of the level was seen"
    seen = {symbol for symbol, kind in symbols if kind.isupper() or kind in "uvw"}
    return sorted(s for s in seen if not sealed.match(s) and s not in OF_THE_COMPILER)


def test_levels_are_sealed_and_one_name_means_one_thing_in_the_whole_library(tmp_path):
    # Without optimisation every template that is used is a function of its own. The objects hold
    # code, for nm, and what -flto compares when it links: definitions of one name.
    flags = "-DCMAKE_CXX_FLAGS=-flto=2 -ffat-lto-objects -Wodr -Werror=odr"
    build(tmp_path, f"-DBPPSA_LEVELS={';'.join(LEVELS)}", "-DBPPSA_OPTIMIZATION=-O0", flags)
    for level in LEVELS:
        objects = [o for folder in tmp_path.rglob(f"{level}*.dir") for o in folder.rglob("*.o")]
        assert len(objects) == 13  # four cells of two dtypes, and five sources
        assert leaked(objects, level) == []


def test_a_leak_is_found(tmp_path):
    source = tmp_path / "leak.cpp"
    source.write_text(
        "#include <algorithm>\n#include <vector>\n"
        "namespace bppsa::x86_64_v4 { void sorted(std::vector<int>& v) "
        "{ std::sort(v.begin(), v.end()); } }"
    )
    compiled = tmp_path / "leak.o"
    subprocess.run([tool("g++"), "-O1", "-c", str(source), "-o", str(compiled)], check=True)
    assert any("sort" in symbol for symbol in leaked([compiled], "x86-64-v4"))

"""Objects of the CPU library: levels are sealed."""

import platform
import re
import subprocess

import pytest
from support.native_build import ROOT, build, tool

from bppsa_lightning._cells import CELLS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="its levels are those of x86-64"),
]

LEVELS = ["x86-64-v2", "x86-64-v3", "x86-64-v4"]
# Defined by the compiler itself, the same in every object.
OF_THE_COMPILER = {"DW.ref.__gxx_personality_v0"}


def leaked(objects, level):
    """What the objects of a level define for others to see, outside the level's namespace.

    The linker keeps one of several weak functions of a name: one that two levels share may be the
    one with the instructions that this machine lacks.
    """
    name = level.replace("-", "_")
    sealed = re.compile(rf"_Z(GV|T[VISTCHW]|Z)*N[VK]*5bppsa{len(name)}{name}")
    nm = [tool("nm"), "--defined-only", "--format=posix", "--no-sort", *map(str, objects)]
    lines = subprocess.run(nm, check=True, capture_output=True, text=True).stdout.splitlines()
    symbols = [line.split()[:2] for line in lines if not line.endswith(":")]
    assert any(sealed.match(symbol) for symbol, kind in symbols), "no object of the level was seen"
    seen = {symbol for symbol, kind in symbols if kind.isupper() or kind in "uvw"}
    return sorted(s for s in seen if not sealed.match(s) and s not in OF_THE_COMPILER)


def installed(level):
    """The objects of a level in the folder where the installed library was built, if it has any."""
    for folder in (ROOT / "build").glob("py3-none-*"):
        compiled = (folder / "build.ninja").read_text()
        found = [o for d in folder.glob(f"CMakeFiles/{level}*.dir") for o in d.rglob("*.o")]
        if found := [o for o in found if str(o.relative_to(folder)) in compiled]:
            return found
    return []


@pytest.mark.parametrize("level", LEVELS)
def test_no_function_leaks_out_of_a_level(level, tmp_path):
    objects = installed(level)
    if not objects:
        # The cells share all but their formula: one of each of the two forms.
        targets = [level, f"{level}_rnn_tanh_float", f"{level}_lstm_float"]
        build(tmp_path, f"-DBPPSA_LEVELS={level}", "-DBPPSA_OPTIMIZATION=-O1", targets=targets)
        objects = list(tmp_path.rglob("*.o"))
    assert len(objects) in (13, 11 + 2 * len(CELLS))  # and two dtypes
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

"""Includes run downwards: a file includes nothing that is built upon it, and no circle exists."""

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"

# From the roof down. A folder may include itself and what stands below it; the two backends do not
# know each other. The builders of requests are a storey of their own: they know torch's tensors and
# the list of cells. So are the kernels of an instruction set, which know no torch.
STOREYS = [
    {"library.cpp"},
    {"cpu", "cuda"},
    {"requests/from_tensors"},
    {"cpu/levels"},
    {"recurrent", "jacobians", "sparse"},
    {"scan"},
    {"cells"},
    {"simd"},
    {"requests"},
    {"testing"},
]
# Below, but none of its business: the scan algorithms know chains, not cells.
KEPT_APART = {("scan", "cells")}
# Programs of the tests, included by nobody: they stand on the roof.
DRIVERS = "testing/drivers"
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def sources():
    return [p for p in sorted(CSRC.rglob("*")) if p.suffix in {".h", ".cpp", ".cu", ".cuh"}]


def includes():
    """Of each source, the sources that it includes; both as paths below csrc/."""
    found = {}
    for source in sources():
        names = INCLUDE.findall(source.read_text())
        targets = [(source.parent / name).resolve() for name in names]
        missing = [str(t) for t in targets if not t.is_file()]
        assert not missing, f"{source.relative_to(CSRC)} includes what does not exist: {missing}"
        found[source.relative_to(CSRC)] = [t.relative_to(CSRC.resolve()) for t in targets]
    return found


def folder(path):
    for name in ("requests/from_tensors", "cpu/levels", DRIVERS):
        if path.is_relative_to(name):
            return name
    return path.parts[0]


def storey(name):
    """The number of a folder's storey, 0 for the roof."""
    if name == DRIVERS:
        return 0
    (found,) = [i for i, names in enumerate(STOREYS) if name in names]
    return found


def may_include(source, target):
    here, there = folder(source), folder(target)
    return here == there or (storey(here) < storey(there) and (here, there) not in KEPT_APART)


def test_every_source_stands_in_a_storey():
    for source in sources():
        storey(folder(source.relative_to(CSRC)))


def test_includes_run_downwards():
    upward = [
        f"{source} includes {target}"
        for source, targets in includes().items()
        for target in targets
        if not may_include(source, target)
    ]
    assert not upward, "\n".join(upward)


def test_no_header_includes_itself_by_way_of_others():
    graph = includes()
    done = set()

    def visit(source, path):
        assert source not in path, " -> ".join(map(str, [*path[path.index(source) :], source]))
        if source not in done:
            for target in graph[source]:
                visit(target, [*path, source])
            done.add(source)

    for source in graph:
        visit(source, [])


@pytest.mark.parametrize(
    ("source", "target", "allowed"),
    [
        ("cpu/scans.cpp", "scan/scan.h", True),
        ("recurrent/step.h", "cells/cell.h", True),
        ("scan/scan.h", "simd/parallel.h", True),
        ("scan/scan.h", "cells/cell.h", False),
        ("scan/scan.h", "recurrent/chain.h", False),
        ("cells/gru.h", "recurrent/step.h", False),
        ("cpu/scans.cpp", "cuda/scans.cu", False),
        ("cpu/levels/scans.cpp", "cpu/scans.cpp", False),
        ("requests/scans.h", "requests/from_tensors/scans.h", False),
        ("testing/drivers/dense.cpp", "cuda/dense/scan.cuh", True),
        ("testing/emulator.h", "requests/plan.h", False),
    ],
)
def test_what_is_upward(source, target, allowed):
    assert may_include(Path(source), Path(target)) is allowed

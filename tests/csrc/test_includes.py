"""Includes run downwards: a file includes nothing that is built upon it, and no circle exists."""

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"

# From the roof down. A folder may include itself and what stands below it; the two backends do not
# know each other. A backend's sources stand above its folders, `cuda/device` below the others. The
# operators stand below both backends: they know torch's tensors and the list of cells. The kernels
# of an instruction set know no torch.
STOREYS = [
    {"library.cpp"},
    {"cpu/*.cpp", "cuda/*.cu"},
    {"cuda/recurrent"},
    {"cuda/dense", "cuda/diagonal", "cuda/jacobians"},
    {"cpu/*.h", "cuda/device"},
    {"operators"},
    {"cpu/levels"},
    {"recurrent", "jacobians", "sparse"},
    {"scan"},
    {"cells"},
    {"simd"},
    {"requests"},
    {"testing"},
]
# Below, but none of its business: the scan algorithms know chains, not cells.
KEPT_APART = {("scan", "cells"), ("cpu", "cuda"), ("cuda", "cpu")}
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
    if path.is_relative_to(DRIVERS):
        return DRIVERS
    if path.parts[0] in ("cpu", "cuda"):
        return f"{path.parent}/*{path.suffix}" if len(path.parts) == 2 else str(path.parent)
    return path.parts[0]


def storey(name):
    """The number of a folder's storey, 0 for the roof."""
    if name == DRIVERS:
        return 0
    (found,) = [i for i, names in enumerate(STOREYS) if name in names]
    return found


def may_include(source, target):
    here, there = folder(source), folder(target)
    apart = (source.parts[0], target.parts[0]) in KEPT_APART
    return here == there or (storey(here) < storey(there) and not apart)


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
        ("cpu/scans.cpp", "cuda/device/numbers.cuh", False),
        ("cpu/levels/scans.cpp", "operators/scans.h", False),
        ("cuda/scans.cu", "cuda/dense/scan.cuh", True),
        ("cuda/recurrent/written.cuh", "cuda/dense/chain.cuh", True),
        ("cuda/dense/scan.cuh", "cuda/device/segments.cuh", True),
        ("cuda/dense/scan.cuh", "cuda/diagonal/map.cuh", False),
        ("cuda/device/segments.cuh", "cuda/dense/chain.cuh", False),
        ("requests/scans.h", "operators/scans.h", False),
        ("testing/drivers/dense.cpp", "cuda/dense/scan.cuh", True),
        ("testing/emulator.h", "requests/plan.h", False),
    ],
)
def test_what_is_upward(source, target, allowed):
    assert may_include(Path(source), Path(target)) is allowed

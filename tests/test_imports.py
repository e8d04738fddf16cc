"""Imports of the package run downwards only, read from the source."""

import ast
from pathlib import Path

import pytest

import bppsa_lightning

PACKAGE = Path(bppsa_lightning.__file__).parent
# From the roof to the ground; the private modules are below all others.
LEVELS = (
    ("__main__",),
    ("__init__",),
    ("cli",),
    ("registries",),
    ("chain_strategy", "private"),
    ("strategy", "fabric", "callbacks", "layerpipe"),
    ("runs",),
    ("idle",),
    ("explain", "calibration", "gains"),
    ("attach",),
    ("nn",),
    ("recurrent", "depth", "pruned", "steps"),
    ("chain",),
    ("divided",),
    ("windows",),
    ("jacobians",),
    ("ops",),
    ("planner",),
    ("reference", "reference_cells", "ranks", "report"),
)
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
GROUND = len(LEVELS)


def modules():
    """{dotted name: path} of every module but the datamodules, a package of their own."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] != "datasets"
    }


def imports_of(source, name, known):
    """The modules of the package that a module's source imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {m for imported in found if (m := module_of(imported, known)) is not None} - {name}


def module_of(imported, known):
    """The module in which a dotted name is looked up, of those in the package."""
    if imported.partition(".")[0] != "bppsa_lightning":
        return None
    parts = imported.split(".")[1:]
    for end in range(len(parts), 0, -1):
        for name in (".".join(parts[:end]), ".".join([*parts[:end], "__init__"])):
            if name in known:
                return name
    return "__init__"


def level_of(module):
    first = module.partition(".")[0]
    return GROUND if first.startswith("_") and first not in LEVEL else LEVEL[first]


@pytest.fixture(scope="module")
def graph():
    known = modules()
    return {name: imports_of(path.read_text(), name, known) for name, path in known.items()}


def test_every_module_has_its_level(graph):
    assert {level_of(name) for name in graph} == {*range(GROUND + 1)}


def upward(graph):
    """The imports of modules above, or beside in another folder; nobody imports the roof.

    Only `_library` asks the package itself for its __path__, when it is called.
    """
    return [
        f"{name} imports {other}"
        for name, imported in graph.items()
        for other in imported
        if (name, other) != ("_library", "__init__")
        and name.partition(".")[0] != other.partition(".")[0]
        and level_of(other) <= level_of(name)
        and not level_of(name) == level_of(other) == GROUND
    ]


def circle(graph):
    """Modules that import each other in a circle; None if there are none."""
    done, path = set(), []

    def visit(name):
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        path.append(name)
        found = next(filter(None, map(visit, graph[name] - {"__init__"})), None)
        done.add(path.pop())
        return found

    return next(filter(None, map(visit, graph)), None)


def test_imports_run_downwards(graph):
    assert not upward(graph)


def test_no_modules_import_each_other_in_a_circle(graph):
    assert circle(graph) is None


def test_what_runs_upwards_or_in_a_circle_is_seen():
    assert upward({"ops.scan": {"jacobians.pattern"}}) == ["ops.scan imports jacobians.pattern"]
    assert upward({"depth.stack": {"pruned.fusion"}, "_cells": {"planner.plan"}})
    assert not upward({"depth.stack": {"depth.scan", "chain", "_cells"}, "_a": {"_b"}})
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


def test_only_ops_and_the_library_call_the_operators():
    callers = {
        name.partition(".")[0]
        for name, path in modules().items()
        if "torch.ops.bppsa" in path.read_text()
    }
    assert callers == {"ops", "_library"}


@pytest.mark.parametrize(
    "source, imported",
    [
        ("import bppsa_lightning.ops.scan", {"ops.scan"}),
        ("from bppsa_lightning import ops", {"ops.__init__"}),
        ("def f():\n    from bppsa_lightning.depth import stack as s", {"depth.stack"}),
        ("from bppsa_lightning.depth.stack import FeedforwardChain", {"depth.stack"}),
        ("from torch import ops", set()),
    ],
)
def test_imports_are_read(source, imported):
    assert imports_of(source, "reference", modules()) == imported


def test_no_file_is_longer_than_400_lines():
    root = Path(__file__).parents[1]
    written = [
        path
        for folder in ("bppsa_lightning", "csrc", "datasets", "experiments", "tests", "docs")
        for path in (root / folder).rglob("*")
        if path.suffix in (".py", ".h", ".cpp", ".cu", ".cuh")
    ]
    lengths = {path: len(path.read_text().splitlines()) for path in written}
    assert len(lengths) > 500
    assert not {str(path): lines for path, lines in lengths.items() if lines > 400}

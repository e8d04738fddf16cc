"""Imports of the package run downwards only, read from the source."""

import ast
from pathlib import Path

import pytest

import bppsa_lightning

PACKAGE = Path(bppsa_lightning.__path__[0])
# From the roof to the ground; the private modules are below all others.
LEVELS = (
    ("__init__",),
    ("strategy", "callbacks"),
    ("explain",),
    ("attach",),
    ("recurrent", "depth", "pruned"),
    ("chain",),
    ("jacobians",),
    ("ops",),
    ("planner",),
    ("reference",),
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
    return GROUND if first.startswith("_") and first != "__init__" else LEVEL[first]


@pytest.fixture(scope="module")
def graph():
    known = modules()
    return {name: imports_of(path.read_text(), name, known) for name, path in known.items()}


def test_every_module_has_its_level(graph):
    assert {level_of(name) for name in graph} == {*range(GROUND + 1)}


def test_no_module_imports_one_above_it_or_beside_it(graph):
    """Families, say, know nothing of each other; within a folder anything goes but a circle."""
    upward = [
        f"{name} imports {other}"
        for name, imported in graph.items()
        for other in imported
        if level_of(other) <= level_of(name)
        and level_of(name) != GROUND
        and name.partition(".")[0] != other.partition(".")[0]
    ]
    upward += [
        f"{name} imports {other}"
        for name, imported in graph.items()
        for other in imported
        if level_of(name) == GROUND
        and level_of(other) != GROUND
        # Looks for the libraries along the package's __path__, when it is called.
        and (name, other) != ("_library", "__init__")
    ]
    assert not upward


def test_no_modules_import_each_other_in_a_circle(graph):
    done, path = set(), []

    def visit(name):
        assert name not in path, f"a circle: {' -> '.join([*path[path.index(name) :], name])}"
        if name in done:
            return
        path.append(name)
        for other in graph[name] - {"__init__"}:
            visit(other)
        done.add(path.pop())

    for name in graph:
        visit(name)


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

"""Every script parses its command line; imports run downwards, and nothing changes sys.path."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXPERIMENTS = ROOT / "experiments"
FILES = sorted(EXPERIMENTS.rglob("*.py"))
SCRIPTS = [path for path in FILES if '__name__ == "__main__"' in path.read_text()]
TRAININGS = [path for path in SCRIPTS if path.parent.name == "train"]
ORDER = (
    "style", "recording", "train", "compare", "benchmarks", "paper", "examples", "numbers",
    "redraw",
)  # fmt: skip


def name_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("path", [p for p in SCRIPTS if p not in TRAININGS], ids=name_of)
def test_help(path, capsys):
    script = importlib.import_module(name_of(path))
    with pytest.raises(SystemExit) as done:
        script.main(["--help"])
    assert done.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    summary = " ".join(script.__doc__.split("\n")[0].split())
    assert summary in printed and script.parser().format_help()
    # What its text shows can be typed.
    run = name_of(path).removesuffix(".__main__")
    assert f"python -m {run}" in script.__doc__


@pytest.mark.parametrize("path", TRAININGS, ids=name_of)
def test_help_of_a_training(path, capsys):
    pytest.importorskip("jsonargparse", reason="needs jsonargparse, of the extra experiments")
    script = importlib.import_module(name_of(path))
    with pytest.raises(SystemExit) as done:
        script.main(["fit", "--help"])
    assert done.value.code == 0
    printed = capsys.readouterr().out
    assert "--folder" in printed and "--model.lr" in printed and "--checkpoint" in printed
    assert path.with_suffix(".yaml").is_file()
    assert f"python -m {name_of(path)} fit" in script.__doc__


def test_few_files_stand_beside_the_packages():
    flat = [path.name for path in EXPERIMENTS.iterdir() if path.is_file()]
    assert len(flat) <= 8, flat


def imported(path):
    """The parts of experiments/ that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (n.split(".")[1] for n in names if n.startswith("experiments."))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_run_downwards(path):
    own = path.relative_to(EXPERIMENTS).parts[0].removesuffix(".py")
    for part in imported(path):
        assert ORDER.index(part) <= ORDER.index(own), f"{own} imports {part}"
    assert "sys.path" not in path.read_text()


def commands():
    """The modules that the README tells to run: {name: its line}."""
    found, prefix = {}, None
    for line in (EXPERIMENTS / "README.md").read_text().splitlines():
        if heading := re.match(r"\| command, after `python -m (experiments\.[a-z.]*)`", line):
            prefix = heading.group(1)
        elif prefix and line.startswith("| `"):
            for command in re.findall(r"`([^`]+)`", line.split("|")[1]):
                found[prefix + command.split()[0]] = line
        elif not line.startswith("|"):
            prefix = None
    return found


def test_the_readme_tells_how_to_run_every_script():
    names = {name_of(path).removesuffix(".__main__") for path in SCRIPTS}
    helpers = {"experiments.numbers", "experiments.benchmarks.recurrent_memory"}  # of other scripts
    assert set(commands()) == names - helpers
    for name, line in commands().items():
        assert re.search(r"\d+ (s|min|h)\b|both together", line), f"{name}: how long?"

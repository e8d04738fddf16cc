"""What a release is made of agrees: versions, platforms, workflows, files that GitHub looks for."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CHECK = ROOT / ".ci" / "check-version"
PYPROJECT = (ROOT / "pyproject.toml").read_text()
VERSION = re.search(r'^version = "(.*)"$', PYPROJECT, re.M)[1]

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="an sdist has no workflows")


def workflow(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())


def triggers(loaded):
    return loaded[True]  # YAML 1.1 takes `on` for true


def commands(loaded):
    return [
        step["run"]
        for job in loaded["jobs"].values()
        for step in job.get("steps", ())
        if "run" in step
    ]


# --- versions ------------------------------------------------------------------------------------


def check_version(folder, tag, *options):
    command = [sys.executable, str(folder / ".ci" / "check-version"), tag, *options]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def release(tmp_path):
    """The files that name a version, as they are when this one is released."""
    (tmp_path / ".ci").mkdir()
    for name in (".ci/check-version", "pyproject.toml", "CITATION.cff", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    changelog = tmp_path / "CHANGELOG.md"
    text = changelog.read_text()
    dated = text.replace("## [Unreleased]\n", f"## [Unreleased]\n\n## [{VERSION}] - 2026-12-01\n")
    changelog.write_text(f"{dated}\n## [0.0.1] - 2020-01-01\n\nOlder.\n")
    return tmp_path


def test_a_tag_of_this_version_is_released_with_its_notes(release):
    ran = check_version(release, f"v{VERSION}", "--notes")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("### Added") and "### Fixed" in ran.stdout
    assert "Older" not in ran.stdout and "## [" not in ran.stdout.replace("### [", "")


def test_another_tag_is_refused(release):
    ran = check_version(release, "v9.9.9", "--notes")
    assert ran.returncode == 1 and not ran.stdout
    for file in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md"):
        assert f"{file}: found" in ran.stderr
    (release / "CITATION.cff").write_text("version: 0.0.1\n")
    ran = check_version(release, f"v{VERSION}")
    assert ran.returncode == 1 and len(ran.stderr.splitlines()) == 1


def test_a_version_whose_changes_are_not_dated_is_refused():
    if f"## [{VERSION}]" not in (ROOT / "CHANGELOG.md").read_text():
        assert "no dated part" in check_version(ROOT, f"v{VERSION}").stderr


def test_the_changelog_is_one_by_keep_a_changelog():
    text = (ROOT / "CHANGELOG.md").read_text()
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert re.findall(r"^## (.*)$", text, re.M)[0] == "[Unreleased]"
    assert set(re.findall(r"^### (.*)$", text, re.M)) <= kinds


def test_the_citation_names_this_version_and_licence():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == VERSION
    assert f'license = "{citation["license"]}"' in PYPROJECT


# --- workflows -----------------------------------------------------------------------------------


def test_the_matrix_is_what_the_package_says_of_itself():
    matrix = workflow("tests")["jobs"]["versions"]["strategy"]["matrix"]
    classified = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PYPROJECT)
    assert matrix["python"] == classified
    assert f'requires-python = ">={classified[0]}"' in PYPROJECT
    oldest = re.search(r'dependencies = \["torch>=([\d.]+)"', PYPROJECT)[1]
    assert matrix["torch"][0] == f"=={oldest}.*" and matrix["torch"][-1] == f">={oldest}"
    pinned = re.search(r"^torch==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(), re.M)[1]
    assert f"=={pinned}.*" in matrix["torch"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_run_what_is_there_and_may_no_more_than_they_need(path):
    loaded = yaml.safe_load(path.read_text())
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    if not (ROOT / "docs" / "site" / "mkdocs.yml").exists():
        targets.add("docs")  # pages without a site
    for command in commands(loaded):
        for target in re.findall(r"\bmake ([\w-]+)", command):
            assert target in targets, target
        for script in re.findall(r"(?<![\w/])\.ci/[\w-]+", command):
            assert (ROOT / script).is_file(), script
    assert loaded["permissions"] == {"contents": "read"}
    for job in loaded["jobs"].values():
        called = job.get("uses")
        assert called is None or (ROOT / called).is_file()
        assert "timeout-minutes" in job or called or job.get("environment"), "it may run for hours"
        names = job.get("needs", [])
        assert {*([names] if isinstance(names, str) else names)} <= loaded["jobs"].keys()


def test_nothing_is_published_before_all_tests_and_without_a_tag():
    release = workflow("release")
    assert triggers(release) == {"push": {"tags": ["v*"]}}
    jobs = release["jobs"]
    assert set(jobs["publish"]["needs"]) == {"tests", "wheels"}
    assert all(jobs[name]["needs"] == "version" for name in jobs["publish"]["needs"])
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()


def test_what_builds_wheels_is_there():
    settings = PYPROJECT[PYPROJECT.index("[tool.cibuildwheel]") :]
    tools = re.search(r"before-build = \"bash \{package\}/(\S+) ", settings)[1]
    assert (ROOT / tools).is_file()
    folder, script = re.search(
        r'test-command = "cd \{package\}/(\S+) && python (\S+)"', settings
    ).groups()
    assert (ROOT / folder / script).is_file()
    oldest = re.search(r'dependencies = \["torch>=([\d.]+)"', PYPROJECT)[1]
    assert f"torch=={oldest}.*" in (ROOT / tools).read_text()


@pytest.mark.parametrize("name", ["SECURITY.md", "CODE_OF_CONDUCT.md"])
def test_files_that_github_looks_for(name):
    assert (ROOT / ".github" / name).read_text().startswith("# ")

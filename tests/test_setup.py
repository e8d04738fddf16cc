"""`make develop` with stand-ins for Python, pip and uv: who installs what, by whose settings."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/sh
here=$(dirname "$0")
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$here/uv" "$3/bin/uv" ;;
  *" pip "*) echo "pip $*" >> "$CALLS"; printf "%b" "$LOOKED" ;;
esac
"""
UV = """#!/bin/sh
echo "uv $* at [$UV_DEFAULT_INDEX] [$UV_INDEX] [$UV_FIND_LINKS]" >> "$CALLS"
exit $UV_STATUS
"""


@pytest.fixture
def installed(tmp_path):
    """From uv's exit status and more variables to the calls of pip and uv, each a line."""

    def installed(status: int, fails: bool = False, **variables: str) -> list[str]:
        for name in ("Makefile", "constraints.txt", "pyproject.toml"):
            shutil.copy(ROOT / name, tmp_path)
        for name in ("csrc", "datasets", "tools"):
            (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / "datasets" / "__init__.py").touch()
        for name, text in (("python", PYTHON), ("uv", UV)):
            (tmp_path / "tools" / name).write_text(text)
            (tmp_path / "tools" / name).chmod(0o755)
        calls = tmp_path / "calls"
        kept = {
            name: of for name, of in os.environ.items() if not name.startswith(("PIP_", "MAKE"))
        }
        calls.write_text("")
        ran = subprocess.run(
            ["make", "develop", "PYTHON=tools/python"],
            cwd=tmp_path, capture_output=True,
            env={**kept, "CALLS": str(calls), "UV_STATUS": str(status), **variables},
        )  # fmt: skip
        assert bool(ran.returncode) == fails, ran.stderr
        return calls.read_text().splitlines()

    return installed


def test_uv_installs_all_but_itself_and_the_package(installed):
    calls = installed(0)
    by_pip = [call for call in calls if call.startswith("pip")]
    assert len(by_pip) == 2
    assert by_pip[0].endswith(" uv") and "--editable ." in by_pip[1]
    by_uv = [call for call in calls if call.startswith("uv")]
    assert len(by_uv) == 3
    assert " torch " in by_uv[0] and " --extra experiments " in by_uv[1]
    assert " --extra audio --extra test --extra lint --extra vision --extra docs " in by_uv[2]
    assert all("-c constraints.txt" in call for call in by_uv)


@pytest.mark.parametrize(
    ("looked", "wanted"),
    [
        ("", "[] [] []"),
        ("Looking in links: /wheels\\n", "[] [] [/wheels]"),
        (
            "Looking in indexes: https://a/simple, file:///b\\nLooking in links: /c, /d\\n",
            "[https://a/simple] [https://a/simple file:///b] [/c,/d]",
        ),
    ],
)
def test_uv_looks_where_pip_does_and_in_that_order(installed, looked, wanted):
    calls = installed(0, LOOKED=looked)
    at = [call.partition(" at ")[2] for call in calls if call.startswith("uv")]
    assert at == [wanted] * 3


def test_pip_installs_where_uv_does_not(installed):
    by_pip = [call for call in installed(2) if call.startswith("pip")]
    assert len(by_pip) == 5
    assert " torch " in by_pip[1] and by_pip[3].endswith(" bppsa-lightning[experiments]")
    assert by_pip[4].endswith(" bppsa-lightning[audio,test,lint,vision,docs]")


def test_after_a_uv_that_was_killed_all_is_installed_again(installed):
    [by_pip, killed] = installed(137, fails=True)
    assert by_pip.endswith(" uv") and "--reinstall" not in killed  # pip would take half for whole
    by_uv = [call for call in installed(0) if call.startswith("uv")]
    assert ["--reinstall" in call for call in by_uv] == [True, False, False]

"""The wheel: one py3-none file that trains in an empty environment without a compiler. And the
sdist, from which a wheel is built in an empty folder."""

import os
import platform
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from support.native_build import tool

ROOT = Path(__file__).parents[2]
TRAINING = ROOT / "tests" / "support" / "wheel_training.py"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]

NO_COMPILER = """
import shutil, runpy, sys
assert not any(map(shutil.which, ("cc", "gcc", "g++", "c++", "cmake", "ninja", "nvcc")))
runpy.run_path(sys.argv[1])["main"](sys.argv[2])
"""


def wheel_of(source, folder, *options, **variables):
    """Builds a wheel, with what is installed here; its path."""
    build = [*PIP, "wheel", str(source), "--no-deps", "--no-build-isolation", "-w", str(folder)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([*build, *options], check=True, cwd=folder, env={**environment, **variables})
    (wheel,) = folder.glob("*.whl")
    assert "-py3-none-linux_" in wheel.name
    return wheel


def check_contents(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {"bppsa_lightning/_C.so", "bppsa_lightning/py.typed"} <= set(names)
    assert "bppsa_lightning/datasets/bitstream.py" in names
    assert len(names) == len(set(names))
    top = {name.partition("/")[0] for name in names}
    assert len(top) == 2 and all(name.startswith("bppsa_lightning") for name in top)


def train_in_an_empty_environment(wheel, folder):
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = environment / "lib" / version / "site-packages"
    subprocess.run(
        [*PIP, "install", "--no-deps", "--no-index", "--target", str(site), str(wheel)], check=True
    )
    # torch and lightning come from here: a .pth file, whose own .pth files (the editable install
    # of this project among them) Python does not follow.
    (site / "dependencies.pth").write_text(sysconfig.get_path("platlib") + "\n")
    python = str(environment / "bin" / "python")
    ran = subprocess.run(
        [python, "-c", NO_COMPILER, str(TRAINING), str(environment)],
        env={"PATH": str(environment / "bin"), "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert re.match(r"trained with bppsa_lightning \d", ran.stdout.splitlines()[-1])


@pytest.mark.wheel
def test_the_wheel_trains_in_an_empty_environment_without_a_compiler(tmp_path):
    # Outside CI its kernels are those of the installed build, whose objects it takes.
    wheel = wheel_of(ROOT, tmp_path, CI=os.environ.get("CI", "false"))
    check_contents(wheel)
    train_in_an_empty_environment(wheel, tmp_path)


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The sdist, unpacked where there is nothing else."""
    folder = tmp_path_factory.mktemp("sdist")
    build = "from scikit_build_core.build import build_sdist; import sys; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(folder)], check=True, cwd=ROOT)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        kinds = {entry.name: entry for entry in file.getmembers()}
        assert all(entry.isfile() or entry.isdir() for entry in kinds.values())
        file.extractall(folder / "alone", filter="data")
    (source,) = (folder / "alone").iterdir()
    return source


@pytest.mark.slow
def test_the_sdist_holds_the_sources_and_nothing_that_was_compiled(sdist):
    tracked = ["git", "ls-files", "bppsa_lightning", "csrc", "datasets", "tests", "docs"]
    listed = subprocess.run(tracked, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a clone: git does not list the files")
    files = {p.relative_to(sdist).as_posix() for p in sdist.rglob("*") if p.is_file()}
    assert set(listed.stdout.split()) <= files
    assert {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "PKG-INFO"} <= files
    compiled = (".so", ".o", ".pyc", ".whl")
    assert not [name for name in files if name.endswith(compiled) or "/build/" in f"/{name}"]
    assert sum((sdist / name).stat().st_size for name in files) < 30e6


@pytest.mark.wheel
def test_a_wheel_of_the_sdist_trains_and_each_name_means_one_thing_in_it(sdist, tmp_path):
    """The linker compares what two objects, and two levels, call by one name (-Wodr)."""
    levels = "x86-64-v2;x86-64-v3" if platform.machine() == "x86_64" else "native"
    options = ["BPPSA_OPTIMIZATION=-O0", "BPPSA_CUDA=OFF", f"BPPSA_LEVELS={levels}"]
    options.append("CMAKE_CXX_FLAGS=-flto=2 -Wodr -Werror=odr")
    settings = [f"--config-settings=cmake.define.{option}" for option in options]
    wheel = wheel_of(sdist, tmp_path, *settings, CI="false")
    check_contents(wheel)
    (rules,) = sdist.glob("build/*/build.ninja")
    link = rules.read_text().partition("# Link the shared module _C.so")[2].partition("# Link")[0]
    assert "-flto=2 -Wodr -Werror=odr" in link
    train_in_an_empty_environment(wheel, tmp_path)


def test_names_that_mean_two_things_are_found(tmp_path):
    """By the same flags, of a struct that two sources have otherwise."""
    objects = []
    for name, member in (("one", "int"), ("two", "double")):
        source = tmp_path / f"{name}.cpp"
        source.write_text(
            f"struct Tile {{ {member} size; virtual ~Tile() {{}} }};\n"
            f"int {name}(Tile* tile) {{ return int(tile->size); }}\n"
        )
        objects.append(f"{source}")
    flags = ["-O0", "-flto=2", "-Wodr", "-Werror=odr", "-shared", "-fPIC"]
    command = [tool("g++"), *flags, *objects, "-o", str(tmp_path / "found.so")]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode != 0 and "Tile" in ran.stderr, ran.stderr

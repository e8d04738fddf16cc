"""`doctor` where the package is really broken, in a Python of its own: the right remedy each."""

import json
import re
import struct

import pytest
from support.bare_python import BarePython


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    return BarePython(tmp_path_factory.mktemp("empty"))


@pytest.fixture(scope="module")
def without_lightning(tmp_path_factory):
    python = BarePython(tmp_path_factory.mktemp("python"))
    python.link_packages(but=("lightning", "pytorch_lightning"))
    return python


@pytest.fixture
def library(without_lightning):
    """The file, whole again after the test."""
    path = without_lightning.package / "_C.so"
    whole = path.read_bytes()
    yield path
    path.write_bytes(whole)


def problems(python, **variables):
    """{what: remedy}, from the one object on stdout."""
    done = python.run("doctor", "--json", **variables)
    told = json.loads(done.stdout)
    found = {f["what"]: f["remedy"] for f in told["findings"] if f["level"] == "problem"}
    assert done.returncode == bool(found) and told["ok"] == (not found), done.stderr
    return found


def of_library(python, **variables):
    found = problems(python, **variables)
    (lightning,) = (what for what in found if what.startswith("Lightning is not installed"))
    assert found.pop(lightning).endswith('pip install --upgrade "lightning>=2.6"')
    ((what, remedy),) = found.items()
    return what, remedy


def code(library):
    """Offset and size of what an ELF file lets the processor execute (64 bits, little-endian)."""
    (table,) = struct.unpack_from("<Q", library, 0x20)
    size, count = struct.unpack_from("<2H", library, 0x36)
    found = []
    for at in range(table, table + size * count, size):
        kind, flags, offset, _, _, bytes_ = struct.unpack_from("<2I4Q", library, at)
        if kind == 1 and flags & 1:  # loaded, executable
            found.append((offset, bytes_))
    assert found
    return found


def test_without_torch(empty):
    ((what, remedy),) = problems(empty).items()
    assert what == "torch is not installed"
    assert remedy == f'{empty.python} -m pip install --upgrade "torch>=2.11"'


@pytest.mark.parametrize(
    "source, what, remedy",
    [
        ("__version__ = '2.3.1+cpu'", "torch 2.3.1+cpu is too old: 2.11 or newer", "--upgrade"),
        ("import nowhere", "torch does not import: nowhere is missing", "install nowhere"),
        ("1 / 0", "torch does not import: ZeroDivisionError", "--force-reinstall"),
        ("import os; os.kill(os.getpid(), 4)", "killed by SIGILL", "--force-reinstall"),
    ],
)
def test_with_a_torch_that_does_not_do(empty, source, what, remedy):
    torch = empty.site / "torch.py"
    torch.write_text(source + "\n")
    try:
        ((found, advice),) = problems(empty).items()
    finally:
        torch.unlink()
    assert what in found and remedy in advice


def test_the_other_commands_send_the_reader_to_doctor(empty):
    done = empty.run("bench", "a:B", "--input", "1", "--json")
    assert done.returncode == 1
    assert "doctor" in json.loads(done.stdout)["error"] and "doctor" in done.stderr
    assert "Traceback" not in done.stderr
    assert empty.run("--help").returncode == 0


def test_without_library_and_compiler(without_lightning, library):
    library.unlink()
    what, remedy = of_library(without_lightning, PATH="/nowhere")
    assert "_C.so is missing, and no C++ compiler was found" in what
    assert remedy.startswith("install a C++ compiler (on Debian and Ubuntu: apt-get install g++)")
    assert "pip install --force-reinstall --no-deps ." in remedy


@pytest.mark.slow
def test_with_a_library_that_is_cut_off(without_lightning, library):
    library.write_bytes(library.read_bytes()[: library.stat().st_size // 2])
    what, remedy = of_library(without_lightning)
    assert re.search(r"_C\.so is damaged: it is cut off: it has [\d,]+ of [\d,]+ bytes", what)
    assert "--force-reinstall" in remedy


@pytest.mark.slow
def test_with_a_library_for_another_torch(without_lightning, library):
    whole = library.read_bytes()
    name = re.search(rb"aoti_torch_\w+", whole)[0]
    library.write_bytes(whole.replace(name, b"gone_by_now" + name[11:]))
    what, remedy = of_library(without_lightning)
    assert "built for another torch than this one (it lacks gone_by_now" in what
    assert "--force-reinstall" in remedy


@pytest.mark.slow
def test_with_a_library_that_crashes(without_lightning, library):
    whole = bytearray(library.read_bytes())
    for offset, size in code(whole):
        whole[offset : offset + size] = b"\x0f\x0b" * (size // 2) + bytes(size % 2)  # ud2
    library.write_bytes(whole)
    what, remedy = of_library(without_lightning)
    assert "SIG" in what
    assert "--force-reinstall" in remedy


@pytest.mark.slow
def test_without_lightning_all_else_is_looked_at(without_lightning):
    found = problems(without_lightning)
    assert [what.split(":")[0] for what in found] == ["Lightning is not installed"]


@pytest.mark.slow
def test_files_that_nobody_installed(without_lightning):
    (info,) = without_lightning.site.glob("bppsa_lightning-*.dist-info")
    away = info.rename(info.with_name("away"))
    try:
        what, remedy = of_library(without_lightning)
    finally:
        away.rename(info)
    assert "nobody has installed it" in what and "pip install" in remedy

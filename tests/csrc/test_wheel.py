"""The wheel: one py3-none file that runs in an empty environment without a compiler."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SCRIPT = """
import shutil, torch, bppsa_lightning as bl
from pathlib import Path
assert shutil.which("cc") is None and shutil.which("g++") is None
assert Path(bl.__file__).is_relative_to({environment!r}), bl.__file__
jac_t, grad = torch.randn(6, 2, 3, 3), torch.randn(7, 2, 3)
for algorithm in ("linear", "chunked", "blelloch"):
    found = bl.ops.reverse_scan(jac_t, grad, algorithm)
    torch.testing.assert_close(found, bl.reference.reverse_scan(jac_t, grad))
rnn = torch.nn.RNN(1, 4)
assert len(bl.attach(rnn)) == 1
rnn(torch.rand(5, 2, 1))[0].sum().backward()
from bppsa_lightning.datasets import BitstreamDataModule
print("ran", bl.__version__)
"""


@pytest.mark.wheel
def test_wheel_runs_in_an_empty_environment_without_a_compiler(tmp_path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = [*pip, "wheel", str(ROOT), "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    # Outside CI its kernels are those of the installed build, whose objects it takes.
    subprocess.run(build, check=True, env={"CI": "false", **os.environ})
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert {"bppsa_lightning/_C.so", "bppsa_lightning/py.typed"} <= set(names)
    assert "bppsa_lightning/datasets/bitstream.py" in names
    assert not [n for n in names if n.startswith(("csrc/", "tests/", "datasets/", "experiments/"))]

    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = environment / "lib" / version / "site-packages"
    subprocess.run(
        [*pip, "install", "--no-deps", "--no-index", "--target", str(site), str(wheel)], check=True
    )
    # torch and lightning come from here: a .pth file, whose own .pth files (the editable install
    # of this project among them) Python does not follow.
    (site / "dependencies.pth").write_text(sysconfig.get_path("platlib") + "\n")
    script = SCRIPT.format(environment=str(environment))
    ran = subprocess.run(
        [str(environment / "bin" / "python"), "-c", script],
        env={"PATH": str(environment / "bin")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0 and ran.stdout.startswith("ran"), ran.stderr

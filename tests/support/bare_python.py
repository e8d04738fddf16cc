"""A Python of its own, with a copy of the package and chosen other packages: to break it.

Nothing is downloaded: packages are links to those that are installed here.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import bppsa_lightning

# The cheap way to a file of the standard library's size that another Python finds.
SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


class BarePython:
    """A virtual environment in a folder.

    Attributes:
        site: its folder of packages.
        package: the copy of ours; what is in it may be broken.
    """

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = folder / "bin" / "python"
        self.site = folder / SITE
        self.package = self.site / "bppsa_lightning"
        ours = Path(bppsa_lightning.__file__).parent
        shutil.copytree(ours, self.package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        for folder in bppsa_lightning.__path__:
            for library in Path(folder).glob("*.so"):
                if not (self.package / library.name).exists():
                    shutil.copyfile(library, self.package / library.name)
        self.installed()

    def installed(self) -> None:
        """As an installer leaves it."""
        version = importlib.metadata.version("bppsa-lightning")
        info = self.site / f"bppsa_lightning-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: bppsa-lightning\nVersion: {version}\n"
        )

    def link_packages(self, but: tuple[str, ...] = ()) -> None:
        """Gives it what is installed here, but ours, and but those whose names begin so."""
        for place in {Path(path) for path in sys.path if path.endswith("site-packages")}:
            for entry in place.iterdir():
                skipped = ("bppsa", "_editable", "__editable", "sitecustomize", "_virtualenv", *but)
                if not entry.name.startswith(skipped) and not (self.site / entry.name).exists():
                    (self.site / entry.name).symlink_to(entry)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess:
        """`python -m bppsa_lightning command`, with nothing of ours in its environment."""
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "BPPSA_TABLE")}
        return subprocess.run(
            [self.python, "-m", "bppsa_lightning", *command],
            cwd=self.site.parents[2],
            env=kept | {"OMP_NUM_THREADS": "1"} | variables,
            capture_output=True,
            text=True,
            timeout=300,
        )

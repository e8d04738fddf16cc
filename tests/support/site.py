"""The documentation site, built, and a server of it."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "docs" / "site" / "mkdocs.yml"


_BUILD = """
import json, logging, sys
from mkdocs.commands.build import build
from mkdocs.config import load_config
logging.basicConfig(level="WARNING")
build(load_config(sys.argv[1], strict=True, **json.loads(sys.argv[2])))
"""


def build(folder: Path, **settings: object) -> subprocess.CompletedProcess[str]:
    """Builds the site into `folder`, as `make docs` does, with other `settings` where given."""
    return subprocess.run(
        [sys.executable, "-c", _BUILD, CONFIG, json.dumps({"site_dir": str(folder), **settings})],
        capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip


def built(tmp_path_factory) -> Path:
    """The folder of the site, built for the tests of a module."""
    folder = tmp_path_factory.mktemp("site") / "site"
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def pages(folder: Path) -> list[str]:
    """The pages of a site, as paths of their addresses: "", "docs/planner/", …."""
    found = (path.parent.relative_to(folder) for path in sorted(folder.rglob("index.html")))
    return ["" if path == Path() else f"{path}/" for path in found]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of the site in `folder`, on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()

"""Pages in a headless Chromium: what a script finds in them, and what the console says."""

import json
import re
import shutil
import subprocess
import threading
from contextlib import contextmanager
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FOUND = next(filter(None, map(shutil.which, NAMES)), None)
needs_chromium = pytest.mark.skipif(FOUND is None, reason=f"no browser here ({', '.join(NAMES)})")

# A page in a frame of a phone's width, or wider: Chromium's own window is never that narrow.
FRAME = """<!doctype html><body><iframe style="border:0" width={width} height=900 src="{page}">
</iframe><script>onload = () => {{ const frame = document.querySelector("iframe");
  const page = frame.contentDocument, view = frame.contentWindow;
  const found = {{ {found} }}; document.body.innerHTML = "<pre id=found></pre>";
  document.getElementById("found").textContent = JSON.stringify(found); }}</script>"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args):
        """Says nothing."""


@contextmanager
def served(folder):
    """The address of a folder, of which the names that were asked for are kept in `asked`."""
    asked = []

    class Handler(_Quiet):
        def do_GET(self):
            asked.append(self.path)
            super().do_GET()

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def chromium(address, profile, dark=False, *arguments):
    """(The page's DOM as text, what its console said)."""
    command = [
        FOUND, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
        f"--user-data-dir={profile}", "--virtual-time-budget=2000", "--dump-dom",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}", *arguments, address,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def look(folder, page, profile, found, width=1200, dark=False):
    """What a script finds in a page: ({name: value}, what the console said, what was asked for).

    Args:
        found: {name: an expression of `page`, the document, and `view`, its window}.
    """
    script = ", ".join(f"{json.dumps(name)}: {what}" for name, what in found.items())
    frame = folder / f"frame_{width}_{dark}.html"
    frame.write_text(FRAME.format(width=width, page=page, found=script))
    with served(folder) as (address, asked):
        dom, console = chromium(f"{address}/{frame.name}", profile, dark)
    text = re.search('<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    return json.loads(unescape(text.group(1))), console, asked

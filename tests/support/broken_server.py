"""A web server of this machine that does one thing wrong after the other."""

import contextlib
import hashlib
import http.server
import re
import threading
from collections import Counter


class BrokenServer(http.server.ThreadingHTTPServer):
    """Serves one content under any path, and does what its attributes say.

    Attributes:
        content: what it serves.
        asked: the Range of each request, None without one.
        paths: how often each path was asked for.
        cuts: of each answer, the bytes after which the connection is closed.
        stalls: of each answer, the bytes after which nothing more comes.
        trickle: seconds between pieces of 1,000 bytes.
        ranges: whether it knows Range.
        statuses: of each answer, the status instead of an answer; None for one.
        retry_after: the header of that name, with a status.
        shift: bytes by which the part that it sends lies elsewhere than asked for.
        claims: the length that it claims, ``""`` for none; None for the true one.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, content):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content, self.asked, self.paths = content, [], Counter()
        self.cuts, self.stalls, self.statuses = [], [], []
        self.ranges, self.shift, self.claims = True, 0, None
        self.trickle = self.retry_after = None
        self.ended = threading.Event()

    def url(self, name="data.zip"):
        return f"http://127.0.0.1:{self.server_port}/{name}?download=1"

    def checksum(self):
        return f"md5:{hashlib.md5(self.content).hexdigest()}"

    @contextlib.contextmanager
    def running(self):
        with self:
            threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
            try:
                yield self
            finally:
                self.ended.set()
                self.shutdown()

    def handle_error(self, request, client_address):
        """Whoever went away is not to be wondered at."""


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        server, asked = self.server, self.headers["Range"]
        server.asked.append(asked)
        server.paths[self.path.partition("?")[0]] += 1
        status = server.statuses.pop(0) if server.statuses else None
        if status:
            return self._refuse(status)
        start = 0
        if asked and server.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])
            if start >= len(server.content):
                return self._refuse(416)
        whole = len(server.content) if server.claims is None else server.claims
        if start:
            self.send_response(206)
            first = start + server.shift
            last = len(server.content) - 1
            self.send_header("Content-Range", f"bytes {first}-{last}/{whole or '*'}")
        else:
            self.send_response(200)
        if whole != "":
            self.send_header("Content-Length", str(whole - start))
        self.end_headers()
        self._send(server.content[start:])

    def _send(self, content):
        server = self.server
        cut = server.cuts.pop(0) if server.cuts else len(content)
        stall = server.stalls.pop(0) if server.stalls else None
        content = content[: cut if stall is None else stall]
        if server.trickle is None:
            self.wfile.write(content)
        else:
            for begin in range(0, len(content), 1000):
                self.wfile.write(content[begin : begin + 1000])
                if server.ended.wait(server.trickle):
                    return
        if stall is not None:
            server.ended.wait(60)

    def _refuse(self, status):
        self.send_response(status)
        if self.server.retry_after is not None:
            self.send_header("Retry-After", self.server.retry_after)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass

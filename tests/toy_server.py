"""A small web server that misbehaves on demand."""

import hashlib
import http.server
import re
import threading
from pathlib import Path

import numpy as np
import pytest

from ratemesh.data.known import KnownFile

CONTENT = np.random.default_rng(0).bytes(300_000)
FILE = KnownFile("file.bin", hashlib.md5(CONTENT).hexdigest(), len(CONTENT))
NOWHERE = "http://127.0.0.1:9/"


class Handler(http.server.BaseHTTPRequestHandler):
    server: "Server"

    def do_GET(self) -> None:
        content = self.server.files.get(self.path.lstrip("/"))
        start = int(re.findall(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-"))[0])
        self.server.asked.append(start)
        if content is None:
            self.send_error(404)
            return
        start = 0 if self.server.no_ranges else start
        if start and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        self.wfile.write(content[start : start + self.server.cut])

    def log_message(self, *_: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"file.bin": CONTENT}
        self.asked: list[int] = []
        self.cut = 1 << 30
        self.no_ranges = False
        self.url = f"http://127.0.0.1:{self.server_port}/"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as running:
        threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield running
        running.shutdown()


def quiet(name: str, done: int, total: int | None) -> None:
    pass


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]

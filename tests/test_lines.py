"""Lines between sites: what goes in comes out in order, late where the line is slow, and not at all where it is cut."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from benchmarks.lines import Lines


@pytest.fixture
def echo() -> Iterator[str]:
    """A server that sends back what it hears."""
    server = socket.create_server(("127.0.0.1", 0))

    def answer(end: socket.socket) -> None:
        while data := end.recv(65536):
            end.sendall(data)
        end.close()

    def serve() -> None:
        while True:
            try:
                end, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(end,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield f"127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def call(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    end = socket.create_connection((host, int(port)), 10)
    end.settimeout(10)
    return end


def read(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := end.recv(65536)):
        data += more
    return data


def test_bytes_arrive_whole_in_order_and_late(echo: str) -> None:
    sent = bytes(range(256)) * 2000
    with closing(Lines(delay=0.1, lost=0.5)) as lines, call(lines.line(0, 1, echo)) as end:
        began = time.monotonic()
        threading.Thread(target=end.sendall, args=(sent,), daemon=True).start()
        assert read(end, len(sent)) == sent
        assert time.monotonic() - began >= 0.2  # there and back


def test_a_cut_breaks_lines_between_parts_only_until_it_is_healed(echo: str) -> None:
    with closing(Lines()) as lines:
        inside, across = lines.line(0, 1, echo), lines.line(0, 2, echo)
        with call(inside) as near, call(across) as far:
            for end in (near, far):
                end.sendall(b"a")
                assert read(end, 1) == b"a"
            lines.cut({0, 1}, {2})
            assert far.recv(1) == b""
            near.sendall(b"b")
            assert read(near, 1) == b"b"
        with call(across) as again:
            assert again.recv(1) == b""
        lines.heal()
        with call(across) as again:
            again.sendall(b"c")
            assert read(again, 1) == b"c"


def test_a_site_that_is_not_there_is_not_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    with closing(Lines()) as lines, call(lines.line(0, 1, nobody)) as end:
        assert end.recv(1) == b""

"""TCP lines between sites on one machine that can be slow and be cut: a bad network without the rights to make one."""

import contextlib
import queue
import random
import socket
import threading
import time
from collections.abc import Iterable

CHUNK = 65536
BEGIN_SECONDS = 5.0

Pair = frozenset[int]
Parcel = tuple[float, bytes]


class Lines:
    """Every line listens on a port of its own and passes bytes on to a site, in both directions.

    Args:
        delay: seconds that every chunk of bytes takes.
        lost: part of the chunks that takes another `delay`, as when TCP sends a lost packet again; order is kept.
    """

    def __init__(self, delay: float = 0.0, lost: float = 0.0, seed: int = 0) -> None:
        self._delay, self._lost, self._draw = delay, lost, random.Random(seed)
        self._down: set[Pair] = set()
        self._open: dict[Pair, list[socket.socket]] = {}
        self._listening: list[socket.socket] = []
        self._lock = threading.Lock()

    def line(self, caller: int, callee: int, address: str) -> str:
        """Return the address at which `caller` reaches `callee`, who listens on `address`, both host:port."""
        listening = socket.create_server(("127.0.0.1", 0))
        self._listening.append(listening)
        host, _, port = address.rpartition(":")
        ends = (frozenset((caller, callee)), (host, int(port)))
        threading.Thread(target=self._accept, args=(listening, *ends), daemon=True).start()
        return f"127.0.0.1:{listening.getsockname()[1]}"

    def cut(self, *parts: Iterable[int]) -> None:
        """Cut all lines between different parts: what is open breaks, and nothing new comes through."""
        groups = [set(part) for part in parts]
        with self._lock:
            self._down = {frozenset((i, j)) for a in groups for b in groups if a is not b for i in a for j in b}
            broken = [end for pair in self._down for end in self._open.pop(pair, [])]
        for end in broken:
            _shut(end)

    def heal(self) -> None:
        """Let everything through again."""
        with self._lock:
            self._down = set()

    def close(self) -> None:
        """End all lines."""
        with self._lock:
            ends = [*self._listening, *(end for ends in self._open.values() for end in ends)]
        for end in ends:
            _shut(end)

    def _accept(self, listening: socket.socket, pair: Pair, there: tuple[str, int]) -> None:
        while True:
            try:
                near, _ = listening.accept()
            except OSError:
                return  # closed
            try:
                far = socket.create_connection(there, BEGIN_SECONDS)
                far.settimeout(None)
            except OSError:
                near.close()
                continue
            with self._lock:
                up = pair not in self._down
                if up:
                    self._open.setdefault(pair, []).extend((near, far))
            if not up:
                _shut(near)
                _shut(far)
                continue
            for one, other in ((near, far), (far, near)):
                line: queue.SimpleQueue[Parcel | None] = queue.SimpleQueue()
                threading.Thread(target=self._take_in, args=(one, line), daemon=True).start()
                threading.Thread(target=_give_out, args=(line, other), daemon=True).start()

    def _take_in(self, end: socket.socket, line: "queue.SimpleQueue[Parcel | None]") -> None:
        while True:
            try:
                data = end.recv(CHUNK)
            except OSError:
                data = b""
            if not data:
                line.put(None)
                return
            late = self._delay * (2 if self._draw.random() < self._lost else 1)
            line.put((time.monotonic() + late, data))


def _give_out(line: "queue.SimpleQueue[Parcel | None]", end: socket.socket) -> None:
    while (parcel := line.get()) is not None:
        due, data = parcel
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            end.sendall(data)
        except OSError:
            break
    _shut(end)


def _shut(end: socket.socket) -> None:
    """Close a socket, also under the hands of a thread that waits for it."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()

"""Hosts: sites in this process, or in a worker process behind a pipe; one interface."""

import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any, Protocol

from ratemesh.engines import wire
from ratemesh.engines.protocol import Site, SiteFactory
from ratemesh.errors import RatemeshError
from ratemesh.messages.formats import Payload
from ratemesh.training.protocol import Exchange, Inbox, Round, RoundLog

Event = Exchange | RoundLog
Letters = Mapping[int, Payload]
"""What arrived, by sender, not yet read."""


class Host(Protocol):
    """Some of the nodes. Commands are carried out in order; each gives one event."""

    nodes: Sequence[int]

    def begin(self, node: int, t: int) -> None:
        """Start round t of a node."""

    def resume(self, node: int, letters: Letters) -> None:
        """Go on with what arrived."""

    def next_event(self) -> tuple[int, Event]:
        """Return the next thing that happened: (node, what it sends, or its log)."""

    def request(self, what: str, argument: str) -> None:
        """Have the sites carry out an errand."""

    def answers(self) -> list[Payload]:
        """Return what the sites answered to the last request."""

    def close(self) -> None:
        """End."""


class LocalHost:
    """Sites in this process."""

    def __init__(self, factory: SiteFactory, nodes: Sequence[int]) -> None:
        self.nodes = nodes
        self._sites: dict[int, Site] = {i: factory.build(i) for i in nodes}
        self._rounds: dict[int, Round] = {}
        self._tags: dict[int, str] = {}
        self._todo: deque[tuple[int, Letters | None]] = deque()
        self._answers: list[Payload] = []

    def begin(self, node: int, t: int) -> None:
        """Start round t of a node."""
        self._rounds[node] = self._sites[node].round(t)
        self._todo.append((node, None))

    def resume(self, node: int, letters: Letters) -> None:
        """Go on with what arrived."""
        self._todo.append((node, letters))

    def next_event(self) -> tuple[int, Event]:
        """Carry out the oldest command."""
        node, letters = self._todo.popleft()
        program = self._rounds[node]
        try:
            event = next(program) if letters is None else program.send(self._read(node, letters))
        except StopIteration as end:
            log: RoundLog = end.value
            return node, log
        self._tags[node] = event.tag
        return node, event

    def _read(self, node: int, letters: Letters) -> Inbox:
        """Read what a node waited for; a message that cannot be used ends the run."""
        site, tag = self._sites[node], self._tags[node]
        return {j: site.read(tag, j, payload) for j, payload in letters.items()}

    def request(self, what: str, argument: str) -> None:
        """Have the sites carry out an errand."""
        self._answers = [site.do(what, argument) for site in self._sites.values()]

    def answers(self) -> list[Payload]:
        """Return what the sites answered to the last request."""
        return self._answers

    def close(self) -> None:
        """Nothing to end."""


class WorkerHost:
    """Sites in a worker process (`engines.worker`), reached through a pipe.

    The process is started as a module, not forked: no torch state is inherited, and a caller's script
    needs no `if __name__ == "__main__"`. If this process dies, the pipe closes and the worker ends.
    """

    module = "ratemesh.engines.worker"

    def __init__(self, factory: SiteFactory, nodes: Sequence[int], threads: int) -> None:
        self.nodes = nodes
        ours, theirs = Pipe()
        self.connection: Connection = ours
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.module, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**environment, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        start = {"function": factory.function, "argument": factory.argument, "nodes": list(nodes), "threads": threads}
        self._send(wire.Frame("start", json.dumps(start | self.start_words())))

    def start_words(self) -> dict[str, Any]:
        """Return what the worker is told beside its sites."""
        return {}

    def started(self) -> None:
        """Wait until the worker has built its sites."""
        self.receive()

    def begin(self, node: int, t: int) -> None:
        """Start round t of a node."""
        self._send(wire.Frame("begin", node=node, number=t))

    def resume(self, node: int, letters: Letters) -> None:
        """Go on with what arrived."""
        self._send(wire.Frame("resume", node=node, payloads=letters))

    def next_event(self) -> tuple[int, Event]:
        """Wait for the worker's next event."""
        frame = self.receive()
        if frame.kind == "exchange":
            return frame.node, Exchange(frame.text, frame.payloads, frozenset(frame.peers))
        return frame.node, json.loads(frame.text)

    def request(self, what: str, argument: str) -> None:
        """Have the sites carry out an errand; all workers do so side by side."""
        self._send(wire.Frame("ask", json.dumps([what, argument])))

    def answers(self) -> list[Payload]:
        """Wait for what the sites answered."""
        return list(self.receive().payloads.values())

    def close(self) -> None:
        """Close the pipe: the worker ends by itself."""
        self.connection.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, frame: wire.Frame) -> None:
        try:
            wire.send(self.connection, frame)
        except OSError:
            raise self._died() from None

    def receive(self) -> wire.Frame:
        """Wait for the worker's next frame; one that tells of an error is raised."""
        try:
            frame = wire.receive(self.connection)
        except (EOFError, OSError):
            raise self._died() from None
        if frame.kind == "error":
            raise wire.error(frame)
        return frame

    def _died(self) -> RatemeshError:
        code = self._process.wait()
        return RatemeshError(
            f"the worker process of nodes {list(self.nodes)} ended with exit code {code}. "
            "Out of memory is the usual cause: try fewer engine.workers. The run can be resumed."
        )

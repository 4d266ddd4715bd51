"""Engine `inprocess`: all nodes on this machine, in one process or several, same results for any number."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import wait
from typing import ClassVar

from pydantic import Field

from ratemesh.engines.hosts import Event, Host, Letters, LocalHost, WorkerHost
from ratemesh.engines.protocol import EngineSpec, Played, SiteFactory
from ratemesh.engines.rounds import play_round
from ratemesh.messages.formats import Payload
from ratemesh.threads import cores, pinned


class InProcess(EngineSpec):
    """All nodes on this machine, deterministic for a seed."""

    placement: ClassVar[frozenset[str]] = frozenset({"workers"})
    workers: int = Field(0, ge=0, description="processes that share the nodes; 0 takes one per core")
    threads: int = Field(1, ge=1, description="torch threads of each process; part of what makes runs repeat")

    @contextmanager
    def open(self, factory: SiteFactory, nodes: int) -> Iterator["InProcessEngine"]:
        """Start hosts, end them on the way out."""
        count = self.processes(nodes)
        with ExitStack() as stack:
            if count == 1:
                stack.enter_context(pinned(self.threads))
                yield InProcessEngine([LocalHost(factory, range(nodes))], nodes)
                return
            blocks = [range(w * nodes // count, (w + 1) * nodes // count) for w in range(count)]
            workers = []
            for block in blocks:  # start all, then wait: they import torch side by side
                workers.append(WorkerHost(factory, block, self.threads))
                stack.callback(workers[-1].close)
            for worker in workers:
                worker.started()
            yield InProcessEngine(workers, nodes)

    def processes(self, nodes: int) -> int:
        """Return how many processes are used for this many nodes."""
        return min(nodes, self.workers or cores())


class InProcessEngine:
    """Plays rounds over hosts."""

    def __init__(self, hosts: Sequence[Host], nodes: int) -> None:
        self._hosts = hosts
        self._nodes = nodes
        self._host_of = {node: host for host in hosts for node in host.nodes}
        self._owed: Counter[int] = Counter()  # by host: commands whose event is still to come

    def play(self, t: int) -> Played:
        """Play round t on every node."""
        self._owed.clear()
        return play_round(self, self._nodes, t)

    def begin(self, node: int, t: int) -> None:
        """Start round t of a node."""
        self._commanded(node).begin(node, t)

    def resume(self, node: int, letters: Letters) -> None:
        """Go on with what arrived."""
        self._commanded(node).resume(node, letters)

    def _commanded(self, node: int) -> Host:
        host = self._host_of[node]
        self._owed[id(host)] += 1
        return host

    def next_event(self) -> tuple[int, Event] | None:
        """Return the next event of any host that still owes one."""
        owing = [host for host in self._hosts if self._owed[id(host)]]
        if not owing:
            return None
        behind_pipes = {host.connection: host for host in owing if isinstance(host, WorkerHost)}
        host = owing[0] if not behind_pipes else behind_pipes[wait(list(behind_pipes))[0]]  # type: ignore[index]
        self._owed[id(host)] -= 1
        return host.next_event()

    def ask(self, what: str, argument: str = "") -> list[Payload]:
        """Have every site carry out an errand; return the answers in node order."""
        for host in self._hosts:
            host.request(what, argument)
        return [answer for host in self._hosts for answer in host.answers()]

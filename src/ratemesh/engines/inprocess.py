"""Engine `inprocess`: all nodes on this machine, in one process or several, same results for any number."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from multiprocessing.connection import wait
from typing import ClassVar

from pydantic import Field

from ratemesh.engines.protocol import Call, Engine, EngineSpec, Site, SiteFactory
from ratemesh.engines.rounds import Played, advance, play_round
from ratemesh.engines.workers import Frame, Worker, started, tell_all
from ratemesh.messages.formats import Payload
from ratemesh.threads import cores, pinned
from ratemesh.training.protocol import Exchange, Round, RoundLog

Event = Exchange | RoundLog


class LocalSites(Engine):
    """Sites in this process; where they are all of a run's, its engine."""

    def __init__(self, factory: SiteFactory, nodes: Sequence[int]) -> None:
        self._sites: dict[int, Site] = {i: factory.site(i) for i in nodes}
        self._rounds: dict[int, Round] = {}
        self.events: deque[tuple[int, Event]] = deque()

    def play(self, t: int) -> Played:
        """Play round t on every node."""
        return play_round(self, len(self._sites), t)

    def begin(self, node: int, t: int) -> None:
        """Start round t of a node."""
        self._rounds[node] = self._sites[node].round(t)
        self.events.append((node, advance(self._rounds[node])))

    def resume(self, node: int, tag: str, messages: Mapping[int, Payload]) -> None:
        """Go on with what arrived; a message that cannot be used ends the run."""
        inbox = {j: self._sites[node].read(tag, j, payload) for j, payload in messages.items()}
        self.events.append((node, advance(self._rounds[node], inbox)))

    def next_event(self) -> tuple[int, Event] | None:
        """Return the oldest event that was not asked for yet."""
        return self.events.popleft() if self.events else None

    def carry(self, call: Call) -> list[Payload]:
        """Make the call on every site."""
        return [call.on(site) for site in self._sites.values()]


class SitesHost:
    """Sites in a worker process: does there what `WorkerSites` tells it."""

    def __init__(self, nodes: Sequence[int], recipe: Sequence[str]) -> None:
        self._sites = LocalSites(SiteFactory.from_recipe(recipe), nodes)

    def obey(self, told: Frame) -> Frame:
        """Play a part of a round, or carry out a call."""
        what, *words = told.words
        if what == "carry":
            return Frame(payloads=dict(enumerate(self._sites.carry(Call(*words)))))
        if what == "begin":
            self._sites.begin(*words)
        else:
            node, tag = words
            self._sites.resume(node, tag, told.payloads)
        node, event = self._sites.events.popleft()
        if isinstance(event, Exchange):
            return Frame([node, event.tag, sorted(event.recv)], event.send)
        return Frame([node, dict(event)])


class WorkerSites(Engine):
    """Sites in worker processes."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers
        self._worker_of = {node: worker for worker in workers for node in worker.nodes}
        self._owed: Counter[Worker] = Counter()  # commands whose event is still to come

    def play(self, t: int) -> Played:
        """Play round t on every node."""
        return play_round(self, len(self._worker_of), t)

    def begin(self, node: int, t: int) -> None:
        """Start round t of a node."""
        self._command(node, Frame(["begin", node, t]))

    def resume(self, node: int, tag: str, messages: Mapping[int, Payload]) -> None:
        """Go on with what arrived."""
        self._command(node, Frame(["resume", node, tag], messages))

    def _command(self, node: int, frame: Frame) -> None:
        worker = self._worker_of[node]
        self._owed[worker] += 1
        worker.tell(frame)

    def next_event(self) -> tuple[int, Event] | None:
        """Return the next event of any worker that still owes one."""
        owing = {worker.connection: worker for worker in self._workers if self._owed[worker]}
        if not owing:
            return None
        worker = owing[wait(list(owing))[0]]  # type: ignore[index]
        self._owed[worker] -= 1
        frame = worker.hear()
        node, *said = frame.words
        if len(said) == 1:
            return node, said[0]  # the log
        tag, recv = said
        return node, Exchange(tag, frame.payloads, frozenset(recv))

    def carry(self, call: Call) -> list[Payload]:
        """Make the call on every site; all workers do so side by side."""
        frames = tell_all(self._workers, ["carry", *astuple(call)])
        return [answer for frame in frames for answer in frame.payloads.values()]


class InProcess(EngineSpec):
    """All nodes on this machine, deterministic for a seed."""

    placement: ClassVar[frozenset[str]] = frozenset({"workers"})
    workers: int = Field(0, ge=0, description="processes that share the nodes; 0 takes one per core")
    threads: int = Field(1, ge=1, description="torch threads of each process; part of what makes runs repeat")

    @contextmanager
    def open(self, factory: SiteFactory, nodes: int) -> Iterator[Engine]:
        """Make the sites, end their processes on the way out."""
        count = min(nodes, self.workers or cores())
        if count == 1:
            with pinned(self.threads):
                yield LocalSites(factory, range(nodes))
            return
        blocks = [list(range(w * nodes // count, (w + 1) * nodes // count)) for w in range(count)]
        hosted = [{"nodes": block, "recipe": factory.recipe()} for block in blocks]
        with started(SitesHost, self.threads, hosted) as workers:
            yield WorkerSites(workers)

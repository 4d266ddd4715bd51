"""Engine `zenoh`: one real process a node on this machine, messages between them over Zenoh only.

The run drives the processes through pipes, as it does with workers; what nodes tell each other never touches these.
For sites on different machines, which nobody drives, see `experiment.standalone`.
"""

import math
import secrets
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple
from pathlib import Path
from typing import Any

from pydantic import Field

from ratemesh.engines import certs
from ratemesh.engines.envelope import RUN_BYTES
from ratemesh.engines.mailbox import Rules
from ratemesh.engines.peer import Peer
from ratemesh.engines.protocol import Call, Engine, EngineSpec, SiteFactory
from ratemesh.engines.rounds import Played, Traffic
from ratemesh.engines.workers import Frame, Worker, started, tell_all
from ratemesh.engines.zenoh_link import LinkSpec, TlsSpec, ZenohTransport, load_zenoh
from ratemesh.messages.formats import Payload

START_SECONDS = 120.0


class Zenoh(EngineSpec):
    """One process a node, connected by Zenoh with mutual TLS; a trial of real peers on one machine."""

    threads: int = Field(1, ge=1, description="torch threads of each process; part of what makes runs repeat")
    insecure: bool = Field(False, description="plain TCP on the loopback interface instead of mutual TLS")
    deadline: float = Field(60.0, gt=0, description="seconds of silence after which a node counts as lost")

    @contextmanager
    def open(self, factory: SiteFactory, nodes: int) -> Iterator["ZenohEngine"]:
        """Start a process a node, end them on the way out."""
        load_zenoh()
        with tempfile.TemporaryDirectory(prefix="ratemesh-certs-") as folder:
            links = mesh_links(free_addresses(nodes), None if self.insecure else Path(folder))
            shared = {"recipe": factory.recipe(), "run": secrets.token_hex(RUN_BYTES), "deadline": self.deadline}
            hosted = [{"nodes": [i], "link": link.model_dump(mode="json"), **shared} for i, link in enumerate(links)]
            with started(PeerHost, self.threads, hosted) as workers:
                yield ZenohEngine(workers)


def mesh_links(addresses: Sequence[str], folder: Path | None) -> list[LinkSpec]:
    """Return how nodes that listen on these addresses reach each other: every one calls those before it.

    Args:
        addresses: host:port of every node.
        folder: where to make certificates; None is plain TCP.
    """
    names = tuple(f"node-{i}" for i in range(len(addresses)))
    if folder is not None:
        certs.init(folder, names)
    return [
        LinkSpec(
            names=names,
            listen=(addresses[i],),
            connect=tuple(addresses[:i]),
            tls=folder
            and TlsSpec(ca=folder / "ca.pem", certificate=folder / f"{name}.pem", key=folder / f"{name}.key"),
        )
        for i, name in enumerate(names)
    ]


def free_addresses(count: int) -> list[str]:
    """Return addresses of the loopback interface that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]


class PeerHost:
    """The process of one node: talks to the other nodes over Zenoh, and to the run through its pipe."""

    def __init__(self, nodes: Sequence[int], recipe: Sequence[str], link: Any, run: str, deadline: float) -> None:
        (me,), spec, key = nodes, LinkSpec.model_validate(link), bytes.fromhex(run)
        rules = Rules(deadline=deadline, patience=math.inf, start=START_SECONDS, staleness=0)
        self._site = SiteFactory.from_recipe(recipe).site(me)
        self._peer = Peer(me, len(spec.names), key, rules, lambda k: ZenohTransport(spec, me, key, k), strict=True)
        self._peer.join(1, START_SECONDS)

    def obey(self, told: Frame) -> Frame:
        """Play a round, or carry out a call."""
        what, *words = told.words
        if what == "carry":
            return Frame(payloads={0: Call(*words).on(self._site)})
        played = self._peer.play(self._site, *words)
        sent = played.traffic
        rows = [(*key, count, sent.bytes[key], sent.wire[key]) for key, count in sent.messages.items()]
        return Frame([dict(played.log), rows])


class ZenohEngine(Engine):
    """Begins rounds everywhere and collects what the nodes say of them."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers

    def play(self, t: int) -> Played:
        """Play round t on every node."""
        logs, traffic = [], Traffic()
        for frame in tell_all(self._workers, ["play", t]):
            log, rows = frame.words
            logs.append(log)
            for tag, sender, receiver, messages, payload, sent in rows:
                key = (tag, sender, receiver)
                traffic.messages[key], traffic.bytes[key], traffic.wire[key] = messages, payload, sent
        return Played(logs, traffic)

    def carry(self, call: Call) -> list[Payload]:
        """Make the call on every site; return the answers in node order."""
        return [frame.payloads[0] for frame in tell_all(self._workers, ["carry", *astuple(call)])]

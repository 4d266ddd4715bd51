"""Engine `zenoh`: one real process a node on this machine, messages between them over Zenoh only.

The run drives the processes through pipes, as it does with workers; what nodes tell each other never touches these.
For sites on different machines, which nobody drives, see `experiment.standalone`.
"""

import json
import secrets
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from pydantic import Field

from ratemesh.engines import certs, wire
from ratemesh.engines.envelope import RUN_BYTES
from ratemesh.engines.hosts import WorkerHost
from ratemesh.engines.meter import Traffic
from ratemesh.engines.protocol import EngineSpec, Played, SiteFactory
from ratemesh.engines.zenoh_link import LinkSpec, TlsSpec, load_zenoh
from ratemesh.errors import RatemeshError
from ratemesh.messages.formats import Payload
from ratemesh.training.protocol import RoundLog


class Zenoh(EngineSpec):
    """One process a node, connected by Zenoh with mutual TLS; a trial of real peers on one machine."""

    threads: int = Field(1, ge=1, description="torch threads of each process; part of what makes runs repeat")
    insecure: bool = Field(False, description="plain TCP on the loopback interface instead of mutual TLS")
    deadline: float = Field(60.0, gt=0, description="seconds of silence after which a node counts as lost")

    @contextmanager
    def open(self, factory: SiteFactory, nodes: int) -> Iterator["ZenohEngine"]:
        """Start a process a node, end them on the way out."""
        load_zenoh()
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ratemesh-certs-")))
            links = mesh_links(free_addresses(nodes), None if self.insecure else folder)
            run = secrets.token_hex(RUN_BYTES)
            hosts: list[ZenohHost] = []
            for i, link in enumerate(links):  # start all, then wait: they import torch side by side
                hosts.append(ZenohHost(factory, i, self, link, run))
                stack.callback(hosts[-1].close)
            ZenohEngine.first_word(hosts)
            yield ZenohEngine(hosts)


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


class ZenohHost(WorkerHost):
    """One node in a process of its own (`engines.zenoh_worker`)."""

    module = "ratemesh.engines.zenoh_worker"

    def __init__(self, factory: SiteFactory, node: int, spec: Zenoh, link: LinkSpec, run: str) -> None:
        self._extra = {"link": link.model_dump(mode="json"), "run": run, "deadline": spec.deadline}
        super().__init__(factory, [node], spec.threads)

    def start_words(self) -> dict[str, Any]:
        """Add how to reach the others."""
        return self._extra

    def close(self) -> None:
        """Have the process close its session; one that is busy ends with the pipe."""
        with suppress(RatemeshError):
            self._send(wire.Frame("end"))
        super().close()


class ZenohEngine:
    """Begins rounds everywhere and collects what the nodes say of them."""

    def __init__(self, hosts: Sequence[ZenohHost]) -> None:
        self._hosts = hosts

    def play(self, t: int) -> Played:
        """Play round t on every node."""
        for i, host in enumerate(self._hosts):
            host.begin(i, t)
        logs: list[RoundLog] = [{}] * len(self._hosts)
        traffic = Traffic()
        for i, frame in self.first_word(self._hosts):
            said = json.loads(frame.text)
            logs[i] = said["log"]
            for tag, receiver, messages, payload, sent in said["traffic"]:
                key = (tag, i, receiver)
                traffic.messages[key], traffic.bytes[key], traffic.wire[key] = messages, payload, sent
        return Played(logs, traffic)

    def ask(self, what: str, argument: str = "") -> list[Payload]:
        """Have every site carry out an errand; return the answers in node order."""
        for host in self._hosts:
            host.request(what, argument)
        return [payload for host in self._hosts for payload in host.answers()]

    @staticmethod
    def first_word(hosts: Sequence[ZenohHost]) -> list[tuple[int, wire.Frame]]:
        """Return the next frame of every host, in node order; whoever fails first is heard first."""
        owing = {host.connection: i for i, host in enumerate(hosts)}
        frames = {}
        while owing:
            for ready in wait(list(owing)):
                i = owing.pop(ready)  # type: ignore[call-overload]
                frames[i] = hosts[i].receive()
        return sorted(frames.items())

"""The process of one node of engine `zenoh`: obeys the run at the other end of a pipe, talks to nodes over Zenoh."""

import json
import queue
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from ratemesh.engines import wire
from ratemesh.engines.mailbox import Rules
from ratemesh.engines.peer import Peer, PeerRound
from ratemesh.engines.protocol import Site, SiteFactory
from ratemesh.engines.worker import read_commands
from ratemesh.engines.zenoh_link import LinkSpec, ZenohTransport

START_SECONDS = 120.0


def main(descriptor: int) -> None:
    """Serve until told to end, or until the pipe closes."""
    connection = Connection(descriptor)
    commands: queue.SimpleQueue[wire.Frame] = queue.SimpleQueue()
    threading.Thread(target=read_commands, args=(connection, commands), daemon=True).start()
    try:
        start = json.loads(commands.get().text)
        import torch

        torch.set_num_threads(start["threads"])
        site = SiteFactory(start["function"], start["argument"]).build(start["nodes"][0])
        peer = _peer(start)
        try:
            peer.join(1, START_SECONDS)
            wire.send(connection, wire.Frame("started"))
            while (command := commands.get()).kind != "end":
                wire.send(connection, _obey(site, peer, command))
        finally:
            peer.close()
    except Exception as error:  # every failure belongs to the run, which decides what to show
        wire.send(connection, wire.error_frame(error))


def _peer(start: dict[str, Any]) -> Peer:
    link = LinkSpec.model_validate(start["link"])
    me, run = start["nodes"][0], bytes.fromhex(start["run"])
    rules = Rules(deadline=start["deadline"], patience=float("inf"), start=START_SECONDS, staleness=0)
    return Peer(me, len(link.names), run, rules, lambda k: ZenohTransport(link, me, run, k), strict=True)


def _obey(site: Site, peer: Peer, command: wire.Frame) -> wire.Frame:
    if command.kind == "ask":
        what, argument = json.loads(command.text)
        return wire.Frame("answer", payloads={0: site.do(what, argument)})
    return wire.Frame("log", _said(peer.play(site, command.number)), peer.me)


def _said(played: PeerRound) -> str:
    traffic = played.traffic
    rows = [
        (tag, j, traffic.messages[k], traffic.bytes[k], traffic.wire[k]) for k in traffic.messages for tag, _, j in [k]
    ]
    return json.dumps({"log": dict(played.log), "traffic": rows})


if __name__ == "__main__":
    main(int(sys.argv[1]))

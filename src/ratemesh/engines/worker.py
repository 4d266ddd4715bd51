"""A worker process: hosts some sites and obeys the run at the other end of a pipe."""

import json
import os
import queue
import sys
import threading
from multiprocessing.connection import Connection

from ratemesh.engines import wire
from ratemesh.engines.hosts import LocalHost
from ratemesh.engines.protocol import SiteFactory
from ratemesh.training.protocol import Exchange


def main(descriptor: int) -> None:
    """Serve until the pipe closes."""
    connection = Connection(descriptor)
    commands: queue.SimpleQueue[wire.Frame] = queue.SimpleQueue()
    threading.Thread(target=read_commands, args=(connection, commands), daemon=True).start()
    try:
        start = json.loads(commands.get().text)
        import torch

        torch.set_num_threads(start["threads"])
        host = LocalHost(SiteFactory(start["function"], start["argument"]), start["nodes"])
        wire.send(connection, wire.Frame("started"))
        while True:
            wire.send(connection, _obey(host, commands.get()))
    except Exception as error:  # every failure belongs to the run, which decides what to show
        wire.send(connection, wire.error_frame(error))


def read_commands(connection: Connection, commands: "queue.SimpleQueue[wire.Frame]") -> None:
    """Take commands off the pipe at all times, so that neither end ever blocks the other.

    When the run is gone, so is the reason for this process: it ends at once, in the middle of whatever.
    """
    while True:
        try:
            commands.put(wire.receive(connection))
        except (EOFError, OSError):
            os._exit(0)


def _obey(host: LocalHost, command: wire.Frame) -> wire.Frame:
    if command.kind == "ask":
        what, argument = json.loads(command.text)
        host.request(what, argument)
        return wire.Frame("answer", payloads=dict(enumerate(host.answers())))
    if command.kind == "begin":
        host.begin(command.node, command.number)
    else:
        host.resume(command.node, command.payloads)
    node, event = host.next_event()
    if isinstance(event, Exchange):
        return wire.Frame("exchange", event.tag, node, peers=tuple(event.recv), payloads=event.send)
    return wire.Frame("log", json.dumps(dict(event)), node)


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""One node in a Ray actor: a process that Ray has placed on some machine of its cluster.

Messages go from actor to actor through Ray's object store; the run is given only references to them.
"""

import functools
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

import ray

from ratemesh.engines import wire
from ratemesh.engines.hosts import LocalHost
from ratemesh.engines.meter import Parcel, nbytes
from ratemesh.engines.protocol import SiteFactory
from ratemesh.errors import InputError
from ratemesh.training.protocol import Exchange, RoundLog


@dataclass(frozen=True)
class Posted:
    """An `Exchange` whose payloads are in the object store."""

    tag: str
    send: Mapping[int, Parcel]
    recv: frozenset[int]


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _in_words(method: Callable[Arguments, Result]) -> Callable[Arguments, Result | wire.Frame]:
    """Let a method return its errors as frames, as a worker process sends them.

    Ray would wrap an exception, and what Ray raises by itself (this process was killed) could not be told from it.
    """

    @functools.wraps(method)
    def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result | wire.Frame:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            return wire.error_frame(error)

    return wrapped


class NodeActor:
    """Hosts the site of one node."""

    def __init__(self, node: int, threads: int, folder: str) -> None:
        import torch

        torch.set_num_threads(threads)
        if Path(folder).is_dir():
            os.chdir(folder)  # paths in the configuration are relative to where the run was started
        self._node = node
        self._host: LocalHost

    @_in_words
    def build(self, factory: SiteFactory) -> None:
        """Make the site, or make it anew as it was before the first round."""
        self._host = LocalHost(factory, [self._node])

    @_in_words
    def begin(self, t: int) -> Posted | RoundLog:
        """Start round t; one that was interrupted is forgotten."""
        self._host.begin(self._node, t)
        return self._event()

    @_in_words
    def resume(self, senders: list[int], *contents: bytes) -> Posted | RoundLog:
        """Go on with what arrived; Ray has turned references into what they refer to."""
        inbox = {j: wire.decode(content) for j, content in zip(senders, contents, strict=True)}
        self._host.resume(self._node, inbox)
        return self._event()

    @_in_words
    def ask(self, what: str, argument: str) -> bytes:
        """Carry out an errand; return the answer as safetensors bytes."""
        if what in ("save", "load") and not Path(argument).is_dir():
            raise InputError(
                f"the run folder must be seen by every machine of the Ray cluster; {socket.gethostname()}, where node "
                f"{self._node} runs, does not see '{argument}'. Choose one on a file system that all share."
            )
        self._host.request(what, argument)
        return wire.encode(self._host.answers()[0])

    def _event(self) -> Posted | RoundLog:
        _, event = self._host.next_event()
        if not isinstance(event, Exchange):
            return event
        distinct = {id(payload): payload for payload in event.send.values()}  # a broadcast is stored once
        stored = {key: Parcel(nbytes(payload), ray.put(wire.encode(payload))) for key, payload in distinct.items()}
        return Posted(event.tag, {j: stored[id(payload)] for j, payload in event.send.items()}, event.recv)

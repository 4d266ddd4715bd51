"""Nodes in Ray actors: processes that Ray has placed on machines of its cluster.

Messages go from actor to actor through Ray's object store; the run is given only references to them.
"""

import functools
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import ray
from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, RayActorError, WorkerCrashedError

from ratemesh.engines.inprocess import LocalSites
from ratemesh.engines.protocol import Call, Site, SiteFactory
from ratemesh.engines.rounds import Parcel, nbytes
from ratemesh.engines.workers import Frame, decode, encode, failure, raised
from ratemesh.errors import InputError, RatemeshError
from ratemesh.training.protocol import Exchange, RoundLog

LOST = (RayActorError, ObjectLostError, NodeDiedError, WorkerCrashedError, OutOfMemoryError)
"""What Ray raises when an actor is gone, or messages that went with the actor that had sent them."""

KEEPING = {Site.save.__name__, Site.load.__name__}
"""Calls whose argument is a folder of states: from there a run can go on."""


@dataclass(frozen=True)
class Posted:
    """An `Exchange` whose payloads are in the object store."""

    tag: str
    send: Mapping[int, Parcel]
    recv: frozenset[int]


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _in_words(method: Callable[Arguments, Result]) -> Callable[Arguments, Result | Frame]:
    """Let a method return its errors as frames, as a worker process sends them.

    Ray would wrap an exception, and what Ray raises by itself (this process was killed) could not be told from it.
    """

    @functools.wraps(method)
    def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result | Frame:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            return failure(error)

    return wrapped


class NodeActor:
    """Hosts the site of one node."""

    def __init__(self, node: int, threads: int, folder: str) -> None:
        import torch

        torch.set_num_threads(threads)
        if Path(folder).is_dir():
            os.chdir(folder)  # paths in the configuration are relative to where the run was started
        self._node = node
        self._factory: SiteFactory | None = None
        self._sites: LocalSites

    @_in_words
    def build(self, recipe: Sequence[str]) -> None:
        """Make the site, or make it anew as it was before the first round."""
        self._factory = self._factory or SiteFactory.from_recipe(recipe)
        self._sites = LocalSites(self._factory, [self._node])

    @_in_words
    def begin(self, t: int) -> Posted | RoundLog:
        """Start round t; one that was interrupted is forgotten."""
        self._sites.begin(self._node, t)
        return self._event()

    @_in_words
    def resume(self, senders: list[int], *contents: bytes) -> Posted | RoundLog:
        """Go on with what arrived; Ray has turned references into what they refer to."""
        letters = {j: decode(content) for j, content in zip(senders, contents, strict=True)}
        self._sites.resume(self._node, letters)
        return self._event()

    @_in_words
    def carry(self, call: Call) -> bytes:
        """Make a call on the site; return the answer as safetensors bytes."""
        for folder in call.arguments if call.method in KEEPING else ():
            if not Path(folder).is_dir():
                raise InputError(
                    f"the run folder must be seen by every machine of the Ray cluster; {socket.gethostname()}, where "
                    f"node {self._node} runs, does not see '{folder}'. Choose one on a file system that all share."
                )
        return encode(self._sites.carry(call)[0])

    def _event(self) -> Posted | RoundLog:
        _, event = self._sites.events.popleft()
        if not isinstance(event, Exchange):
            return event
        distinct = {id(payload): payload for payload in event.send.values()}  # a broadcast is stored once
        stored = {key: Parcel(nbytes(payload), ray.put(encode(payload))) for key, payload in distinct.items()}
        return Posted(event.tag, {j: stored[id(payload)] for j, payload in event.send.items()}, event.recv)


class Actors:
    """The actors of all nodes; one that is gone can be replaced."""

    def __init__(self, factory: SiteFactory, nodes: int, options: Mapping[str, Any], threads: int) -> None:
        path = os.pathsep.join(filter(None, sys.path))
        environment = {"PYTHONPATH": path, "OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        self._class = ray.remote(NodeActor).options(
            runtime_env={"env_vars": environment},
            scheduling_strategy="SPREAD",
            max_restarts=0,  # a restarted actor has lost its state: `replace` and `RayEngine` see to both
            **options,
        )
        self._recipe = ray.put(factory.recipe())
        self._threads = threads
        self.of = [self._start(node) for node in range(nodes)]

    def _start(self, node: int) -> Any:
        return self._class.remote(node, self._threads, str(Path.cwd()))

    def build(self, nodes: Sequence[int], patience: float) -> None:
        """Wait until new actors are placed and have made their sites."""
        underway = {self.of[node].build.remote(self._recipe): node for node in nodes}
        pending = list(underway)
        if pending:
            _, pending = ray.wait(pending, num_returns=len(pending), timeout=patience)
        if pending:
            left = ray.available_resources()
            free = f"{left.get('CPU', 0):g} CPUs and {left.get('GPU', 0):g} GPUs"
            raise RatemeshError(
                f"all nodes must start within engine.patience = {patience:g} s; {[underway[ref] for ref in pending]} "
                f"have not. The cluster has {free} free: lower engine.num_cpus or engine.num_gpus, add machines, or "
                "raise engine.patience."
            )
        for reference in underway:
            result(reference)

    def replace_lost(self) -> list[int]:
        """Have all make their sites anew; start those again that are gone, and return them.

        Those that are still there first finish what they are at, which may take as long as a round.
        """
        lost = []
        for node, reference in [(n, actor.build.remote(self._recipe)) for n, actor in enumerate(self.of)]:
            try:
                result(reference)
            except LOST:
                lost.append(node)
        for node in lost:
            ray.kill(self.of[node])  # out of reach is not dead: never two of one node
            self.of[node] = self._start(node)
        return lost

    def close(self) -> None:
        """End all."""
        for actor in self.of:
            ray.kill(actor)


def result(reference: Any) -> Any:
    """Return what an actor's method returned; raise what it tells of."""
    value = ray.get(reference)
    if isinstance(value, Frame):
        raised(value)
    return value


def gist(error: Exception) -> str:
    """Return the first and the last line of Ray's words, which are many: what it is, and why."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return " … ".join(dict.fromkeys([lines[0], lines[-1].strip()]))

"""Nodes in Ray actors, processes that Ray has placed on machines of its cluster; those that are lost are replaced.

Messages go from actor to actor through Ray's object store; the run is given only references to them.
"""

import functools
import os
import socket
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import ray
from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, RayActorError, WorkerCrashedError

from ratemesh.engines.inprocess import LocalSites
from ratemesh.engines.protocol import Call, Engine, Site, SiteFactory
from ratemesh.engines.ray import gist
from ratemesh.engines.rounds import Parcel, Played, nbytes, play_round
from ratemesh.engines.workers import Frame, failure, from_bytes, raised, to_bytes
from ratemesh.errors import InputError, RatemeshError, RatemeshWarning
from ratemesh.messages.formats import Payload
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
        messages = {j: from_bytes(content) for j, content in zip(senders, contents, strict=True)}
        self._sites.resume(self._node, messages)
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
        return to_bytes(self._sites.carry(call)[0])

    def _event(self) -> Posted | RoundLog:
        _, event = self._sites.events.popleft()
        if not isinstance(event, Exchange):
            return event
        distinct = {id(payload): payload for payload in event.send.values()}  # a broadcast is stored once
        stored = {key: Parcel(nbytes(payload), ray.put(to_bytes(payload))) for key, payload in distinct.items()}
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


class Attempt:
    """A round on actors: what they were told and have not answered."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self._actors = actors
        self._underway: dict[Any, int] = {}

    def begin(self, node: int, t: int) -> None:
        """Start round t of a node."""
        self._underway[self._actors[node].begin.remote(t)] = node

    def resume(self, node: int, messages: Mapping[int, Parcel]) -> None:
        """Give a node references to what arrived."""
        references = [parcel.place for parcel in messages.values()]
        self._underway[self._actors[node].resume.remote(list(messages), *references)] = node

    def next_event(self) -> tuple[int, Posted | RoundLog] | None:
        """Wait for any node."""
        if not self._underway:
            return None
        done, _ = ray.wait(list(self._underway), num_returns=1)
        return self._underway.pop(done[0]), result(done[0])


class RayEngine(Engine):
    """An engine whose nodes may be lost and come back.

    What a lost node knew is made again: all nodes go back to the folder of the last `save` or `load` (a run's
    checkpoint), or to their beginning, and play the rounds since once more. Programs are deterministic, so
    this ends in the same state to the bit, and nobody needs to keep copies of messages.
    """

    def __init__(self, actors: Actors, restarts: int, patience: float) -> None:
        self._actors = actors
        self._left = restarts
        self._patience = patience
        self._loaded: Call | None = None
        self._since: list[int] = []

    def play(self, t: int) -> Played:
        """Play round t on every node."""
        played = self._surely(f"round {t}", lambda: self._play(t))
        self._since.append(t)
        return played

    def carry(self, call: Call) -> list[Payload]:
        """Make the call on every site; return the answers in node order."""
        if keeps := call.method in KEEPING:
            call = replace(call, arguments=[str(Path(folder).absolute()) for folder in call.arguments])
        answers = self._surely(f"'{call.method}'", lambda: self._carry(call))
        if keeps:
            self._loaded, self._since = replace(call, method=Site.load.__name__), []
        return answers

    def _play(self, t: int) -> Played:
        return play_round(Attempt(self._actors.of), len(self._actors.of), t)

    def _carry(self, call: Call) -> list[Payload]:
        references = [actor.carry.remote(call) for actor in self._actors.of]
        return [from_bytes(result(reference)) for reference in references]

    def _surely(self, when: str, work: Callable[[], Result]) -> Result:
        """Do the work; when nodes are lost, bring all back to where they were and do it again."""
        interrupted = False
        while True:
            try:
                if interrupted:
                    self._bring_back(when)
                return work()
            except LOST as loss:
                if not self._left:
                    raise RatemeshError(
                        f"a node was lost in {when}, and engine.restarts is used up. Out of memory is the usual cause: "
                        f"try fewer nodes a machine. The run can be resumed. Ray says: {gist(loss)}"
                    ) from None
                self._left -= 1
                interrupted = True

    def _bring_back(self, when: str) -> None:
        """Replace what is lost; let all nodes load the last checkpoint and play what was played since."""
        lost = self._actors.replace_lost()
        start = f"'{self._loaded.arguments[0]}'" if self._loaded else "the beginning"
        what = f"nodes {lost} were lost in {when}; they were started again" if lost else f"messages were lost in {when}"
        warnings.warn(
            f"{what}, and all go on from {start}. {self._left} more such losses will be mended.",
            RatemeshWarning,
            stacklevel=2,
        )
        self._actors.build(lost, self._patience)  # only now: who is lost again here must not hide who was lost before
        if self._loaded:
            self._carry(self._loaded)
        for t in self._since:
            self._play(t)


def result(reference: Any) -> Any:
    """Return what an actor's method returned; raise what it tells of."""
    value = ray.get(reference)
    if isinstance(value, Frame):
        raised(value)
    return value

"""Nodes in Ray actors, processes that Ray has placed on machines of its cluster; those that are lost are replaced.

Messages go from actor to actor through Ray's object store; the run is given only references to them.
"""

import os
import socket
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, RayActorError, WorkerCrashedError
from safetensors.torch import load

from ratemesh.engines.inprocess import LocalSites
from ratemesh.engines.protocol import Call, Engine, Site, SiteFactory
from ratemesh.engines.ray import gist
from ratemesh.engines.rounds import Parcel, Played, Posted, nbytes, play_round
from ratemesh.engines.workers import Frame, child_environment, failure, raised, to_bytes
from ratemesh.errors import InputError, RatemeshError, RatemeshWarning
from ratemesh.messages.formats import Payload
from ratemesh.training.protocol import Exchange, RoundLog

LOST = (RayActorError, ObjectLostError, NodeDiedError, WorkerCrashedError, OutOfMemoryError)
"""What Ray raises when an actor is gone, or messages that went with the actor that had sent them."""

KEEPING = {Site.save.__name__, Site.load.__name__}
"""Calls whose argument is a folder of states: from there a run can go on."""


Result = TypeVar("Result")


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

    def do(self, method: str, *arguments: Any) -> Any:
        """Call a method from below; its errors are returned as frames, as a worker process sends them.

        Ray would wrap an exception, and what Ray raises by itself (this process was killed) could not be told from it.
        """
        try:
            return getattr(self, method)(*arguments)
        except Exception as error:
            return failure(error)

    def build(self, recipe: Sequence[str]) -> None:
        """Make the site, or make it anew as it was before the first round."""
        self._factory = self._factory or SiteFactory.from_recipe(recipe)
        self._sites = LocalSites(self._factory, [self._node])

    def begin(self, t: int) -> Posted | RoundLog:
        """Start round t; one that was interrupted is forgotten."""
        self._sites.begin(self._node, t)
        return self._event()

    def resume(self, tag: str, senders: list[int], *contents: bytes) -> Posted | RoundLog:
        """Go on with what arrived; Ray has turned references into what they refer to."""
        messages = {j: load(content) for j, content in zip(senders, contents, strict=True)}
        self._sites.resume(self._node, tag, messages)
        return self._event()

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


class Actors(Engine):
    """The actors of all nodes; one that is gone raises one of `LOST`, and can be replaced."""

    def __init__(self, factory: SiteFactory, nodes: int, options: Mapping[str, Any], threads: int) -> None:
        # Ray shows an actor the GPUs that it reserved, but hides none from one that reserved none.
        hidden = {} if options.get("num_gpus") else {"CUDA_VISIBLE_DEVICES": ""}
        self._class = ray.remote(NodeActor).options(
            runtime_env={"env_vars": {**child_environment(threads), **hidden}},
            scheduling_strategy="SPREAD",
            max_restarts=0,  # a restarted actor has lost its state: `replace` and `RayEngine` see to both
            **options,
        )
        self._recipe = ray.put(factory.recipe())
        self._threads = threads
        self._actors = [self._start(node) for node in range(nodes)]
        self._underway: dict[Any, int] = {}  # what actors were told in this round and have not answered

    def _start(self, node: int) -> Any:
        return self._class.remote(node, self._threads, str(Path.cwd()))

    def build(self, nodes: Sequence[int], patience: float) -> None:
        """Wait until new actors are placed and have made their sites."""
        underway = {self._actors[node].do.remote("build", self._recipe): node for node in nodes}
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
        for node, reference in [(n, actor.do.remote("build", self._recipe)) for n, actor in enumerate(self._actors)]:
            try:
                result(reference)
            except LOST:
                lost.append(node)
        for node in lost:
            ray.kill(self._actors[node])  # out of reach is not dead: never two of one node
            self._actors[node] = self._start(node)
        return lost

    def play(self, t: int) -> Played:
        """Play round t on every node; one that was interrupted is forgotten."""
        self._underway = {}
        return play_round(self, len(self._actors), t)

    def begin(self, node: int, t: int) -> None:
        """Start round t of a node."""
        self._underway[self._actors[node].do.remote("begin", t)] = node

    def resume(self, node: int, tag: str, messages: Mapping[int, Parcel]) -> None:
        """Give a node references to what arrived."""
        references = [parcel.place for parcel in messages.values()]
        self._underway[self._actors[node].do.remote("resume", tag, list(messages), *references)] = node

    def next_event(self) -> tuple[int, Posted | RoundLog] | None:
        """Wait for any node."""
        if not self._underway:
            return None
        done, _ = ray.wait(list(self._underway), num_returns=1)
        return self._underway.pop(done[0]), result(done[0])

    def carry(self, call: Call) -> list[Payload]:
        """Make the call on every site; return the answers in node order."""
        references = [actor.do.remote("carry", call) for actor in self._actors]
        return [load(result(reference)) for reference in references]

    def close(self) -> None:
        """End all."""
        for actor in self._actors:
            ray.kill(actor)


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
        played = self._surely(f"round {t}", lambda: self._actors.play(t))
        self._since.append(t)
        return played

    def carry(self, call: Call) -> list[Payload]:
        """Make the call on every site; return the answers in node order."""
        if keeps := call.method in KEEPING:
            call = replace(call, arguments=[str(Path(folder).absolute()) for folder in call.arguments])
        answers = self._surely(f"'{call.method}'", lambda: self._actors.carry(call))
        if keeps:
            self._loaded, self._since = replace(call, method=Site.load.__name__), []
        return answers

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
            self._actors.carry(self._loaded)
        for t in self._since:
            self._actors.play(t)


def result(reference: Any) -> Any:
    """Return what an actor's method returned; raise what it tells of."""
    value = ray.get(reference)
    if isinstance(value, Frame):
        raised(value)
    return value

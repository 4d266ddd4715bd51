"""Plays rounds on Ray actors, and goes on when some of them are lost."""

import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, RayActorError, WorkerCrashedError

from ratemesh.engines import wire
from ratemesh.engines.meter import Parcel
from ratemesh.engines.protocol import Played, SiteFactory
from ratemesh.engines.ray_actor import NodeActor, Posted
from ratemesh.engines.ray_cluster import free, gist
from ratemesh.engines.rounds import play_round
from ratemesh.errors import RatemeshError, RatemeshWarning
from ratemesh.messages.formats import Payload
from ratemesh.training.protocol import RoundLog

LOST = (RayActorError, ObjectLostError, NodeDiedError, WorkerCrashedError, OutOfMemoryError)
"""What Ray raises when an actor is gone, or messages that went with the actor that had sent them."""

Result = TypeVar("Result")


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
        self._factory = ray.put(factory)
        self._threads = threads
        self.of = [self._start(node) for node in range(nodes)]

    def _start(self, node: int) -> Any:
        return self._class.remote(node, self._threads, str(Path.cwd()))

    def build(self, nodes: Sequence[int], patience: float) -> None:
        """Wait until new actors are placed and have made their sites."""
        underway = {self.of[node].build.remote(self._factory): node for node in nodes}
        pending = list(underway)
        if pending:
            _, pending = ray.wait(pending, num_returns=len(pending), timeout=patience)
        if pending:
            raise RatemeshError(
                f"all nodes must start within engine.patience = {patience:g} s; {[underway[ref] for ref in pending]} "
                f"have not. The cluster has {free()} free: lower engine.num_cpus or engine.num_gpus, add machines, or "
                "raise engine.patience."
            )
        for reference in underway:
            result(reference)

    def replace_lost(self) -> list[int]:
        """Have all make their sites anew; start those again that are gone, and return them.

        Those that are still there first finish what they are at, which may take as long as a round.
        """
        lost = []
        for node, reference in [(n, actor.build.remote(self._factory)) for n, actor in enumerate(self.of)]:
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

    def resume(self, node: int, inbox: Mapping[int, Parcel]) -> None:
        """Give a node references to what arrived."""
        references = [parcel.place for parcel in inbox.values()]
        self._underway[self._actors[node].resume.remote(list(inbox), *references)] = node

    def next_event(self) -> tuple[int, Posted | RoundLog] | None:
        """Wait for any node."""
        if not self._underway:
            return None
        done, _ = ray.wait(list(self._underway), num_returns=1)
        return self._underway.pop(done[0]), result(done[0])


class RayEngine:
    """An engine whose nodes may be lost and come back.

    What a lost node knew is made again: all nodes go back to the folder of the last `save` or `load` (a run's
    checkpoint), or to their beginning, and play the rounds since once more. Programs are deterministic, so
    this ends in the same state to the bit, and nobody needs to keep copies of messages.
    """

    def __init__(self, actors: Actors, restarts: int, patience: float) -> None:
        self._actors = actors
        self._left = restarts
        self._patience = patience
        self._folder = ""
        self._since: list[int] = []

    def play(self, t: int) -> Played:
        """Play round t on every node."""
        played = self._surely(f"round {t}", lambda: self._play(t))
        self._since.append(t)
        return played

    def ask(self, what: str, argument: str = "") -> list[Payload]:
        """Have every site carry out an errand; return the answers in node order."""
        if keeps := what in ("save", "load"):
            argument = str(Path(argument).absolute())
        answers = self._surely(f"'{what}'", lambda: self._ask(what, argument))
        if keeps:
            self._folder, self._since = argument, []
        return answers

    def _play(self, t: int) -> Played:
        return play_round(Attempt(self._actors.of), len(self._actors.of), t)

    def _ask(self, what: str, argument: str) -> list[Payload]:
        references = [actor.ask.remote(what, argument) for actor in self._actors.of]
        return [wire.decode(result(reference)) for reference in references]

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
        start = f"'{self._folder}'" if self._folder else "the beginning"
        what = f"nodes {lost} were lost in {when}; they were started again" if lost else f"messages were lost in {when}"
        warnings.warn(
            f"{what}, and all go on from {start}. {self._left} more such losses will be mended.",
            RatemeshWarning,
            stacklevel=2,
        )
        self._actors.build(lost, self._patience)  # only now: who is lost again here must not hide who was lost before
        if self._folder:
            self._ask("load", self._folder)
        for t in self._since:
            self._play(t)


def result(reference: Any) -> Any:
    """Return what an actor's method returned; raise what it tells of."""
    value = ray.get(reference)
    if isinstance(value, wire.Frame):
        raise wire.error(value)
    return value

"""Plays rounds on the actors of a Ray cluster, and goes on when some of them are lost."""

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import ray

from ratemesh.engines.protocol import Call, Engine, Site
from ratemesh.engines.ray_actors import KEEPING, LOST, Actors, Posted, gist, result
from ratemesh.engines.rounds import Parcel, Played, play_round
from ratemesh.engines.workers import decode
from ratemesh.errors import InputError, RatemeshError, RatemeshWarning
from ratemesh.messages.formats import Payload
from ratemesh.threads import cores
from ratemesh.training.protocol import RoundLog

Result = TypeVar("Result")


@contextmanager
def joined(address: str, cpus: int) -> Iterator[None]:
    """Connect to a cluster, unless this process has done so already; on the way out, end what was started here.

    Args:
        address: 'host:port' or 'auto'; empty starts a cluster.
        cpus: that a cluster of this machine says it has, at least: all nodes share what there is.
    """
    with ExitStack() as stack:
        if not ray.is_initialized():
            settings: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
            if not address:
                # Ray keeps sockets there, and their paths must be short: not in TMPDIR
                root = tempfile.TemporaryDirectory(
                    prefix="ratemesh-ray-", dir=os.environ.get("RAY_TMPDIR", "/tmp"), ignore_cleanup_errors=True
                )
                settings |= {"include_dashboard": False, "_temp_dir": stack.enter_context(root)}
                settings["num_cpus"] = max(cores(), cpus)
            stack.callback(ray.shutdown)
            _connect(address, settings)
        yield


def _connect(address: str, settings: Mapping[str, Any]) -> None:
    try:
        ray.init(address or "local", **settings)
    except Exception as error:  # Ray raises bare ones, too
        if not address:
            raise RatemeshError(f"Ray does not start on this machine: {gist(error)}") from None
        raise InputError(
            f"engine.address must be a Ray cluster that answers; got '{address}' ({gist(error)}). "
            "Start one with `ray start --head`, or leave engine.address empty."
        ) from None


def check_size(nodes: int, each: Mapping[str, float]) -> None:
    """Refuse what can never be placed; what is only busy now is waited for.

    Args:
        each: resources that every node takes, by Ray's names: CPU, GPU.
    """
    there = ray.cluster_resources()
    for kind, amount in each.items():
        if nodes * amount > there.get(kind, 0):
            raise InputError(
                f"engine.num_{kind.lower()}s must leave room for all nodes; {nodes} nodes with {amount:g} each need "
                f"{nodes * amount:g}, the Ray cluster has {there.get(kind, 0):g}. Lower it (fractions are fine), or "
                "add machines."
            )


class Attempt:
    """A round on actors: what they were told and have not answered."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self._actors = actors
        self._underway: dict[Any, int] = {}

    def begin(self, node: int, t: int) -> None:
        """Start round t of a node."""
        self._underway[self._actors[node].begin.remote(t)] = node

    def resume(self, node: int, letters: Mapping[int, Parcel]) -> None:
        """Give a node references to what arrived."""
        references = [parcel.place for parcel in letters.values()]
        self._underway[self._actors[node].resume.remote(list(letters), *references)] = node

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
        return [decode(result(reference)) for reference in references]

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

"""Where the time of a training round goes: how much of it is not the encoder's own work."""

import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from benchmarks.tables import Table, aim
from ratemesh.encoders import Encoder
from ratemesh.errors import RatemeshWarning
from ratemesh.experiment.config import make_config
from ratemesh.experiment.plan import Plan
from ratemesh.messages.statistics import Stream
from ratemesh.training import coupled
from ratemesh.training.gauge import Gauge
from ratemesh.training.local import LocalTrainer

NODES, SAMPLES = 4, 600
TRAINING = ("encoder forward", "encoder backward", "optimiser")
SHARD = "encoder forward over the whole shard"
REST = ("loss and its gradient", "gauge", "statistics", "exchange, duals, midpoints", "log", "batches, engine, rest")


class Clock:
    """Adds wall time to the innermost of the pieces that are running, so that the pieces add up to the whole."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since = 0.0

    @contextmanager
    def piece(self, name: str) -> Iterator[None]:
        """Count what happens inside for `name`, except what inner pieces claim."""
        self._pass_on()
        self._running.append(name)
        try:
            yield
        finally:
            self._pass_on()
            self._running.pop()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time counted for `name`."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.piece(name):
                return function(*args, **kwargs)

        return call

    def _pass_on(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now


def run(*, quick: bool) -> list[Table]:
    """Return all tables of this file."""
    cases = [(1, 100), (1, 300)] if quick else [(1, 100), (1, 300), (5, 100)]
    measured = {
        f"{epochs} epoch{'s' * (epochs > 1)}, batch {batch}": _measure(epochs, batch, 1 if quick or epochs > 1 else 3)
        for epochs, batch in cases
    }
    return [_share_table(measured), _piece_table(measured)]


def _measure(epochs: int, batch: int, rounds: int) -> dict[str, float]:
    """Play a first round, then `rounds` more under the clock; return every piece's part of the whole."""
    config = make_config(
        {
            "preset": "plain",
            "data": {"name": "benchmarks.images:Images", "train": NODES * SAMPLES},
            "graph": {"name": "complete", "nodes": NODES},
            "encoders": [{"name": "conv4"}],
            "local": {"epochs": epochs, "batch_size": batch},
            "method": {"name": "alg1", "coupling": {"schedule": "constant"}},
            "engine": {"name": "inprocess", "workers": 1, "threads": 1},
        }
    )
    clock = Clock()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RatemeshWarning)
        with _watched(clock), config.engine.open(Plan(config), NODES) as engine:
            engine.play(1)  # settles the frame; first calls of everything
            clock.seconds.clear()
            for t in range(2, 2 + rounds):
                with clock.piece("batches, engine, rest"):
                    engine.play(t)
    total = sum(clock.seconds.values())
    return {name: seconds / total for name, seconds in clock.seconds.items()}


@contextmanager
def _watched(clock: Clock) -> Iterator[None]:
    """Put the clock around the pieces of a round of Algorithm 1."""
    forward = Encoder.forward

    def encode(encoder: Encoder, X: torch.Tensor) -> torch.Tensor:
        with clock.piece(TRAINING[0] if encoder.training else SHARD):
            return forward(encoder, X)

    pieces: list[tuple[Any, str, str]] = [
        (torch.Tensor, "backward", "encoder backward"),
        (torch.optim.Adam, "step", "optimiser"),
        (torch.optim.Adam, "zero_grad", "optimiser"),
        (coupled, "coupled_loss", "loss and its gradient"),
        (Gauge, "turn", "gauge"),
        (LocalTrainer, "stats", "statistics"),
        (Stream, "pack", "exchange, duals, midpoints"),
        (Stream, "read", "exchange, duals, midpoints"),
        (coupled, "dual_step", "exchange, duals, midpoints"),
        (coupled, "fold_neighbours", "exchange, duals, midpoints"),
        (coupled.Edges, "log", "log"),
    ]
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Encoder, "forward", encode))
        for owner, name, piece in pieces:
            stack.enter_context(mock.patch.object(owner, name, clock.timed(piece, getattr(owner, name))))
        yield


def _share_table(measured: Mapping[str, Mapping[str, float]]) -> Table:
    rows = []
    for case, parts in measured.items():
        training = sum(parts[name] for name in TRAINING)
        rest = 100 * (1 - training - parts[SHARD])
        rows.append([case, f"{rest:.1f} %", aim(rest, at_most=10), f"{100 * (1 - training):.1f} %"])
    return Table(
        "Share of a round outside the encoder",
        "How much of a round is not forward, backward or optimiser; the last column also counts Algorithm 1's own pass "
        "over the whole shard (l. 14) as overhead.",
        ("", "not the encoder", "aim, %", "not training"),
        rows,
        f"Encoder conv4 at full width on 28×28 grey images, {NODES} nodes with {NODES - 1} neighbours each, {SAMPLES} "
        "samples a node, K = 10, d = 128, default method (running statistics, gauge with means), one thread. Wall "
        "timers around the pieces, inner pieces taken out of outer ones; first round not counted. What happens once a "
        "round and does not grow with the shard (gauge, exchange, log) weighs ten times less at MNIST's 6000 samples "
        "a node.",
    )


def _piece_table(measured: Mapping[str, Mapping[str, float]]) -> Table:
    rows = [
        [name, *(f"{100 * parts.get(name, 0.0):.2f}" for parts in measured.values())]
        for name in (*TRAINING, SHARD, *REST)
    ]
    meaning = "Where the time of a round goes, in per cent; columns add to 100."
    return Table("Pieces of a round", meaning, ("", *measured), rows)

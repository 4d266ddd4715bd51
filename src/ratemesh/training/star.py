"""What methods with a server share: a star on the same contract as everything else, and federated averaging.

**Where the server is.** A run has N nodes and all of them hold data, as the other rows of a table have. The server is a
duty of one of them, `server`, which all others must be joined to (graph 'star' has node 0 there, 'complete' will do as
well): it trains like the rest, collects the others' weights, and sends back the outcome. So nothing else needs to know
of servers: partition, evaluation, checkpoints and meter see N nodes and messages over edges. Of the usual traffic
2·N·(P + B) numbers a round, P parameters and B float buffers, 2·(N − 1)·(P + B) remain: what the server's own client
would send crosses no edge. Without any edges every node is its own server, and learns alone.

**Order in a round.** Train, send up, average, send down: after every round all nodes hold the global model, which is
what is evaluated. That is the same as beginning with the download, for all nodes draw equal initial weights from the
run's seed (`one_model`), and all take part in every round.

**Choices.** Means are weighted by samples, m_k/Σm. Running means and variances of batch normalisation are averaged like
weights, counters stay a node's own. The optimiser is the run's, the same for every method, its rate a cosine over the
rounds, its moments a node's own between rounds, as in D-SGD. The backbone is the whole encoder, and what is evaluated
is its unit vector, as for every method here; heads sit on top of it and are not evaluated. Views are the run's
`local.augment`, drawn anew for each; a sample counts once in sample passes, however many views a step compares.
"""

from abc import abstractmethod
from collections.abc import Callable, Generator, Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from ratemesh.core.rates import rate_reduction
from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError
from ratemesh.graph import Topology
from ratemesh.messages.formats import Payload, refused
from ratemesh.metrics.geometry import effective_rank, overlap
from ratemesh.seeds import seeded
from ratemesh.training.averaging import WeightsMessage, load_mixable, mixable, read_weights, weighted_mean
from ratemesh.training.contrastive import Projected, head
from ratemesh.training.local import LocalSpec, LocalTrainer
from ratemesh.training.protocol import Exchange, Inbox, MethodSpec, Node, Program, Round, RoundLog


class StarSpec(MethodSpec):
    """Settings that all methods with a server have."""

    one_model: ClassVar[bool] = True
    views: ClassVar[int] = 2
    title: ClassVar[str]
    """What tables call the method."""
    local_title: ClassVar[str]
    """What it is without averaging."""
    server: int = Field(0, ge=0, description="node that averages; all others must be its neighbours")
    hidden: int = Field(4, ge=1, description="width of the heads' hidden layer, in multiples of d")
    projection: int = Field(1, ge=1, description="width of what the heads put out, in multiples of d")

    @abstractmethod
    def model(self, node: Node) -> nn.Module:
        """Return what is trained and averaged: the node's encoder, and heads with the same weights on all nodes."""

    def beside(self, node: Node) -> tuple[int, int]:  # noqa: ARG002 - methods that send more ask
        """Return the numbers that travel beside the weights: up and down."""
        return 1, 0  # the number of samples

    def projected(self, node: Node) -> Projected:
        """Return the node's encoder with a projector."""
        d = node.encoder.d
        with seeded(node.seed, self.title, "projector"):
            return Projected(node.encoder, head(d, self.hidden * d, self.projection * d))

    def bytes_sent(self, node: Node) -> int:
        """Return 4 bytes a weight and float buffer: a client's to the server, the server's to all clients."""
        weights = sum(value.numel() for value in mixable(self.model(node)).values())
        up, down = self.beside(node)
        if node.index == self.server:
            return 4 * len(node.neighbours) * (weights + down)
        return 4 * (weights + up) if node.neighbours else 0

    def check(self, topology: Topology, counts: Tensor, local: LocalSpec) -> list[str]:  # noqa: ARG002
        """Refuse a graph on which the server cannot reach everyone."""
        others = {i for i in range(topology.nodes) if i != self.server}
        if topology.edges and others - set(topology.neighbours(self.server)):
            raise InputError(
                f"graph must join method.server = {self.server} to all other nodes for method '{self.name}'; it is "
                f"joined to {len(topology.neighbours(self.server))} of {topology.nodes - 1}. Use graph.name = 'star'."
            )
        return []

    def label(self, topology: Topology) -> str:
        """Name the method, or what is left of it without edges."""
        if topology.edges:
            return self.title
        return f"{'Centralised' if topology.nodes == 1 else 'Independent'} {self.local_title}"


class StarProgram(Program):
    """A node's state and rounds; methods say what they minimise and, if it is more, what they send and combine."""

    def __init__(self, spec: StarSpec, node: Node) -> None:
        self.node = node
        self.server = node.index if not node.neighbours else spec.server
        if node.index != self.server and self.server not in node.neighbours:
            raise InputError(f"graph must join node {node.index} to method.server = {self.server}. Use 'star'.")
        self.eps2 = spec.eps2
        self.encoder = node.encoder
        self.model = spec.model(node)
        self.trainer = LocalTrainer(self.model, node.local, node.seed, node.index, spec.title, views=spec.views)
        self.stats = self._shard_stats(0)

    @property
    def sample_passes(self) -> int:
        """Samples that went through a training step so far."""
        return self.trainer.sample_passes

    def round(self, t: int) -> Round:
        """Play round t: train, average through the server, take over."""
        loss = self.train(t)
        samples = torch.tensor(len(self.node.y), dtype=torch.int32)
        message = {**mixable(self.model), "samples": samples, **self.message()}
        answer = yield from self.through_server("weights", message, self.combine)
        self.accept(answer)
        self.stats = self._shard_stats(t)
        return {**self._log(), "total": loss, **self.own_log()}

    @abstractmethod
    def objective(self, X: Tensor, y: Tensor) -> Tensor:
        """Return what is minimised, for the views of a batch: blocks of n samples, one after the other."""

    def train(self, t: int) -> float:
        """Train for round t; return the mean loss."""
        return self.trainer.train(self.node.X, self.node.y, self.objective, t, self.after_step)

    def after_step(self) -> None:
        """Follow a training step."""

    def message(self) -> dict[str, Tensor]:
        """Return what goes up beside weights and samples."""
        return {}

    def combine(self, parts: Mapping[int, WeightsMessage]) -> dict[str, Tensor]:
        """Return what goes down, from what all nodes sent up: federated averaging."""
        return self.average(parts)

    numbers_up: ClassVar[dict[str, Tensor]] = {"samples": torch.tensor(1, dtype=torch.int32)}
    numbers_down: ClassVar[dict[str, Tensor]] = {}
    """What goes with the weights to the server and from it, for `read_weights`."""

    def read(self, tag: str, sender: int, payload: Payload) -> Any:
        """Return a client's message at the server, and the server's answer at a client."""
        return self.parsed(tag, sender, payload, up=self.node.index == self.server)

    def parsed(self, tag: str, sender: int, payload: Payload, *, up: bool) -> Any:
        """Return what a message to the server (`up`) or its answer says."""
        if tag != "weights":
            raise refused(sender, f"'{tag}' is no message of this method")
        return read_weights(payload, self.model, sender, self.numbers_up if up else self.numbers_down)

    def accept(self, answer: WeightsMessage) -> None:
        """Take over what came down."""
        load_mixable(self.model, answer.weights)

    def own_log(self) -> RoundLog:
        """Return what the method says of its round beside what all say."""
        return {}

    def average(self, parts: Mapping[int, WeightsMessage]) -> dict[str, Tensor]:
        """θ ← Σ_k (m_k / Σ m) θ_k."""
        total = sum(part.numbers["samples"] for part in parts.values())
        return weighted_mean([(part.numbers["samples"] / total, part.weights) for part in parts.values()])

    def through_server(
        self, tag: str, message: Payload, combine: Callable[[Mapping[int, Any]], Payload]
    ) -> Generator[Exchange, Inbox, Any]:
        """Send a message to the server and return its answer; at the server, combine all messages to that answer.

        The server reads its own message and its own answer as the clients' and at the clients they are read.
        """
        node = self.node
        if node.index != self.server:
            inbox = yield Exchange(tag, {self.server: message}, frozenset({self.server}))
            return inbox[self.server]
        inbox = yield Exchange(tag, {}, frozenset(node.neighbours))
        parts = {**inbox, node.index: self.parsed(tag, node.index, message, up=True)}
        answer = combine(dict(sorted(parts.items())))
        yield Exchange(tag, dict.fromkeys(node.neighbours, answer), frozenset())
        return self.parsed(tag, node.index, answer, up=False)

    def _shard_stats(self, t: int) -> ClassStats:
        node = self.node
        return self.trainer.stats(self.encoder, node.X, node.y, node.num_classes, t)

    def _log(self) -> dict[str, float]:
        rates = rate_reduction(self.stats, self.eps2)
        spread, rank = collapse(self.stats)
        return {
            "expand": float(rates.expand),
            "compress": float(rates.compress),
            "reduction": float(rates.reduction),
            "overlap": overlap(self.stats),
            "spread": spread,
            "rank": rank,
        }

    def state(self) -> dict[str, Tensor]:
        """Return weights and optimiser, and the statistics."""
        return {**self.trainer.state(), "V": self.stats.V, "mu": self.stats.mu, "m": self.stats.m}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from `state`."""
        self.trainer.load_state(state)
        self.stats = ClassStats(state["V"], state["mu"], state["m"])


def target_state(target: nn.Module) -> dict[str, Tensor]:
    """Return a target network as target.NAME."""
    return {f"target.{name}": value for name, value in target.state_dict().items()}


def load_target(target: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Set a target network from a state that holds what `target_state` returned."""
    target.load_state_dict({k.removeprefix("target."): v for k, v in state.items() if k.startswith("target.")})


def collapse(stats: ClassStats) -> tuple[float, float]:
    """Return what tells a collapse: the spread of all features, and the effective rank of their covariance.

    The spread is √tr(S), S the covariance of unit vectors: 1 when they cancel out, 0 when they are all the same.
    """
    mean = stats.proportions @ stats.mu
    S = stats.mixture() - torch.outer(mean, mean)
    return float(S.trace().clamp(min=0).sqrt()), float(effective_rank(S))

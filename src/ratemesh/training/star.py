"""What methods with a server share: a star, federated averaging, and what learning without labels is made of.

**Where the server is.** A run has N nodes and all of them hold data, as the other rows of a table have. The server is a
duty of one of them, `server`, which all others must be joined to (graph 'star' has node 0 there, 'complete' will do as
well): it trains like the rest, collects the others' weights, and sends back the outcome. So nothing else needs to know
of servers: partition, evaluation, checkpoints and meter see N nodes and messages over edges. Of the usual traffic
2·N·(P + B) numbers a round, P parameters and B float buffers, 2·(N − 1)·(P + B) remain: what the server's own client
would send crosses no edge. Without any edges every node is its own server, and learns alone.

**Order in a round.** Train, send up, average, send down: after every round all nodes hold the global model, which is
what is evaluated. That is the same as beginning with the download, because all nodes draw equal initial weights from
the run's seed (`one_model`), and all take part in every round.

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
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from ratemesh.core.rates import rate_reduction
from ratemesh.core.stats import ClassStats
from ratemesh.encoders import Encoder
from ratemesh.errors import InputError, RatemeshError
from ratemesh.graph import Topology
from ratemesh.messages.formats import Payload
from ratemesh.metrics.geometry import effective_rank, overlap
from ratemesh.seeds import seeded
from ratemesh.training.averaging import (
    WeightsMessage,
    load_weights,
    read_weights,
    weighted_mean,
    weights_bytes,
    weights_of,
)
from ratemesh.training.local import LocalSpec, LocalTrainer
from ratemesh.training.protocol import Exchange, Inbox, MessageContract, MethodSpec, Node, NodeProgram, Round, RoundLog


def head(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Return linear → batch normalisation → ReLU → linear, for features (n, inputs)."""
    first = nn.Linear(inputs, hidden, bias=False)  # the normalisation would take a bias off again
    return nn.Sequential(first, nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, outputs))


class Projected(nn.Module):
    """An encoder f and a projector g; the projection is what losses see, the encoder's output what is kept."""

    def __init__(self, encoder: Encoder, projector: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.projector = projector

    def forward(self, X: Tensor) -> Tensor:
        """Return unit vectors g(f(x)) / ‖g(f(x))‖, (n, D), of samples (n, ...)."""
        return normalize(self.projector(self.encoder(X)), dim=1)


class StarSpec(MethodSpec):
    """Settings that all methods with a server have."""

    views: ClassVar[int] = 2
    """How many augmented views of a sample a training step compares."""
    title: ClassVar[str]
    """What tables call the method."""
    local_title: ClassVar[str]
    """What it is without averaging."""
    numbers_up: ClassVar[dict[str, Tensor]] = {"samples": torch.tensor(1, dtype=torch.int32)}
    numbers_down: ClassVar[dict[str, Tensor]] = {}
    """What goes with the weights to the server and from it, for `read_weights`."""
    server: int = Field(0, ge=0, description="node that averages; all others must be its neighbours")
    hidden: int = Field(4, ge=1, description="width of the heads' hidden layer, in multiples of d")
    projection: int = Field(1, ge=1, description="width of what the heads put out, in multiples of d")

    @property
    def messages(self) -> MessageContract:
        """All nodes train one model, and need the server in every round."""
        return MessageContract(one_model=True, server=self.server)

    def model(self, node: Node) -> nn.Module:
        """Return what is trained and averaged: the node's encoder, and heads with the same weights on all nodes."""
        return self.projected(node)

    def projected(self, node: Node) -> Projected:
        """Return the node's encoder with a projector."""
        d = node.encoder.d
        with seeded(node.seed, self.title, "projector"):
            return Projected(node.encoder, head(d, self.hidden * d, self.projection * d)).to(node.device)

    def bytes_sent(self, node: Node) -> int:
        """Return 4 bytes a weight and float buffer: a client's to the server, the server's to all clients."""
        if node.index == self.server:
            return len(node.neighbours) * weights_bytes(self.model(node), len(self.numbers_down))
        return weights_bytes(self.model(node), len(self.numbers_up)) if node.neighbours else 0

    def check(self, topology: Topology, counts: Tensor, local: LocalSpec) -> list[str]:  # noqa: ARG002
        """Refuse a graph on which the server cannot reach everyone; warn of views that would all be the same."""
        others = {i for i in range(topology.nodes) if i != self.server}
        if topology.edges and others - set(topology.neighbours(self.server)):
            raise InputError(
                f"graph must join method.server = {self.server} to all other nodes for method '{self.name}'; it is "
                f"joined to {len(topology.neighbours(self.server))} of {topology.nodes - 1}. Use graph.name = 'star'."
            )
        if local.augment.enabled:
            return []
        return [
            f"local.augment is off, and method '{self.name}' learns from differing views of a sample: nothing tells it "
            "what to overlook. Turn some on, e.g. local.augment.crop_scale = [0.4, 1.0]."
        ]

    def label(self, topology: Topology) -> str:
        """Name the method, or what is left of it without edges."""
        if topology.edges:
            return self.title
        return f"{'Centralised' if topology.nodes == 1 else 'Independent'} {self.local_title}"


class StarProgram(NodeProgram):
    """A node's state and rounds; methods say what they minimise and, if it is more, what they send and combine."""

    def __init__(self, spec: StarSpec, node: Node) -> None:
        self.server = node.index if not node.neighbours else spec.server
        if node.index != self.server and self.server not in node.neighbours:
            raise InputError(f"graph must join node {node.index} to method.server = {self.server}. Use 'star'.")
        self.spec = spec
        self.model = spec.model(node)
        self.trainer = LocalTrainer(self.model, node.local, node.seed, node.index, spec.title, views=spec.views)
        super().__init__(node, {"": self.trainer})

    def round(self, t: int) -> Round:
        """Play round t: train, average through the server, take over."""
        loss = self.train(t)
        answer = yield from self.through_server(t, "weights", self.message(), self.combine)
        self.accept(answer)
        self.stats = self.shard_stats(t)
        rates = rate_reduction(self.stats, self.spec.eps2).numbers()
        return {**rates, "overlap": overlap(self.stats), **collapse(self.stats), "total": loss, **self.own_log()}

    @abstractmethod
    def objective(self, X: Tensor, y: Tensor) -> Tensor:
        """Return what is minimised, for the views of a batch: blocks of n samples, one after the other."""

    def train(self, t: int) -> float:
        """Train for round t; return the mean loss."""
        return self.trainer.train(self.node.X, self.node.y, self.objective, t)

    def message(self) -> dict[str, Tensor]:
        """Return what goes up: the weights, and how many samples they were trained on."""
        return {**weights_of(self.model), "samples": torch.tensor(len(self.node.y), dtype=torch.int32)}

    def combine(self, parts: Mapping[int, WeightsMessage]) -> dict[str, Tensor]:
        """Return what goes down, from what all nodes sent up: θ ← Σ_k (m_k / Σ m) θ_k, federated averaging."""
        total = sum(part.numbers["samples"] for part in parts.values())
        return weighted_mean([(part.numbers["samples"] / total, part.weights) for part in parts.values()])

    def read(self, tag: str, sender: int, payload: Payload) -> Any:
        """Return a client's message at the server, and the server's answer at a client."""
        return self.parsed(tag, sender, payload, up=self.node.index == self.server)

    def parsed(self, tag: str, sender: int, payload: Payload, *, up: bool) -> Any:
        """Return what a message to the server (`up`) or its answer says."""
        if tag != "weights":
            return super().read(tag, sender, payload)
        return read_weights(payload, sender, self.model, self.spec.numbers_up if up else self.spec.numbers_down)

    def accept(self, answer: WeightsMessage) -> None:
        """Take over what came down."""
        load_weights(self.model, answer.weights)

    def own_log(self) -> RoundLog:
        """Return what the method says of its round beside what all say."""
        return {}

    def through_server(
        self, t: int, tag: str, message: Payload, combine: Callable[[Mapping[int, Any]], Payload]
    ) -> Generator[Exchange, Inbox, Any]:
        """Send a message to the server and return its answer; at the server, combine all messages to that answer.

        The server reads its own message and its own answer as if they had crossed an edge.
        """
        node = self.node
        if node.index != self.server:
            inbox = yield Exchange(tag, {self.server: message}, frozenset({self.server}))
            if self.server not in inbox:
                raise RatemeshError(
                    f"node {node.index} got no answer of node {self.server}, the server of method '{self.spec.name}', "
                    f"in round {t}, and cannot go on without it. Start node {self.server} again, then this one: both "
                    "go on after the last round that they saved."
                )
            return inbox[self.server]
        inbox = yield Exchange(tag, {}, frozenset(node.neighbours))
        parts = {**inbox, node.index: self.parsed(tag, node.index, message, up=True)}
        answer = combine(dict(sorted(parts.items())))
        yield Exchange(tag, dict.fromkeys(node.neighbours, answer), frozenset())
        return self.parsed(tag, node.index, answer, up=False)


def collapse(stats: ClassStats) -> dict[str, float]:
    """Return what tells a collapse: the spread of all features, and the effective rank of their covariance.

    The spread is √tr(S), S the covariance of unit vectors: 1 when they cancel out, 0 when they are all the same.
    """
    mean = stats.proportions @ stats.mu
    S = stats.mixture() - torch.outer(mean, mean)
    return {"spread": float(S.trace().clamp(min=0).sqrt()), "rank": float(effective_rank(S))}


def nt_xent(u: Tensor, temperature: float) -> Tensor:
    """Return the contrastive loss of unit vectors u (2n, D), row i and row n + i being two views of one sample.

    The mean over rows a of −log( exp(⟨u_a, u_p⟩/τ) / Σ_{c ≠ a} exp(⟨u_a, u_c⟩/τ) ), p the other view of a.
    """
    n = len(u) // 2
    similar = (u @ u.mT / temperature).fill_diagonal_(-torch.inf)
    return cross_entropy(similar, torch.arange(2 * n, device=u.device).roll(n))


def regression_loss(predicted: Tensor, target: Tensor) -> Tensor:
    """Return Σ over both views of 2 − 2 cos(prediction of one, target of the other), mean over samples; both (2n, D).

    The halves are two views of the same n samples. No gradient flows into the target.
    """
    other = target.detach().roll(len(target) // 2, 0)
    return 2 * (2 - 2 * cosine_similarity(predicted, other, dim=1)).mean()


@torch.no_grad()
def follow(target: nn.Module, online: nn.Module, keep: float) -> None:
    """ξ ← β ξ + (1 − β) φ for all parameters, β being `keep`; buffers stay the target's own."""
    for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
        slow.lerp_(fast, 1 - keep)


def sphere(n: int, d: int, draw: torch.Generator) -> Tensor:
    """Draw n unit vectors (n, d), uniform on the sphere."""
    return normalize(torch.randn(n, d, generator=draw), dim=1)

"""Algorithm 3 for tests: small nodes, a loop that plays rounds, and a plain transcription of the paper."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ratemesh.encoders.networks import Mlp
from ratemesh.engines.rounds import Traffic
from ratemesh.experiment.presets import PRESETS
from ratemesh.graph.clusters import label_cover_clusters
from ratemesh.training.local import LocalSpec
from ratemesh.training.protocol import Node, Program
from test_method_contract import play as play_round

K, P, D = 4, 6, 5
LABELS = ((0, 1), (1, 2, 3), (0, 2))  # Algorithm 2 gives {0, 1} and {1, 2}: agent 1 is replicated
PRINTED = {key: value for key, value in PRESETS["paper"]["method"].items() if key != "name"}
COLD = {"warm_start": {"epochs": 0}}


def make_nodes(
    labels: Sequence[tuple[int, ...]], lr: float = 0.01, epochs: int = 1, seed: int = 0, *, balance: bool = False
) -> list[Node]:
    """Nodes with a linear encoder in float64; a batch is the whole shard, so an epoch is one step."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(K, P, generator=draw, dtype=torch.float64)
    found = []
    for i, held in enumerate(labels):
        y = torch.tensor([k for k in held for _ in range(4 + i)])
        X = centres[y] + 0.3 * torch.randn(len(y), P, generator=draw, dtype=torch.float64)
        found.append((X, y))
    total = sum(len(y) for _, y in found)
    N = len(labels)
    return [
        Node(
            index=i,
            neighbours=tuple(j for j in range(N) if j != i),
            X=X,
            y=y,
            num_classes=K,
            share=len(y) / total,
            encoder=Mlp(hidden=()).build((P,), D, seed, i).double(),
            local=LocalSpec(epochs=epochs, batch_size=1000, lr=lr, weight_decay=0, balance=balance),
            seed=seed,
            labels=tuple(labels),
            clusters=tuple(label_cover_clusters(labels, K)),
        )
        for i, (X, y) in enumerate(found)
    ]


def play(programs: Sequence[Program], t: int) -> Traffic:
    """Play a round of programs and return what travelled."""
    return play_round(programs, t)[1]


class Paper:
    """The printed formulas, virtual node by virtual node and edge by edge, with autograd."""

    def __init__(
        self,
        nodes: Sequence[Node],
        clusters: Sequence[Sequence[int]],
        rho: float,
        gamma: float,
        *,
        balanced: bool = False,
    ) -> None:
        self.nodes, self.clusters, self.rho, self.gamma, self.balanced = nodes, clusters, rho, gamma, balanced
        self.virtual = [(s, i) for s, cluster in enumerate(clusters) for i in cluster]
        self.S = {i: sum(i in c for c in clusters) for i in range(len(nodes))}
        self.net: dict[tuple[int, int], nn.Module] = {v: copy.deepcopy(nodes[v[1]].encoder) for v in self.virtual}
        self.optimizer = {v: torch.optim.Adam(net.parameters(), lr=nodes[v[1]].local.lr) for v, net in self.net.items()}
        self.V = {v: self.second_moments(v) for v in self.virtual}
        self.Y = {(v, u, k): torch.zeros(D, D, dtype=torch.float64) for v, u, k in self.edges()}

    def edges(self) -> list[tuple[tuple[int, int], tuple[int, int], int]]:
        held = {v: set(self.nodes[v[1]].y.tolist()) for v in self.virtual}
        return [(v, u, k) for v in self.virtual for u in self.virtual if u != v for k in sorted(held[v] & held[u])]

    def second_moments(self, v: tuple[int, int]) -> dict[int, Tensor]:
        node = self.nodes[v[1]]
        Z = self.net[v](node.X)
        return {k: Z[node.y == k].T @ Z[node.y == k] / (node.y == k).sum() for k in sorted(set(node.y.tolist()))}

    def loss(self, v: tuple[int, int], T: dict[object, Tensor]) -> Tensor:
        s = v[0]
        alpha, eye = D / 0.5, torch.eye(D, dtype=torch.float64)
        own = self.second_moments(v)
        count = {(j, k): int((self.nodes[j].y == k).sum()) / self.S[j] for j in self.clusters[s] for k in range(K)}
        m_k = {k: sum(count[j, k] for j in self.clusters[s]) for k in range(K)}
        m_s, m = sum(m_k.values()), sum(len(node.y) for node in self.nodes)
        mixed = {}
        for k in range(K):
            others = sum(count[j, k] / m_k[k] * self.V[s, j][k].detach() for j in self.clusters[s] if count[j, k])
            mixed[k] = own.get(k, others)
        pi = {k: 1 / K if self.balanced else m_k[k] / m_s for k in range(K)}
        R = 0.5 * torch.logdet(eye + alpha * sum(pi[k] * mixed[k] for k in range(K)))
        R_c = sum(0.5 * pi[k] * torch.logdet(eye + alpha * mixed[k]) for k in range(K))
        total = -(m_s / m) * (R - R_c)
        for a, u, k in self.edges():
            if a == v:
                total = total + (self.Y[v, u, k] * own[k]).sum() + self.gamma * (own[k] - T[v, u, k]).square().sum()
        return total

    def round(self) -> None:
        old = {v: {k: V.detach() for k, V in stats.items()} for v, stats in self.V.items()}
        for v, u, k in self.edges():
            self.Y[v, u, k] = self.Y[v, u, k] + self.rho * (old[v][k] - old[u][k])
        T: dict[object, Tensor] = {(v, u, k): (old[v][k] + old[u][k]) / 2 for v, u, k in self.edges()}
        for v in self.virtual:  # a cluster's members in turn
            self.optimizer[v].zero_grad()
            self.loss(v, T).backward()
            self.optimizer[v].step()
            self.V[v] = self.second_moments(v)
        for i in range(len(self.nodes)):
            replicas = [self.net[v] for v in self.virtual if v[1] == i]
            for parameters in zip(*(net.parameters() for net in replicas), strict=True):
                mean = sum(p.detach() for p in parameters) / len(parameters)
                for p in parameters:
                    p.data.copy_(mean)
        self.V = {v: self.second_moments(v) for v in self.virtual}

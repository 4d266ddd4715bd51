"""Orchestra: views agree on clusters that the nodes find together (Lubana et al. 2022), a baseline.

Every node keeps a memory of recent projections of a target network, clusters it into L groups of equal size, and sends
the centres; the server clusters all nodes' centres into G global ones and sends those. In training, a view's projection
must fall into the clusters that the target puts another view in, and a third view, turned, must tell by how much.

Order: a round begins with the centres, made of the memory that the round before left (before round 1, of untrained
projections, which changes no weight and no statistic), then trains and averages. Those are the iterates of the
published order, whose round 0 becomes part of round 1, and every round costs the same: L·D numbers up and G·D down
beside the weights.

Choices. Targets stay at the nodes: these keep their state between rounds, so that nothing is gained by averaging them.
Centres: with N = 10 nodes the published L = 16 and G = 128 would leave 1.25 local centres to a global one, a mere copy;
G = 32 by default. The global clustering is 500 steps of gradient descent with momentum from the last centres, as
published. All three views are drawn from the run's one augmentation. Digits: many are the same or another digit when
turned by 180°, so use `rotations = 2` (0° or 90°) there; 0 leaves the task out, which is the only way for samples that
are no square images.
"""

import copy
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from ratemesh.devices import moved, precise
from ratemesh.errors import InputError
from ratemesh.graph import Topology
from ratemesh.messages.formats import Payload, misshapen, refused
from ratemesh.seeds import generator, seeded
from ratemesh.training.local import LocalSpec
from ratemesh.training.protocol import Node, Round, RoundLog
from ratemesh.training.star import Projected, StarProgram, StarSpec, follow, sphere

LOCAL_PASSES, LOCAL_SINKHORN = 5, 10
GLOBAL_RATE, GLOBAL_MOMENTUM, GLOBAL_DECAY = 0.01, 0.9, 1e-4
"""The published clustering's constants."""


class Turning(nn.Module):
    """Encoder and projector, and a linear layer that tells how far an image was turned."""

    def __init__(self, online: Projected, turns: nn.Module) -> None:
        super().__init__()
        self.online = online
        self.turns = turns

    def forward(self, X: Tensor) -> Tensor:
        """Return projections (n, D) of unit length."""
        projected: Tensor = self.online(X)
        return projected


class Orchestra(StarSpec):
    """Orchestra: views agree on clusters that all nodes' centres form at the server, without labels."""

    views: ClassVar[int] = 3
    title: ClassVar[str] = "Orchestra"
    local_title: ClassVar[str] = "clustering of views"
    hidden: int = Field(1, ge=1, description="width of the projector's hidden layer, in multiples of d")
    local_clusters: int = Field(16, ge=1, description="L, clusters of a node's memory")
    global_clusters: int = Field(32, ge=2, description="G, clusters of all nodes' centres")
    memory: int = Field(128, ge=1, description="M, projections that a node remembers; its samples at most")
    steps: int = Field(500, ge=0, description="of the global clustering, every round")
    keep: float = Field(0.996, ge=0, le=1, description="part of the target that stays at every step")
    temperature: float = Field(0.1, gt=0, description="of the softmax over clusters")
    rotations: Literal[0, 2, 4] = Field(4, description="quarter turns to tell apart: all four, 0° and 90°, or none")
    rotation_weight: float = Field(1.0, ge=0, description="of that task in the loss")

    def model(self, node: Node) -> Turning:
        """Return encoder, projector and the layer that tells turns."""
        d = node.encoder.d
        hidden, D = self.hidden * d, self.projection * d
        with seeded(node.seed, self.title, "heads"):
            first, second = nn.Linear(d, hidden, bias=False), nn.Linear(hidden, D, bias=False)
            projector = nn.Sequential(first, nn.BatchNorm1d(hidden), nn.ReLU(), second, nn.BatchNorm1d(D, affine=False))
            turning = Turning(Projected(node.encoder, projector), nn.Linear(D, max(self.rotations, 1)))
        return turning.to(node.device)

    def bytes_sent(self, node: Node) -> int:
        """Return the bytes of weights and samples, of local centres to the server and of global ones from it."""
        serves, D = node.index == self.server, self.projection * node.encoder.d
        centres = self.global_clusters * len(node.neighbours) if serves else self.local_clusters * bool(node.neighbours)
        return super().bytes_sent(node) + 4 * D * centres

    def check(self, topology: Topology, counts: Tensor, local: LocalSpec) -> list[str]:
        """Refuse what cannot be clustered; warn of more global clusters than there are centres."""
        words = super().check(topology, counts, local)
        if (fewest := int(counts.sum(1).min().clamp(max=self.memory))) < self.local_clusters:
            raise InputError(
                f"method.local_clusters must not exceed a node's memory of {fewest} samples; got "
                f"{self.local_clusters}. Lower it, or raise method.memory and the samples a node has."
            )
        centres = self.local_clusters * (topology.nodes if topology.edges else 1)
        if self.global_clusters > centres:
            words.append(
                f"method.global_clusters = {self.global_clusters} is more than the {centres} centres that nodes send: "
                "global clusters then copy single centres. Take a quarter of them or fewer."
            )
        return words

    def program(self, node: Node) -> "OrchestraProgram":
        """Return node i's part."""
        return OrchestraProgram(self, node)


class OrchestraProgram(StarProgram):
    """Node i's state and rounds."""

    spec: Orchestra
    model: Turning

    def __init__(self, spec: Orchestra, node: Node) -> None:
        super().__init__(spec, node)
        shape = node.X.shape[1:]
        if spec.rotations and (len(shape) != 3 or shape[1] != shape[2]):
            raise InputError(
                f"method.rotations must be 0 for samples that are no square images; got {spec.rotations} and samples "
                f"of shape {tuple(shape)}. Set method.rotations = 0."
            )
        self.target = self.kept["target."] = copy.deepcopy(self.model.online)
        self.memory = self._first_memory()
        drawn = sphere(spec.global_clusters, self.memory.shape[1], generator(node.seed, "centres"))
        self.centres = moved(drawn, node.device)

    def round(self, t: int) -> Round:
        """Play round t: find clusters together, then train and average."""
        draw = generator(self.node.seed, "clusters", self.node.index, t)
        local = local_centres(self.memory, self.spec.local_clusters, draw)
        self.centres = yield from self.through_server(t, "centres", {"centres": local}, self._cluster)
        log: RoundLog = yield from super().round(t)
        return log

    def parsed(self, tag: str, sender: int, payload: Payload, *, up: bool) -> Any:
        """Return local centres (L, D) on the way up, global ones (G, D) on the way down; or what all have."""
        if tag != "centres":
            return super().parsed(tag, sender, payload, up=up)
        like = self.memory[: self.spec.local_clusters] if up else self.centres
        if payload.keys() != {"centres"}:
            raise refused(sender, f"it must hold 'centres' and nothing else; got {', '.join(payload) or 'nothing'}")
        if fault := misshapen(payload, {"centres": (like.shape, like.dtype)}):
            raise refused(sender, fault)
        centres = payload["centres"]
        if not bool(((centres.norm(dim=1) - 1).abs() < 1e-3).all()):
            raise refused(sender, "'centres' must be unit vectors")
        return centres

    def _cluster(self, parts: Mapping[int, Tensor]) -> dict[str, Tensor]:
        """Cluster what the nodes sent, from the last global centres on."""
        Z = torch.cat(list(parts.values()))
        return {"centres": global_centres(Z, self.centres, self.spec.temperature, self.spec.steps)}

    @torch.no_grad()
    def _first_memory(self) -> Tensor:
        """Return untrained projections (M, D), of a copy of the target, so that no running statistic changes."""
        node = self.node
        draw = generator(node.seed, "memory", node.index)
        rows = torch.randperm(len(node.y), generator=draw)[: self.spec.memory]
        projected: Tensor = copy.deepcopy(self.target).train()(moved(node.X[rows], node.device))
        return projected

    def train(self, t: int) -> float:
        """Train, with draws of turns that belong to the round."""
        self.draw = generator(self.node.seed, "turns", self.node.index, t)
        self.target.train()
        return super().train(t)

    def objective(self, X: Tensor, y: Tensor) -> Tensor:  # noqa: ARG002 - learns without labels
        """Return how badly a view's clusters predict another's, and how badly turns are told."""
        follow(self.target, self.model.online, self.spec.keep)
        first, second, third = X.chunk(3)
        with torch.no_grad():
            steady = self.target(first)
        self.memory = torch.cat([self.memory, steady])[-len(self.memory) :]
        wanted = (steady @ self.centres.mT / self.spec.temperature).softmax(1)
        loss = cross_entropy(self.model(second) @ self.centres.mT / self.spec.temperature, wanted)
        return loss + self.spec.rotation_weight * self._turns(third) if self.spec.rotations else loss

    def _turns(self, X: Tensor) -> Tensor:
        """Return the cross-entropy of telling random quarter turns of images."""
        q = torch.randint(0, self.spec.rotations, (len(X),), generator=self.draw)
        projected = self.model.online.projector(self.encoder(turned(X, q)))
        return cross_entropy(self.model.turns(projected), moved(q, X.device))

    def own_log(self) -> RoundLog:
        """Return how many of the global clusters the memory uses, as exp of the mean use's entropy."""
        use = (self.memory @ self.centres.mT / self.spec.temperature).softmax(1).mean(0)
        return {"clusters_used": torch.special.entr(use).sum().exp().item()}

    def state(self) -> dict[str, Tensor]:
        """Return what all have, the target, the memory and the global centres."""
        return {**super().state(), "memory": self.memory, "centres": self.centres}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Go on from `state`."""
        super().load_state(state)
        self.memory, self.centres = state["memory"], state["centres"]


def turned(X: Tensor, q: Tensor) -> Tensor:
    """Return images (n, C, H, H), each turned by q (n,) quarters, exactly."""
    return torch.stack([image.rot90(int(k), (-2, -1)) for image, k in zip(X, q, strict=True)])


@torch.no_grad()
def local_centres(memory: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """Return `count` centres (L, D) of unit length for projections (M, D), of clusters about equal in size."""
    centres = memory[moved(torch.randperm(len(memory), generator=draw)[:count], memory.device)]
    for _ in range(LOCAL_PASSES):
        member = sinkhorn(memory @ centres.mT, steps=LOCAL_SINKHORN).argmax(1)
        spare = memory[moved(torch.randint(len(memory), (count,), generator=draw), memory.device)]
        sums = torch.zeros_like(centres).index_add(0, member, memory)
        empty = torch.bincount(member, minlength=count) == 0
        centres = normalize(torch.where(empty[:, None], spare, sums), dim=1)
    return centres


def global_centres(Z: Tensor, start: Tensor, temperature: float, steps: int) -> Tensor:
    """Return centres (G, D) of unit length for local ones Z (n, D), by descent from `start`.

    Minimises −mean_i cos(a_i, softmax(⟨z_i, C⟩/T)), a_i the assignment of z_i to clusters of equal size.
    """
    C, speed = start.clone(), torch.zeros_like(start)
    for _ in range(steps):
        assigned = sinkhorn(Z @ C.mT)
        C.requires_grad_()
        loss = -cosine_similarity(assigned, (Z @ C.mT / temperature).softmax(1), dim=1).mean()
        (slope,) = torch.autograd.grad(loss, C)
        C = C.detach()
        speed = GLOBAL_MOMENTUM * speed + slope + GLOBAL_DECAY * C
        C = normalize(C - GLOBAL_RATE * speed, dim=1)
    return C


@torch.no_grad()
def sinkhorn(scores: Tensor, *, sharpness: float = 25.0, steps: int = 100, tolerance: float = 1e-2) -> Tensor:
    """Return soft assignments (n, G) of n points to G clusters of equal size, from cosines (n, G).

    Rows sum to 1, columns to n/G as nearly as the steps allow. Sinkhorn–Knopp from the row-wise softmax of
    `sharpness` · scores, in double precision; every ten steps it is looked whether rows still change by more than
    `tolerance`.
    """
    P = (sharpness * precise(scores)).softmax(1)
    n, G = P.shape
    for step in range(steps):
        P = P * (n / G / P.sum(0).clamp(min=torch.finfo(P.dtype).tiny))
        rows = P.sum(1, keepdim=True)
        P = P / rows
        if step % 10 == 9 and float((rows - 1).abs().mean()) < tolerance:
            break
    return P.to(scores)

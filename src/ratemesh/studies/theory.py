"""The paper's theorems as an experiment: Algorithms 1 and 3 on free features instead of networks, float64.

A node's features of class k are the unit rows of A_k B_kᵀ with B_k (d, d_k) the node's own: rank(Z_{i,k}) ≤ d_k by
construction, and rank(Z_k) ≤ d_k, Theorem 1's constraint, follows from the consensus only. Nodes start from
different random factors. Rounds are those of the methods `alg1` and `alg3` with the settings of preset "paper", except
that local training takes T' steps of gradient descent on θ_i = (A, B), each on all samples of the node.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ratemesh.core.stats import ClassStats
from ratemesh.encoders import Encoder
from ratemesh.engines.inprocess import LocalSites
from ratemesh.engines.protocol import SiteFactory
from ratemesh.errors import RatemeshWarning
from ratemesh.experiment.presets import preset_for
from ratemesh.experiment.storage import make_new_folder, write_json
from ratemesh.graph.clusters import label_cover_clusters, memberships
from ratemesh.graph.topology import Complete, Ring, Topology
from ratemesh.methods import METHODS
from ratemesh.methods.alg1 import Alg1Program
from ratemesh.seeds import generator
from ratemesh.studies.theory_checks import (
    STEPS,
    Bounded,
    Check,
    Pace,
    Seen,
    Setting,
    Solution,
    Solved,
    consensus,
    decomposition_gaps,
    isotropic_optimum,
    rate_checks,
    structure_checks,
)
from ratemesh.studies.theory_figure import draw_theory
from ratemesh.threads import pinned
from ratemesh.training.local import LocalSpec, LocalTrainer, encode
from ratemesh.training.protocol import Node, Program


class FreeFeatures(nn.Module):
    """A network whose weights are the features themselves: sample n is the number n, and its feature B_k a_n.

    Attributes:
        y: (m,) the samples' labels k.
        A, B: factors (m, d_k) and (K, d, d_k).
    """

    def __init__(self, counts: Sequence[int], setting: Setting, *names: object) -> None:
        """Start with counts[k] random features of class k.

        Features do not depend on the length of A's rows, steps do: 1/√m_k lets every class move at the same pace.
        """
        super().__init__()
        source = generator(setting.seed, "theory", *names)
        self.y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        A = normalize(torch.randn(len(self.y), setting.rank, generator=source, dtype=torch.float64), dim=1)
        B = torch.randn(len(counts), setting.width, setting.rank, generator=source, dtype=torch.float64)
        m = torch.tensor(counts, dtype=torch.float64)[self.y, None]
        self.A = nn.Parameter(A / m.sqrt())
        self.B = nn.Parameter(B / math.sqrt(setting.width))

    def forward(self, samples: Tensor) -> Tensor:
        """Return features (n, d) of samples (n,), not normalised."""
        return torch.einsum("mdr,mr->md", self.B[self.y[samples]], self.A[samples])


@dataclass(frozen=True)
class Problem:
    """What is solved by which method: nodes with their features, a graph, and parts whose rate reductions add up.

    (opt1) has every node for a part, (opt2) a cluster of nodes that together hold all labels.
    """

    method: str
    nodes: list[Node]
    parts: list[tuple[int, ...]]
    eps2: float

    def part_stats(self, stats: Sequence[ClassStats]) -> list[ClassStats]:
        """Return the statistics of every part; a node in S_i parts counts 1/S_i in each."""
        S = memberships(self.parts, len(stats))
        return [ClassStats.sum(stats[i].scaled(1 / S[i]) for i in part) for part in self.parts]

    def solution(self) -> Solution:
        """Return where the features are now."""
        Z, y = [encode(node.encoder, node.X) for node in self.nodes], [node.y for node in self.nodes]
        stats = [ClassStats.of(*pair, self.nodes[0].num_classes) for pair in zip(Z, y, strict=True)]
        return Solution(Z, y, stats, self.part_stats(stats))

    def programs(self, pace: Pace, steps: int = STEPS) -> list[Program]:
        """Return the method's programs as printed, with T' = `steps`; their rounds change the nodes' features."""
        printed = {**preset_for("paper", self.method)["method"], "rho": pace.rho, "gamma": pace.gamma}
        spec = METHODS[self.method](**printed, eps2=self.eps2)
        descent = {"epochs": steps, "optimizer": "sgd", "lr": pace.eta, "weight_decay": 0, "schedule": "constant"}
        nodes = [replace(node, local=LocalSpec(batch_size=len(node.y), **descent)) for node in self.nodes]
        return [spec.program(node) for node in nodes]


def make_problem(method: str, features: Sequence[FreeFeatures], graph: Topology, setting: Setting) -> Problem:
    """Return the problem of a graph whose node i has features[i]; Algorithm 3 finds its parts by Algorithm 2."""
    labels = tuple(tuple(own.y.unique().tolist()) for own in features)
    clusters = label_cover_clusters(labels) if method == "alg3" else []
    m = sum(len(own.y) for own in features)
    nodes = [
        Node(
            index=i,
            neighbours=graph.neighbours(i),
            X=torch.arange(len(own.y)),
            y=own.y,
            num_classes=setting.classes,
            share=len(own.y) / m,
            encoder=Encoder(own, setting.width).double(),
            local=LocalSpec(),
            seed=setting.seed,
            labels=labels,
            clusters=tuple(clusters),
        )
        for i, own in enumerate(features)
    ]
    return Problem(method, nodes, clusters or [(i,) for i in range(len(nodes))], setting.eps2)


def iid_problem(setting: Setting) -> Problem:
    """Return (opt1) on a ring; nodes differ in size, not in proportions (Assumption 1)."""
    N, K, r = setting.nodes, setting.classes, setting.rank
    features = [FreeFeatures([r * (4 + 2 * (i % 2))] * K, setting, "iid", i) for i in range(N)]
    return make_problem("alg1", features, Ring(name="ring", nodes=N).build(setting.seed), setting)


def clustered_problem(setting: Setting) -> Problem:
    """Return (opt2): nodes 2s and 2s+1 hold half of the labels each, other halves for other s: a cluster.

    With an odd number of nodes the last one shares node 1, which then is in two clusters and twice as large, so that
    clusters differ in size, not in proportions (Assumption 4). Algorithm 2 finds these clusters. All nodes are joined.
    """
    N, K = setting.nodes, setting.classes
    features = []
    for i in range(N):
        s = 0 if N % 2 and i == N - 1 else i // 2
        half = {(k + s) % K for k in range((K + 1) // 2)}
        size = setting.rank * (4 + 2 * (s % 2)) * (2 if N % 2 and i == 1 else 1)
        counts = [size if (k in half) == (i % 2 == 0) else 0 for k in range(K)]
        features.append(FreeFeatures(counts, setting, "clusters", i))
    return make_problem("alg3", features, Complete(name="complete", nodes=N).build(setting.seed), setting)


def engine_of(programs: Sequence[Program]) -> LocalSites:
    """Return an engine whose sites are the programs themselves; these are never saved or asked for more."""
    factory = SimpleNamespace(site=lambda index: programs[index])
    return LocalSites(cast("SiteFactory", factory), range(len(programs)))


def solve(problem: Problem, rounds: int) -> Solved:
    """Descend until the properties show; the paper weighs node i by m_i/m, so steps grow and coupling falls with N."""
    N, start = len(problem.nodes), problem.solution()
    programs = problem.programs(Pace(eta=N / 4, rho=0.8 / N, gamma=2 / N, rounds=rounds))
    engine = engine_of(programs)
    jensen, apart = [], []
    for t in range(1, rounds + 1):
        stats = [program.stats for program in programs]
        jensen.append(decomposition_gaps(problem.part_stats(stats), problem.eps2)[0])
        apart.append(consensus(stats))
        engine.play(t)
    return Solved(start, problem.solution(), jensen, apart)


def converge(setting: Setting) -> list[Bounded]:
    """Run Algorithm 1 under Theorem 2's conditions for several T, the shortest first.

    η = c''/√(TT') and 4ρ + γ = c'η² with c' = 0.01. c'' is a quarter of what η < 1/(4T'L) allows the shortest run, with
    L as seen in a few tiny steps from the same start. Gradients are of all samples: Assumption 3 holds with κ = 0.
    """
    horizons = [setting.rounds // 2 // part for part in (8, 4, 2, 1)]
    L = watch(setting, Pace(1e-4, 0, 0, 10)).smoothness
    runs = []
    for T in horizons:
        eta = math.sqrt(horizons[0] / T) / (16 * STEPS * L)
        pace = Pace(eta, rho=0.01 * eta**2 / 8, gamma=0.01 * eta**2 / 2, rounds=T)
        runs.append((pace, watch(setting, pace)))
    L = max(seen.smoothness for _, seen in runs)
    return [Bounded(pace, seen, rate_bound(pace, seen.loss, L, setting)) for pace, seen in runs]


def watch(setting: Setting, pace: Pace) -> Seen:
    """Run Algorithm 1 on (opt1) and return what Theorem 2 speaks of."""
    untrained = engine_of(iid_problem(setting).programs(pace, steps=0)).play(1).logs
    programs = iid_problem(setting).programs(pace)
    slopes = [gradients(cast("Alg1Program", program).learner.trainer) for program in programs]
    engine = engine_of(programs)
    for t in range(1, pace.rounds + 1):
        engine.play(t)
    gradient2, smoothness = torch.zeros(pace.rounds, dtype=torch.float64), 0.0
    for own in slopes:
        first, second = torch.stack(own).unflatten(0, (pace.rounds, STEPS)).unbind(1)  # (T, weights) each
        length = first.norm(dim=1)
        gradient2 += length.square()
        moved = pace.eta * length.clamp(min=torch.finfo(length.dtype).tiny)
        smoothness = max(smoothness, float(((second - first).norm(dim=1) / moved).max()))
    return Seen(sum(log["total"] for log in untrained), gradient2.tolist(), smoothness)


def gradients(trainer: LocalTrainer) -> list[Tensor]:
    """Return a list that gets the gradient of every step that is taken from now on, all weights in one vector."""
    kept: list[Tensor] = []

    def keep(*_: object) -> None:
        weights = list(trainer.modules.parameters())
        kept.append(torch.cat([weight.grad.flatten() for weight in weights if weight.grad is not None]))

    for optimizer in trainer.optimizers.values():
        optimizer.register_step_pre_hook(keep)
    return kept


def rate_bound(pace: Pace, loss: float, L: float, setting: Setting) -> list[float]:
    """Return (L_0 − L_*)/(ctT'η) + ηNE/c for t = 1, 2, ..., infinite where η < 1/(4T'L) fails.

    Without noise ηE = (4ρ + γ)K|N_i|/η; c is the largest allowed; L_* is minus the optimum of every node's ΔR.
    """
    c = 0.5 - 8 * (pace.eta * STEPS * L) ** 2
    if c <= 0:
        return [math.inf] * pace.rounds
    pi = torch.full((setting.classes,), 1 / setting.classes)
    drop = loss + isotropic_optimum(pi, setting.width, setting.rank, setting.eps2)[0]
    degree = min(2, setting.nodes - 1)  # a ring
    rest = (4 * pace.rho + pace.gamma) * setting.nodes * setting.classes * degree / (pace.eta * c)
    return [drop / (c * t * STEPS * pace.eta) + rest for t in range(1, pace.rounds + 1)]


@dataclass(frozen=True)
class Theory:
    """What a verification left: the checks, and where things are."""

    checks: list[Check]
    summary: Path
    figures: tuple[Path, ...]


def run_theory(out: Path, setting: Setting, tell: Callable[[str], None] = lambda _: None) -> Theory:
    """Solve (opt1) and (opt2), compare with Theorems 1 to 3, leave theory.json and a figure in `out`.

    Args:
        out: new or empty folder.
        tell: called with a line before each part, which takes seconds.
    """
    make_new_folder(out, "out", "Choose another with --out, or delete it.")
    for gap in setting.gaps():
        warnings.warn(gap, RatemeshWarning, stacklevel=2)
    with pinned(1):
        tell(f"Theorem 1: {setting.nodes} nodes on a ring, {setting.rounds} rounds of Algorithm 1")
        iid = solve(iid_problem(setting), setting.rounds)
        tell(f"Theorem 2: up to {setting.rounds // 2} rounds with η = c''/√(TT')")
        slow = converge(setting)
        tell(f"Theorem 3: clusters of nodes with half of the labels each, {setting.rounds // 2} rounds")
        clustered = solve(clustered_problem(setting), setting.rounds // 2)
    checks = [
        *structure_checks("1", iid.end, setting.rank, setting.eps2),
        *rate_checks(slow),
        *structure_checks("3", clustered.end, setting.rank, setting.eps2),
    ]
    summary = out / "theory.json"
    write_json(summary, [asdict(check) for check in checks])
    return Theory(checks, summary, draw_theory(out / "theory", setting.rank, iid, clustered, slow))

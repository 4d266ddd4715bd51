"""The paper's theorems as an experiment: free features on the sphere instead of encoders, float64.

A node's features of class k are the unit rows of A_k B_kᵀ with B_k (d, d_k) the node's own: rank(Z_{i,k}) ≤ d_k by
construction, and rank(Z_k) ≤ d_k, Theorem 1's constraint, follows from the consensus only. Nodes start from
different random factors. The steps are those of Algorithm 1 (and 3), with plain gradient descent on θ_i = (A, B).
"""

import json
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ratemesh.core.consensus import consensus_loss, dual_step, fold_neighbours
from ratemesh.core.rates import rate_reduction
from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError, RatemeshWarning
from ratemesh.experiment.storage import plain, write_text
from ratemesh.graph.topology import Ring
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
    Trace,
    consensus,
    decomposition_gaps,
    isotropic_optimum,
    rate_checks,
    structure_checks,
)
from ratemesh.studies.theory_figure import draw_theory
from ratemesh.threads import pinned


@dataclass
class Agent:
    """Node i: labels y (m,), and the factors A (m, d_k), B (K, d, d_k) of its features, which are its θ_i."""

    y: Tensor
    A: Tensor
    B: Tensor

    @classmethod
    def draw(cls, counts: Sequence[int], setting: Setting, *names: object) -> "Agent":
        """Start with counts[k] random features of class k.

        Features do not depend on the length of A's rows, steps do: 1/√m_k lets every class move at the same pace.
        """
        source = generator(setting.seed, "theory", *names)
        y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        A = normalize(torch.randn(len(y), setting.rank, generator=source, dtype=torch.float64), dim=1)
        B = torch.randn(len(counts), setting.width, setting.rank, generator=source, dtype=torch.float64)
        m = torch.tensor(counts, dtype=torch.float64)[y, None]
        return cls(y, (A / m.sqrt()).requires_grad_(), (B / math.sqrt(setting.width)).requires_grad_())

    def features(self) -> Tensor:
        """Return Z (m, d): row n is the unit vector along B_k a_n, k its label."""
        return normalize(torch.einsum("mdr,mr->md", self.B[self.y], self.A), dim=1)

    def stats(self) -> ClassStats:
        """Return the class statistics of the features, without gradient."""
        return ClassStats.of(self.features().detach(), self.y, len(self.B))


class Link(NamedTuple):
    """What ties a node to the others for one round: summed duals Y, mean midpoints T̄, neighbours n (K,), γ."""

    Y: Tensor
    T_bar: Tensor
    n: Tensor
    gamma: float


@dataclass(frozen=True)
class Problem:
    """Who holds what, who talks to whom, and the parts whose rate reductions add up.

    (opt1) has every node for a part, (opt2) a cluster of nodes that together hold all labels.
    """

    agents: list[Agent]
    neighbours: list[tuple[int, ...]]
    parts: list[tuple[int, ...]]
    eps2: float

    def part(self, s: int, stats: Sequence[ClassStats]) -> ClassStats:
        """Return the statistics of part s; a node in S_i parts counts 1/S_i in each."""
        return ClassStats.sum(stats[i].scaled(1 / sum(i in p for p in self.parts)) for i in self.parts[s])

    def objective(self, i: int, Z: Tensor, link: Link, stats: Sequence[ClassStats]) -> Tensor:
        """Return the local objective of node i: (lagran1_2), or (R2_4) as a function of Z_i alone.

        Args:
            Z: (m_i, d) features of node i.
            link: coupling to the nodes it shares labels with.
            stats: statistics of all nodes; of a cluster's other members the latest, as Algorithm 3 asks.
        """
        y, m = self.agents[i].y, sum(len(agent.y) for agent in self.agents)
        alone = (i,) in self.parts
        loss = consensus_loss(Z, y, **link._asdict(), eps2=self.eps2, scale=len(y) / m if alone else 0).total
        if alone:
            return loss
        now = [*stats]
        now[i] = ClassStats.of(Z, y, stats[i].num_classes)
        for s in (s for s, part in enumerate(self.parts) if i in part):
            cluster = self.part(s, now)
            loss = loss - float(cluster.m.sum()) / m * rate_reduction(cluster, self.eps2).reduction
        return loss

    def solution(self) -> Solution:
        """Return where the features are now."""
        stats = [agent.stats() for agent in self.agents]
        Z = [agent.features().detach() for agent in self.agents]
        return Solution(Z, [a.y for a in self.agents], stats, [self.part(s, stats) for s in range(len(self.parts))])


def iid_problem(setting: Setting) -> Problem:
    """Return (opt1) on a ring; nodes differ in size, not in proportions (Assumption 1)."""
    N, K, r = setting.nodes, setting.classes, setting.rank
    agents = [Agent.draw([r * (4 + 2 * (i % 2))] * K, setting, "iid", i) for i in range(N)]
    ring = Ring(name="ring", nodes=N).build(setting.seed)
    return Problem(agents, [ring.neighbours(i) for i in range(N)], [(i,) for i in range(N)], setting.eps2)


def clustered_problem(setting: Setting) -> Problem:
    """Return (opt2): nodes 2s and 2s+1 are a cluster and hold half of the labels each, other halves for other s.

    With an odd number of nodes the last one shares node 1, which then is in two clusters and twice as large, so that
    clusters differ in size, not in proportions (Assumption 4). Who holds a label talks to all who hold it.
    """
    N, K = setting.nodes, setting.classes
    parts: list[tuple[int, ...]] = [(i, i + 1 if i + 1 < N else 1) for i in range(0, N, 2)]
    agents = []
    for i in range(N):
        s = 0 if N % 2 and i == N - 1 else i // 2
        half = {(k + s) % K for k in range((K + 1) // 2)}
        size = setting.rank * (4 + 2 * (s % 2)) * sum(i in part for part in parts)
        counts = [size if (k in half) == (i % 2 == 0) else 0 for k in range(K)]
        agents.append(Agent.draw(counts, setting, "clusters", i))
    return Problem(agents, [tuple(j for j in range(N) if j != i) for i in range(N)], parts, setting.eps2)


def descend(problem: Problem, pace: Pace) -> Trace:
    """Run Algorithm 1 on the problem (Algorithm 3 if parts are clusters); the agents' factors change in place."""
    trace, agents = Trace(), problem.agents
    stats = [agent.stats() for agent in agents]
    Y = [torch.zeros_like(own.V) for own in stats]
    for _ in range(pace.rounds):
        trace.jensen.append(
            decomposition_gaps([problem.part(s, stats) for s in range(len(problem.parts))], problem.eps2)[0]
        )
        trace.consensus.append(consensus(stats))
        heard = [[stats[j] for j in problem.neighbours[i]] for i in range(len(agents))]
        Y = [dual_step(Y[i], stats[i], heard[i], pace.rho) for i in range(len(agents))]  # (R1_2a), (R2_1a)
        links = [Link(Y[i], *fold_neighbours(stats[i], heard[i]), pace.gamma) for i in range(len(agents))]  # (R1_T)
        seen = []
        for i, agent in enumerate(agents):
            seen.append(_local_steps(problem, i, links[i], stats, pace.eta))
            stats[i] = agent.stats()
        trace.add(seen)
    return trace


def _local_steps(problem: Problem, i: int, link: Link, stats: Sequence[ClassStats], eta: float) -> Seen:
    """Take T' gradient steps on θ_i, (R1_2c); return what the first two saw."""
    agent, losses, slopes = problem.agents[i], [], []
    for _ in range(STEPS):
        loss = problem.objective(i, agent.features(), link, stats)
        gradient = torch.autograd.grad(loss, (agent.A, agent.B))
        with torch.no_grad():
            agent.A -= eta * gradient[0]
            agent.B -= eta * gradient[1]
        losses.append(float(loss.detach()))
        slopes.append(torch.cat([g.flatten() for g in gradient]))
    length = float(slopes[0].norm())
    return Seen(losses[0], length**2, float((slopes[1] - slopes[0]).norm()) / (eta * length) if length else 0.0)


def solve(problem: Problem, N: int, rounds: int) -> Solved:
    """Descend until the properties show; the paper weighs node i by m_i/m, so steps grow and coupling falls with N."""
    start = problem.solution()
    trace = descend(problem, Pace(eta=N / 4, rho=0.8 / N, gamma=2 / N, rounds=rounds))
    return Solved(start, problem.solution(), trace)


def converge(setting: Setting) -> list[Bounded]:
    """Run Algorithm 1 under Theorem 2's conditions for several T, the shortest first.

    η = c''/√(TT') and 4ρ + γ = c'η² with c' = 0.01. c'' is a quarter of what η < 1/(4T'L) allows the shortest run, with
    L as seen in a few tiny steps from the same start. Gradients are of all samples: Assumption 3 holds with κ = 0.
    """
    horizons = [setting.rounds // 2 // part for part in (8, 4, 2, 1)]
    L = descend(iid_problem(setting), Pace(1e-4, 0, 0, 10)).smoothness
    runs = []
    for T in horizons:
        eta = math.sqrt(horizons[0] / T) / (16 * STEPS * L)
        pace = Pace(eta, rho=0.01 * eta**2 / 8, gamma=0.01 * eta**2 / 2, rounds=T)
        runs.append((pace, descend(iid_problem(setting), pace)))
    L = max(trace.smoothness for _, trace in runs)
    return [Bounded(pace, trace, rate_bound(pace, trace.loss[0], L, setting)) for pace, trace in runs]


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
    _make_folder(out)
    for gap in setting.gaps():
        warnings.warn(gap, RatemeshWarning, stacklevel=2)
    with pinned(1):
        tell(f"Theorem 1: {setting.nodes} nodes on a ring, {setting.rounds} rounds of Algorithm 1")
        iid = solve(iid_problem(setting), setting.nodes, setting.rounds)
        tell(f"Theorem 2: up to {setting.rounds // 2} rounds with η = c''/√(TT')")
        slow = converge(setting)
        tell(f"Theorem 3: clusters of nodes with half of the labels each, {setting.rounds // 2} rounds")
        clustered = solve(clustered_problem(setting), setting.nodes, setting.rounds // 2)
    checks = [
        *structure_checks("1", iid.end, setting.rank, setting.eps2),
        *rate_checks(slow),
        *structure_checks("3", clustered.end, setting.rank, setting.eps2),
    ]
    summary = out / "theory.json"
    write_text(summary, json.dumps(plain([asdict(check) for check in checks]), indent=2, allow_nan=False) + "\n")
    return Theory(checks, summary, draw_theory(out / "theory", setting.rank, iid, clustered, slow))


def _make_folder(out: Path) -> None:
    """Make the folder before a minute is spent on what goes into it."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"out must be a new or empty folder; '{out}' exists. Choose another with --out, or delete it.")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out must be a folder that can be made; got '{out}' ({error}). Choose another.") from None

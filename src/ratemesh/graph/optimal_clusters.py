"""Clusters that hold every label with the fewest replicas and hops: an integer program beside Algorithm 2.

The paper leaves open how to minimise communication inside clusters and replication. Minimised here, in this order:
replicas Σ_i (S_i − 1), hops between members (`hops_inside`), and then the number of clusters is made as large as it
can be. All agents in one cluster need no replica, so without more being asked for the first is always 0; `at_least`
asks for so many clusters that work in parallel, and replicas are then what that costs.
"""

import time
import warnings
from collections.abc import Collection, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array

from ratemesh.errors import InputError, RatemeshWarning
from ratemesh.graph.clusters import Cluster, check_held_labels, cover_cost, label_cover_clusters
from ratemesh.graph.topology import Topology, named

TIME_LIMIT = 60.0
"""Seconds after which the best clusters found so far, or Algorithm 2's, are taken."""

LARGEST = 50_000
"""Variables above which writing the program down would take longer than the time limit."""


class _Program:
    """Who is in which of `slots` clusters, as the constraints that every cover satisfies.

    Variables: x[i, s], agent i is in cluster s; y[s], cluster s is used; w[p, s], both agents of pair p are in s.
    """

    def __init__(self, holders: Sequence[Collection[int]], agents: int, slots: int, at_least: int) -> None:
        self.holders, self.agents, self.slots = holders, agents, slots
        self.pairs = list(combinations(range(agents), 2))
        self.x = np.arange(agents * slots).reshape(agents, slots)
        self.y = self.x.size + np.arange(slots)
        self.w = self.x.size + slots + np.arange(len(self.pairs) * slots).reshape(-1, slots)
        self.size = self.x.size + slots + self.w.size
        self.rows: list[tuple[dict[int, float], float, float]] = []
        for i in range(agents):
            self.add(dict.fromkeys(self.x[i], 1), 1)
        self.add(dict.fromkeys(self.y, 1), at_least)
        for s in range(slots):
            for holding in holders:
                self.add({**{self.x[i, s]: 1 for i in holding}, self.y[s]: -1}, 0)
            for i in range(agents):
                self.add({self.y[s]: 1, self.x[i, s]: -1}, 0)
        self._order()

    def _order(self) -> None:
        """Leave one of many numberings: used clusters come first, and agent 0 is in the first."""
        for s in range(1, self.slots):
            self.add({self.y[s - 1]: 1, self.y[s]: -1}, 0)
        self.add({self.x[0, 0]: 1}, 1)

    def order_disjoint(self) -> None:
        """Leave one numbering of disjoint clusters, by their lowest member: cluster s has none below s."""
        for s in range(1, self.slots):
            self.add(dict.fromkeys(self.x[:s, s], 1), 0, 0)

    def add(self, row: dict[int, float], low: float, high: float = np.inf) -> None:
        """Add low ≤ row · variables ≤ high."""
        self.rows.append((row, low, high))

    def count_pairs(self) -> None:
        """Make w what it stands for.

        The second kind of row follows from the first and whole numbers; it is what makes the relaxation tight: who
        lacks label k shares its cluster with someone who holds it.
        """
        at = {pair: p for p, pair in enumerate(self.pairs)}
        for s in range(self.slots):
            for (i, j), p in at.items():
                self.add({self.w[p, s]: 1, self.x[i, s]: -1, self.x[j, s]: -1}, -1)
            for holding in self.holders:
                for i in set(range(self.agents)) - set(holding):
                    with_holder = {self.w[at[min(i, j), max(i, j)], s]: 1 for j in holding}
                    self.add({**with_holder, self.x[i, s]: -1}, 0)

    def solve(self, cost: np.ndarray, until: float) -> Any:
        """Minimise; x and y whole, w whole by itself."""
        matrix = lil_array((len(self.rows), self.size))
        for r, (row, _, _) in enumerate(self.rows):
            matrix[r, list(row)] = list(row.values())
        low, high = (np.array([row[n] for row in self.rows]) for n in (1, 2))
        whole = np.zeros(self.size)
        whole[: self.x.size + self.slots] = 1
        options = {"time_limit": max(0.01, until - time.monotonic()), "mip_rel_gap": 0}
        return milp(
            cost,
            integrality=whole,
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix.tocsr(), low, high),
            options=options,
        )

    def clusters(self, solution: np.ndarray) -> list[Cluster]:
        """Read the used clusters out of a solution."""
        member = solution[self.x] > 0.5
        return sorted(tuple(np.flatnonzero(column).tolist()) for column in member.T if column.any())


def optimal_label_cover(
    labels: Sequence[Collection[int]],
    topology: Topology,
    num_classes: int | None = None,
    *,
    at_least: int = 1,
    time_limit: float = TIME_LIMIT,
) -> list[Cluster]:
    """Cluster agents with the fewest replicas, then the fewest hops inside clusters, then the most clusters.

    Args:
        labels: K_i, the labels of agent i, for all agents of the topology.
        topology: connected; hops are shortest paths in it.
        num_classes: K; one more than the largest label if not given.
        at_least: clusters that there must be.
        time_limit: seconds; when they are over a warning says so and the best known cover is returned.

    >>> optimal_label_cover([[0], [0], [1], [1]], Topology(4, ((0, 2), (0, 1), (1, 3))))
    [(0, 2), (1, 3)]
    """
    K = check_held_labels(labels, num_classes)
    _check(labels, topology, at_least)
    distances = topology.distances()
    holders = [[i for i, row in enumerate(labels) if k in row] for k in range(K)]
    until = time.monotonic() + time_limit
    greedy = label_cover_clusters(labels, K)
    if all(len(cluster) == 1 for cluster in greedy):  # nothing is cheaper than every agent alone
        return greedy
    fewest, first = _fewest_replicas(holders, len(labels), at_least, until)
    best = _fewest_hops(holders, distances, fewest, at_least, until) if fewest is not None else None
    if best is not None and best[1]:
        return best[0]
    known = [greedy, *([first] if first else []), *([best[0]] if best else [])]
    warnings.warn(
        f"the optimal clusters of {len(labels)} agents were not found in {time_limit:g} s, or there are too many to "
        "try: the best cover known is taken, Algorithm 2's or better. Give more time, or ask for fewer clusters.",
        RatemeshWarning,
        stacklevel=2,
    )
    return min(known, key=lambda clusters: cover_cost(clusters, distances, at_least))


def _check(labels: Sequence[Collection[int]], topology: Topology, at_least: int) -> None:
    if topology.nodes != len(labels):
        raise InputError(f"labels must have a row a node; got {len(labels)} rows for {topology.nodes} nodes.")
    if not topology.is_connected:
        raise InputError(
            f"topology must be connected to count hops; it falls into {named(topology.components())}. Add edges."
        )
    if not 1 <= at_least <= len(labels):
        raise InputError(f"at_least must be in 1..{len(labels)}, the number of agents; got {at_least}.")


def _fewest_replicas(
    holders: Sequence[Collection[int]], agents: int, at_least: int, until: float
) -> tuple[int | None, list[Cluster] | None]:
    """Return the fewest replicas of a cover with at least so many clusters (None: not proven), and such a cover.

    Exactly `at_least` clusters are enough to look at: joining two clusters never adds a replica.
    """
    if at_least == 1:
        return 0, [tuple(range(agents))]
    program = _Program(holders, agents, at_least, at_least)
    cost = np.zeros(program.size)
    cost[program.x] = 1
    result = program.solve(cost, until)
    cover = None if result.x is None else program.clusters(result.x)
    return (round(result.fun) - agents if result.status == 0 else None), cover


def _fewest_hops(
    holders: Sequence[Collection[int]], distances: Sequence[Sequence[float]], fewest: int, at_least: int, until: float
) -> tuple[list[Cluster], bool] | None:
    """Return the cover with `fewest` replicas that has the fewest hops, then the most clusters; and whether proven."""
    agents = len(distances)
    # every cluster takes a member from each label's holders, of whom there are |𝒱_k| and the replicas
    slots = max(at_least, min(len(holding) for holding in holders) + fewest)
    if agents * agents * slots > 2 * LARGEST:
        return None
    program = _Program(holders, agents, slots, at_least)
    program.add(dict.fromkeys(program.x.ravel(), 1), 0, agents + fewest)
    if not fewest:
        program.order_disjoint()
    program.count_pairs()
    cost = np.zeros(program.size)
    for p, (i, j) in enumerate(program.pairs):
        cost[program.w[p]] = distances[i][j] * (program.slots + 1)  # one hop weighs more than all clusters
    cost[program.y] = -1
    result = program.solve(cost, until)
    return None if result.x is None else (program.clusters(result.x), result.status == 0)

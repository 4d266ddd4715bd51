"""Clusters that hold every label with the fewest replicas or hops: integer programs beside Algorithm 2.

The paper leaves open how to minimise communication inside clusters and replication. Two orders of what to minimise:

- "fewest-replicas": replicas Σ_i (S_i − 1), then hops between members (`hops_inside`), then the number of clusters is
  made as large as it can be. All agents in one cluster need no replica, so that the first is 0 unless `at_least` asks
  for so many clusters that work in parallel; replicas are then what that costs.
- "nearest": hops between members, then replicas. An agent is replicated where that spares a long way.
"""

import time
import warnings
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Literal

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array

from ratemesh.errors import InputError, RatemeshWarning
from ratemesh.graph.clusters import Cluster, Distances, check_held_labels, cover_cost, label_cover_clusters, replicas
from ratemesh.graph.topology import Topology, components_in_words

ClusterRule = Literal["printed", "fewest-replicas", "nearest"]
Holders = Sequence[Collection[int]]
"""𝒱_k, the agents that hold label k, for all labels."""
Found = tuple[list[Cluster], bool]
"""A cover, no clusters if none was found; and whether it is proven best."""

TIME_LIMIT = 60.0
"""Seconds after which the best clusters found so far, or Algorithm 2's, are taken."""

LARGEST = 50_000
"""Variables above which writing the program down would take longer than the time limit."""


def clusters_by(
    rule: ClusterRule, labels: Sequence[Collection[int]], topology: Topology, num_classes: int | None = None
) -> list[Cluster]:
    """Cluster agents by Algorithm 2 as printed or by an optimum, so that every agent comes to the same clusters.

    Agents work the clusters out by themselves: an optimum that is not proven in time is refused, because what is known
    by then depends on the machine.

    >>> clusters_by("nearest", [[0], [1], [0], [1]], Topology(4, ((0, 3), (2, 3), (1, 2))))
    [(0, 3), (1, 2)]
    """
    if rule == "printed":
        return label_cover_clusters(labels, num_classes)
    clusters, proven = _best_cover(rule, tuple(map(frozenset, labels)), topology, num_classes, 1, TIME_LIMIT)
    if not proven:
        raise InputError(
            f"method.clustering must be 'printed' for these {len(labels)} agents; got '{rule}', which was not found in "
            f"{TIME_LIMIT:g} s, or they are too many to try."
        )
    return list(clusters)


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
    rows = tuple(map(frozenset, labels))
    clusters, proven = _best_cover("fewest-replicas", rows, topology, num_classes, at_least, time_limit)
    if not proven:
        warnings.warn(
            f"the optimal clusters of {len(labels)} agents were not found in {time_limit:g} s, or they are too many to "
            "try: the best cover known is taken, Algorithm 2's or better. Give more time, or ask for fewer clusters.",
            RatemeshWarning,
            stacklevel=2,
        )
    return list(clusters)


@lru_cache(maxsize=64)  # every node of a process needs the same clusters
def _best_cover(
    rule: ClusterRule,
    labels: tuple[frozenset[int], ...],
    topology: Topology,
    num_classes: int | None,
    at_least: int,
    time_limit: float,
) -> tuple[tuple[Cluster, ...], bool]:
    """Return the best cover known when the time is over, Algorithm 2's at worst; and whether it is proven best."""
    K = check_held_labels(labels, num_classes)
    _check(labels, topology, at_least)
    distances = topology.distances()
    holders = [[i for i, row in enumerate(labels) if k in row] for k in range(K)]
    until = time.monotonic() + time_limit
    greedy = label_cover_clusters(labels, K)
    if all(len(cluster) == 1 for cluster in greedy):  # nothing is cheaper than every agent alone
        return tuple(greedy), True
    known = [greedy]
    if rule == "nearest":
        best, proven = _fewest_hops(holders, distances, until)
    else:
        best, proven = _fewest_replicas(holders, len(labels), at_least, until)
        if proven:
            known.append(best)
            best, proven = _fewest_hops_with(replicas(best, len(labels)), holders, distances, at_least, until)
    if proven:
        return tuple(best), True
    known += [best] if best else []
    cheapest = min(known, key=lambda cover: cover_cost(cover, distances, at_least, rule))
    return tuple(cheapest), False


def _check(labels: Sequence[Collection[int]], topology: Topology, at_least: int) -> None:
    if topology.nodes != len(labels):
        raise InputError(f"labels must have a row a node; got {len(labels)} rows for {topology.nodes} nodes.")
    if not topology.is_connected:
        parts = components_in_words(topology.components())
        raise InputError(f"topology must be connected to count hops; it falls into {parts}. Add edges.")
    if not 1 <= at_least <= len(labels):
        raise InputError(f"at_least must be in 1..{len(labels)}, the number of agents; got {at_least}.")


class _Program:
    """Who is in which of `slots` clusters, as the constraints that every cover satisfies.

    Variables: x[i, s], agent i is in cluster s; y[s], cluster s is used; w[p, s], both agents of pair p are in s.
    """

    def __init__(self, holders: Holders, agents: int, slots: int) -> None:
        self.holders, self.agents, self.slots = holders, agents, slots
        self.pairs = {pair: p for p, pair in enumerate(combinations(range(agents), 2))}
        self.x = np.arange(agents * slots).reshape(agents, slots)
        self.y = self.x.size + np.arange(slots)
        self.w = self.x.size + slots + np.arange(len(self.pairs) * slots).reshape(-1, slots)
        self.cost = np.zeros(self.x.size + slots + self.w.size)
        self.rows: list[tuple[dict[int, float], float, float]] = []
        for i in range(agents):
            self.add(dict.fromkeys(self.x[i], 1), 1)
        for s in range(slots):
            for holding in holders:
                self.add({**{self.x[i, s]: 1 for i in holding}, self.y[s]: -1}, 0)
            for i in range(agents):
                self.add({self.y[s]: 1, self.x[i, s]: -1}, 0)

    def add(self, row: dict[int, float], low: float, high: float = np.inf) -> None:
        """Add low ≤ row · variables ≤ high."""
        self.rows.append((row, low, high))

    def number_by_use(self, at_least: int) -> None:
        """Leave one of many numberings: so many used clusters or more come first, and agent 0 is in the first."""
        self.add(dict.fromkeys(self.y, 1), at_least)
        for s in range(1, self.slots):
            self.add({self.y[s - 1]: 1, self.y[s]: -1}, 0)
        self.add({self.x[0, 0]: 1}, 1)

    def number_by_lowest(self) -> None:
        """Leave one numbering of disjoint clusters, by their lowest member: cluster s has none below s."""
        for s in range(1, self.slots):
            self.add(dict.fromkeys(self.x[:s, s], 1), 0, 0)

    def number_by_owner(self) -> None:
        """Number a cluster, of as many as there are agents, by the lowest member that is in no other.

        There is one: a cluster whose members are all in others can be left out, which spares hops and replicas.
        """
        for s in range(self.slots):
            others = [o for o in range(self.slots) if o != s]
            self.add({self.x[s, s]: 1, self.y[s]: -1}, 0)
            for o in others:
                self.add({self.x[s, o]: 1, self.y[s]: 1}, 0, 1)
            for i in range(s):
                self.add({**{self.x[i, o]: 1 for o in others}, self.x[i, s]: -1}, 0)

    def count_hops(self, distances: Distances, weight: float) -> None:
        """Make w what it stands for, and a hop between members cost `weight`.

        The second kind of row follows from the first and whole numbers; it is what makes the relaxation tight: who
        lacks label k shares its cluster with someone who holds it.
        """
        for (i, j), p in self.pairs.items():
            self.cost[self.w[p]] = distances[i][j] * weight
            for s in range(self.slots):
                self.add({self.w[p, s]: 1, self.x[i, s]: -1, self.x[j, s]: -1}, -1)
        for holding in self.holders:
            for i in set(range(self.agents)) - set(holding):
                with_holder = [self.pairs[min(i, j), max(i, j)] for j in holding]
                for s in range(self.slots):
                    self.add({**dict.fromkeys(self.w[with_holder, s], 1), self.x[i, s]: -1}, 0)

    def cover(self, until: float) -> Found:
        """Minimise, x and y whole, w whole by itself."""
        rows, low, high = zip(*self.rows, strict=True)
        matrix = lil_array((len(rows), self.cost.size))
        for r, row in enumerate(rows):
            matrix[r, list(row)] = list(row.values())
        whole = np.zeros(self.cost.size)
        whole[: self.x.size + self.slots] = 1
        result = milp(
            self.cost,
            integrality=whole,
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(matrix.tocsr(), low, high),
            options={"time_limit": max(0.01, until - time.monotonic()), "mip_rel_gap": 0},
        )
        if result.x is None:
            return [], False
        member = result.x[self.x] > 0.5
        clusters = sorted(tuple(np.flatnonzero(column).tolist()) for column in member.T if column.any())
        return clusters, result.status == 0


def _fewest_replicas(holders: Holders, agents: int, at_least: int, until: float) -> Found:
    """Return the cover with at least so many clusters that has the fewest replicas.

    Exactly `at_least` clusters are enough to look at: joining two clusters never adds a replica.
    """
    if at_least == 1:
        return [tuple(range(agents))], True
    program = _Program(holders, agents, at_least)
    program.number_by_use(at_least)
    program.cost[program.x] = 1
    return program.cover(until)


def _fewest_hops_with(most_replicas: int, holders: Holders, distances: Distances, at_least: int, until: float) -> Found:
    """Return the cover with at most so many replicas that has the fewest hops, then the most clusters."""
    agents = len(distances)
    # every cluster takes a member from each label's holders, of whom there are |𝒱_k| and the replicas
    slots = max(at_least, min(map(len, holders)) + most_replicas)
    if agents * agents * slots > 2 * LARGEST:
        return [], False
    program = _Program(holders, agents, slots)
    program.number_by_use(at_least)
    program.add(dict.fromkeys(program.x.ravel(), 1), 0, agents + most_replicas)
    if not most_replicas:
        program.number_by_lowest()
    program.count_hops(distances, slots + 1)  # one hop weighs more than all clusters
    program.cost[program.y] = -1
    return program.cover(until)


def _fewest_hops(holders: Holders, distances: Distances, until: float) -> Found:
    """Return the cover with the fewest hops, then the fewest replicas."""
    agents = len(distances)
    if agents**3 > 2 * LARGEST:
        return [], False
    program = _Program(holders, agents, agents)
    program.number_by_owner()
    program.count_hops(distances, agents**2)  # one hop weighs more than all replicas
    program.cost[program.x] = 1
    return program.cover(until)

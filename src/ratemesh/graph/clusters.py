"""Labels on a graph: Algorithm 2 of [1], what its clusters cost, and whether the holders of a label can agree on it."""

from collections.abc import Collection, Sequence
from itertools import combinations

from ratemesh.errors import InputError
from ratemesh.graph.topology import Topology, braced

Cluster = tuple[int, ...]
Distances = Sequence[Sequence[float]]

MOST = 4
"""Labels and edges that a message names."""


def label_cover_clusters(labels: Sequence[Collection[int]], num_classes: int | None = None) -> list[Cluster]:
    """Cluster agents so that every cluster holds every label; implements Alg. 2 of [1], ties to the lowest index.

    What is true of it: every agent is in a cluster, no agent in more than two, and all clusters but the last are
    disjoint, since agents are replicated only when none is left. What is not: a replica need not stay needed once later
    ones are in, and an agent left over joins a cluster even if it brings no label that is missing (docs/clusters.md).

    Args:
        labels: K_i, the labels of agent i, for all agents.
        num_classes: K, so that 𝒦 = {0, …, K−1}; one more than the largest label if not given.

    Returns:
        𝒱^1, …, 𝒱^S, members ascending.

    >>> label_cover_clusters([[1, 3, 5, 6], [0, 5, 7, 8], [1, 3, 8, 9], [2, 4, 6, 7], [0, 2, 4, 9]])
    [(0, 1, 4), (1, 2, 3)]
    """
    K_ = [frozenset(row) for row in labels]  # l. 1: K_[i] is 𝒦_i
    every_label = frozenset(range(check_held_labels(labels, num_classes)))
    agents = range(len(labels))
    clusters: list[Cluster] = []
    unclustered = set(agents)  # l. 2: 𝒱̄ ← 𝒱
    while unclustered:  # l. 3
        cluster: set[int] = set()  # l. 4: 𝒱^s = ∅
        uncovered = every_label  # l. 4: 𝒰^s = 𝒦
        while uncovered:  # l. 5
            if unclustered:  # l. 6
                i = _most(unclustered, K_, uncovered)  # l. 7
                unclustered.remove(i)  # l. 7
            else:  # l. 8
                i = _most(agents, K_, uncovered)  # l. 9: replication is allowed
            cluster.add(i)  # l. 10
            uncovered -= K_[i]  # l. 10
        clusters.append(tuple(sorted(cluster)))  # l. 11: s ← s + 1
    return clusters  # l. 12


def _most(agents: Collection[int], K_: Sequence[frozenset[int]], uncovered: frozenset[int]) -> int:
    """Return argmax_i |𝒦_i ∩ 𝒰^s|, the lowest index of equals."""
    return min(agents, key=lambda i: (-len(K_[i] & uncovered), i))


def check_held_labels(labels: Sequence[Collection[int]], num_classes: int | None = None) -> int:
    """Return K, or say which agent holds nothing, which label is none, or which label nobody holds."""
    if not labels:
        raise InputError("labels must have a row an agent; got none. Give at least one agent its labels.")
    for i, row in enumerate(labels):
        if not row:
            raise InputError(f"labels must give every agent a label; agent {i} holds none. Give it data.")
    K = max(map(max, labels)) + 1 if num_classes is None else num_classes
    for i, row in enumerate(labels):
        wrong = [k for k in row if not 0 <= k < K]
        if wrong:
            raise InputError(f"labels must be in 0..{K - 1}; agent {i} has {wrong[0]}. Number classes from 0.")
    missing = sorted(set(range(K)).difference(*labels))
    if missing:
        raise InputError(
            f"labels must be held by at least one agent each; nobody holds {', '.join(map(str, missing))} of "
            f"0..{K - 1}. Give an agent samples of it, or drop the class."
        )
    return K


def memberships(clusters: Sequence[Sequence[int]], agents: int) -> list[int]:
    """Return S_i, the number of clusters that agent i is in."""
    return [sum(i in cluster for cluster in clusters) for i in range(agents)]


def replicas(clusters: Sequence[Sequence[int]], agents: int) -> int:
    """Return Σ_i (S_i − 1), the virtual nodes beyond one an agent."""
    return sum(memberships(clusters, agents)) - agents


def lacking_edges(clusters: Sequence[Sequence[int]], edges: Collection[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pairs of members (i, j), i < j, that no edge joins."""
    pairs = {(i, j) for cluster in clusters for i in cluster for j in cluster if i < j}
    return sorted(pairs - set(edges))


def hops_inside(cluster: Sequence[int], distances: Distances) -> float:
    """Return the sum of distances over pairs of members.

    A member's new statistics go to every other member of its cluster (Alg. 3, l. 16), each message relayed edge by
    edge: in a round the cluster's messages cross twice this many edges.
    """
    return sum(distances[i][j] for i, j in combinations(cluster, 2))


def cover_cost(
    clusters: Sequence[Sequence[int]], distances: Distances, at_least: int = 1, rule: str = "fewest-replicas"
) -> tuple[int, float, float, int]:
    """Return what one cover is better by, in this order: clusters short of `at_least`, replicas, hops, clusters.

    By the rule "nearest" hops come before replicas.
    """
    hops = sum(hops_inside(cluster, distances) for cluster in clusters)
    extra = replicas(clusters, len(distances))
    first, second = (hops, extra) if rule == "nearest" else (extra, hops)
    return max(0, at_least - len(clusters)), first, second, -len(clusters)


def critical_path(clusters: Sequence[Sequence[int]]) -> int:
    """Return the longest chain of turns in a round of Algorithm 3: what no number of machines can shorten.

    Members of a cluster take turns, and an agent in several clusters is in one after the other.

    >>> critical_path([(0, 1, 4), (1, 2, 3)])
    5
    """
    free: dict[int, int] = {}
    for cluster in clusters:
        now = 0
        for i in cluster:
            now = free[i] = max(now, free.get(i, 0)) + 1
    return max(free.values(), default=0)


def split_in_words(topology: Topology, labels: Sequence[Collection[int]]) -> list[str]:
    """Say whose statistics of which label cannot meet, and what edges would mend it; nothing of nodes without edges.

    Only holders send the statistics of a label: others do not pass them on.

    Args:
        labels: K_i of every node.
    """
    split = {}
    for k in sorted(set().union(*labels)) if topology.edges else []:
        groups = topology.components([i for i, held in enumerate(labels) if k in held])
        if len(groups) > 1:
            split[k] = groups
    if not split:
        return []
    who = [f"label {k} of nodes {' and '.join(map(braced, groups))}" for k, groups in split.items()]
    ends = ((first[0], other[0]) for first, *others in split.values() for other in others)
    edges = [f"{i}–{j}" for i, j in sorted({(min(pair), max(pair)) for pair in ends})]
    return [
        f"Statistics of a label cannot meet where no edges join its holders: {_some(who, '; ')}. Add edges, e.g. "
        f"{_some(edges, ', ')}, or use graph.name = 'complete'."
    ]


def _some(words: Sequence[str], between: str) -> str:
    """Join words, the first few if there are many."""
    rest = len(words) - MOST
    return between.join(words[:MOST]) + (f"{between}and {rest} more" if rest > 0 else "")

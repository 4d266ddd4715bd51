"""Algorithm 2, its goldens and what is true of it; the optimum against brute force and never worse than the greedy."""

from itertools import combinations, combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratemesh.data.by_label import SCENARIOS
from ratemesh.errors import InputError, RatemeshWarning
from ratemesh.graph import optimal_clusters
from ratemesh.graph.clusters import (
    cover_cost,
    hops_inside,
    label_cover_clusters,
    memberships,
    replicas,
)
from ratemesh.graph.optimal_clusters import clusters_by, optimal_label_cover
from ratemesh.graph.topology import Empty, ErdosRenyi, Ring, Star, of_edges


def is_label_cover(clusters, labels):
    """Whether every cluster holds every label, every agent is in a cluster, and in none twice."""
    return (
        {i for cluster in clusters for i in cluster} == set(range(len(labels)))
        and all(len(set(cluster)) == len(cluster) for cluster in clusters)
        and all(set().union(*(labels[i] for i in cluster)) == set().union(*labels) for cluster in clusters)
    )


@st.composite
def tables(draw, agents=8, classes=5):
    """Labels of agents that hold 0..K-1 between them."""
    K = draw(st.integers(1, classes))
    rows = draw(st.lists(st.sets(st.integers(0, K - 1), min_size=1), min_size=1, max_size=agents))
    rows[-1] |= set(range(K)) - set().union(*rows)
    return draw(st.permutations(rows))


def by_matrix(labels):
    """Algorithm 2 in another form: a 0/1 table of agents and labels, columns struck out as they are covered."""
    holds = np.array([[k in row for k in range(max(map(max, labels)) + 1)] for row in labels], dtype=int)
    free, clusters = np.ones(len(labels), dtype=bool), []
    while free.any():
        clusters.append([])
        left = holds.copy()
        while left.any():
            gain = np.where(free | (not free.any()), left.sum(1), -1)
            clusters[-1].append(int(gain.argmax()))
            free[clusters[-1][-1]] = False
            left[:, holds[clusters[-1][-1]] == 1] = 0
    return [tuple(sorted(cluster)) for cluster in clusters]


def test_the_papers_clusters():
    assert label_cover_clusters(SCENARIOS["4x5"]) == [(0, 1), (2, 3)]
    five = label_cover_clusters(SCENARIOS["5x4"])
    assert five == [(0, 1, 4), (1, 2, 3)]
    assert memberships(five, 5) == [1, 2, 1, 1, 1]
    assert replicas(five, 5) == 1


def test_an_agent_that_brings_nothing_joins_all_the_same():
    """As printed: agents 2 and 3 only repeat label 0, and the cluster they begin must replicate both others."""
    assert label_cover_clusters([[0, 1], [2], [0], [0]]) == [(0, 1), (0, 1, 2, 3)]


def test_who_has_everything_is_a_cluster_alone():
    assert label_cover_clusters([[0, 1, 2]] * 4) == [(0,), (1,), (2,), (3,)]


@given(tables())
def test_algorithm_2_covers_with_everyone_and_replicates_only_when_nobody_is_left(labels):
    clusters = label_cover_clusters(labels)
    assert clusters == by_matrix(labels)
    assert is_label_cover(clusters, labels)
    every_label = set().union(*labels)
    assert all(set().union(*(labels[i] for i in cluster)) == every_label for cluster in clusters)
    assert {i for cluster in clusters for i in cluster} == set(range(len(labels)))
    assert sum(map(len, clusters[:-1])) == len(set().union(*clusters[:-1]))  # disjoint but for the last
    again = set(clusters[-1]) & set().union(*clusters[:-1])
    alone = set().union(*(labels[i] for i in clusters[-1] if i not in again))
    assert not again or alone < every_label
    assert max(memberships(clusters, len(labels))) <= 2
    assert replicas(clusters, len(labels)) == len(again)


def test_a_replica_need_not_stay_needed():
    """Greedy covers are not minimal: the widest replica is taken first, and those after it make it superfluous."""
    labels = [[4], [1, 2, 4], [2, 3], [0, 1]]
    assert label_cover_clusters(labels) == [(1, 2, 3), (0, 1, 2, 3)]
    assert is_label_cover([(1, 2, 3), (0, 2, 3)], labels)


@pytest.mark.parametrize(
    ("clusters", "answer"),
    [
        ([(0, 1), (1, 2)], True),
        ([(0, 1, 2)], True),
        ([(0, 1)], False),
        ([(0, 1), (2,)], False),
        ([(0, 1), (1, 2, 2)], False),
        ([(0, 1), (1, 2), ()], False),
    ],
    ids=["replica", "one", "left out", "label missing", "twice", "empty"],
)
def test_the_checker_sees_what_is_a_cover(clusters, answer):
    assert is_label_cover(clusters, [[0], [1], [0]]) is answer


@pytest.mark.parametrize(
    ("labels", "K", "message"),
    [
        ([[0, 1], [3]], 4, r"nobody holds 2 of 0\.\.3\. Give an agent"),
        ([[0], [2]], None, r"nobody holds 1 of 0\.\.2"),
        ([[0], []], None, r"agent 1 holds none"),
        ([], None, r"a row an agent; got none"),
        ([[0, 1], [4]], 2, r"in 0\.\.1; agent 1 has 4"),
        ([[0, -1]], None, r"in 0\.\.0; agent 0 has -1"),
    ],
)
def test_labels_that_cannot_be_covered_are_named(labels, K, message):
    for cover in (label_cover_clusters, lambda *a: optimal_label_cover(a[0], Ring(nodes=2).build(0), a[1])):
        with pytest.raises(InputError, match=message):
            cover(labels, K)


def test_hops_are_shortest_paths_over_pairs():
    line = of_edges(4, [(0, 1), (1, 2), (2, 3)])
    assert line.distances()[0] == [0, 1, 2, 3]
    assert hops_inside((0, 1, 3), line.distances()) == 1 + 3 + 2
    assert Empty(nodes=2).build(0).distances()[0] == [0, float("inf")]


def best_by_trying(labels, distances, at_least, most=4, rule="fewest-replicas"):
    """The lowest cost of all covers of at most `most` clusters."""
    K = max(map(max, labels)) + 1
    every = range(len(labels))
    subsets = (c for n in every for c in combinations(every, n + 1))
    sets = [c for c in subsets if set().union(*(labels[i] for i in c)) == set(range(K))]
    covers = (c for S in range(at_least, most + 1) for c in combinations_with_replacement(sets, S))
    return min(cover_cost(c, distances, at_least, rule) for c in covers if set().union(*c) == set(every))


@settings(max_examples=40)
@given(tables(agents=4, classes=4), st.integers(1, 3), st.integers(0, 100))
def test_the_optimum_is_that_of_trying_everything(labels, at_least, seed):
    topology = ErdosRenyi(nodes=len(labels)).build(seed)
    at_least = min(at_least, len(labels))
    clusters = optimal_label_cover(labels, topology, at_least=at_least)
    assert is_label_cover(clusters, labels)
    cost = cover_cost(clusters, topology.distances(), at_least)
    tried = best_by_trying(labels, topology.distances(), at_least)
    assert cost == tried or (len(clusters) > 4 and cost < tried)


@settings(max_examples=30)
@given(tables(agents=7), st.integers(0, 100), st.sampled_from([ErdosRenyi, Ring, Star]))
def test_the_optimum_is_never_worse_than_algorithm_2(labels, seed, graph):
    topology = graph(nodes=len(labels)).build(seed)
    greedy = label_cover_clusters(labels)
    for at_least in {1, len(greedy)}:
        clusters = optimal_label_cover(labels, topology, at_least=at_least)
        assert is_label_cover(clusters, labels)
        assert len(clusters) >= at_least
        costs = [cover_cost(cover, topology.distances(), at_least) for cover in (clusters, greedy)]
        assert costs[0] <= costs[1]
    assert replicas(optimal_label_cover(labels, topology), len(labels)) == 0


def test_the_optimum_of_the_papers_scenarios():
    ring = Ring(nodes=5).build(0)
    assert optimal_label_cover(SCENARIOS["5x4"], ring) == [(0, 1, 2, 3, 4)]  # 5 × 4 labels cover 10 twice at no price
    two = optimal_label_cover(SCENARIOS["5x4"], ring, at_least=2)
    assert (len(two), replicas(two, 5)) == (2, 1)
    assert optimal_label_cover(SCENARIOS["4x5"], Ring(nodes=4).build(0)) == [(0, 1), (2, 3)]


def test_hops_decide_between_equal_covers():
    """Labels would pair 0 with 1 as well as with 3; the line has 0 next to 3 only."""
    line = of_edges(4, [(0, 3), (3, 2), (2, 1)])
    labels = [[0], [1], [0], [1]]
    assert label_cover_clusters(labels) == [(0, 1), (2, 3)]
    assert optimal_label_cover(labels, line) == [(0, 3), (1, 2)]


@settings(max_examples=40)
@given(tables(agents=4, classes=4), st.integers(0, 100), st.sampled_from([ErdosRenyi, Ring, Star]))
def test_the_nearest_clusters_are_those_of_trying_everything(labels, seed, graph):
    """Four agents never need more than four clusters, each having a member that is in no other."""
    topology = graph(nodes=len(labels)).build(seed)
    clusters = clusters_by("nearest", labels, topology)
    assert is_label_cover(clusters, labels)
    cost = cover_cost(clusters, topology.distances(), rule="nearest")
    assert cost[:3] == best_by_trying(labels, topology.distances(), 1, rule="nearest")[:3]


@settings(max_examples=30)
@given(tables(agents=7), st.integers(0, 100), st.sampled_from([ErdosRenyi, Ring, Star]))
def test_every_rule_covers_and_is_never_worse_than_the_printed_one_at_its_aim(labels, seed, graph):
    topology = graph(nodes=len(labels)).build(seed)
    covers = {rule: clusters_by(rule, labels, topology) for rule in ("printed", "fewest-replicas", "nearest")}
    assert covers["printed"] == label_cover_clusters(labels)
    assert all(is_label_cover(clusters, labels) for clusters in covers.values())
    costs = {rule: cover_cost(clusters, topology.distances()) for rule, clusters in covers.items()}
    assert costs["fewest-replicas"][1] == 0
    assert costs["nearest"][2] <= min(costs["printed"][2], costs["fewest-replicas"][2])


@pytest.mark.parametrize("rule", ["fewest-replicas", "nearest"])
def test_agents_that_work_the_clusters_out_apart_agree(rule):
    labels = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 3), (0, 3)]
    found = []
    for rows in (labels, [list(reversed(row)) for row in labels], [set(row) for row in labels]):
        optimal_clusters._best_cover.cache_clear()  # as in another process
        found.append(clusters_by(rule, rows, ErdosRenyi(nodes=7).build(0)))
    assert found[0] == found[1] == found[2]


def test_a_replica_spares_a_long_way():
    """On a line 0–1–…–5 the only holder of label 1 sits in the middle: one cluster has 35 hops, pairs with it 9."""
    line = of_edges(6, [(i, i + 1) for i in range(5)])
    labels = [[0], [0], [0, 1], [0], [0], [0]]
    assert clusters_by("fewest-replicas", labels, line) == [(0, 1, 2, 3, 4, 5)]
    assert clusters_by("nearest", labels, line) == [(0, 2), (1, 2), (2, 3), (2, 4), (2, 5)]


@pytest.mark.parametrize("rule", ["fewest-replicas", "nearest"])
def test_a_run_does_not_go_on_with_clusters_that_depend_on_the_machine(rule, monkeypatch):
    rng = np.random.default_rng(0)
    labels = [rng.choice(10, 5, replace=False).tolist() for _ in range(16)]
    monkeypatch.setattr(optimal_clusters, "TIME_LIMIT", 0.01)
    with pytest.raises(InputError, match=rf"for these 16 agents; got '{rule}', which was not found in 0\.01 s"):
        clusters_by(rule, labels, ErdosRenyi(nodes=16).build(0))


def test_out_of_time_means_a_warning_and_what_is_known():
    rng = np.random.default_rng(0)
    labels = [rng.choice(10, 5, replace=False).tolist() for _ in range(16)]
    topology = ErdosRenyi(nodes=16).build(0)
    with pytest.warns(RatemeshWarning, match=r"of 16 agents were not found in 0\.01 s.*Algorithm 2's or better"):
        clusters = optimal_label_cover(labels, topology, time_limit=0.01)
    greedy = label_cover_clusters(labels)
    assert is_label_cover(clusters, labels)
    assert cover_cost(clusters, topology.distances()) <= cover_cost(greedy, topology.distances())


def test_many_agents_are_not_tried():
    labels = [[i % 2] for i in range(60)]
    with pytest.warns(RatemeshWarning, match="too many to try"):
        clusters = optimal_label_cover(labels, Ring(nodes=60).build(0))
    assert is_label_cover(clusters, labels)
    assert optimal_label_cover([[0, 1]] * 60, Ring(nodes=60).build(0)) == [(i,) for i in range(60)]


@pytest.mark.parametrize(
    ("topology", "at_least", "message"),
    [
        (Ring(nodes=3).build(0), 1, r"got 2 rows for 3 nodes"),
        (Empty(nodes=2).build(0), 1, r"must be connected to count hops; it falls into 2 components: \{0\}, \{1\}"),
        (Ring(nodes=2).build(0), 3, r"at_least must be in 1\.\.2, the number of agents; got 3"),
        (Ring(nodes=2).build(0), 0, r"at_least must be in 1\.\.2"),
    ],
)
def test_what_the_optimum_cannot_work_with(topology, at_least, message):
    with pytest.raises(InputError, match=message):
        optimal_label_cover([[0], [1]], topology, at_least=at_least)

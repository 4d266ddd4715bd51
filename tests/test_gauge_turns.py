"""Frames that all turn at once: they meet on every graph, also where nodes could swap frames without end."""

import networkx as nx
import pytest
import torch
from torch import Tensor

from ratemesh.core.stats import ClassStats
from ratemesh.encoders.networks import Mlp
from ratemesh.messages.statistics import StatsMessage
from ratemesh.metrics.geometry import relative_distance
from ratemesh.training.gauge import Gauge, GaugeSpec

K, D = 3, 8
TWO_COLOURS = {"pair": nx.path_graph(2), "path": nx.path_graph(5), "star": nx.star_graph(4), "ring": nx.cycle_graph(6)}
OTHERS = {"triangle": nx.cycle_graph(3), "complete": nx.complete_graph(5)}


def a_little(seed: int) -> Tensor:
    """Return a rotation by a few degrees in random planes."""
    A = 0.15 * torch.randn(D, D, generator=torch.Generator().manual_seed(seed))
    return torch.linalg.matrix_exp(A - A.T)


def spread(stats: dict[int, ClassStats], graph: nx.Graph) -> float:
    """Return the largest distance over an edge, of what nodes are now."""
    return max(relative_distance(stats[i], stats[j]) for i, j in graph.edges)


@pytest.mark.parametrize("name", [*TWO_COLOURS, *OTHERS])
def test_frames_meet_when_all_turn_at_once(name: str) -> None:
    graph = (TWO_COLOURS | OTHERS)[name]
    draw = torch.Generator().manual_seed(1)
    y = torch.arange(60) % K
    Z = torch.nn.functional.normalize(torch.eye(K, D)[y] + 0.3 * torch.randn(60, D, generator=draw), dim=1)
    stats = {i: ClassStats.of(Z @ a_little(i).T, y, K) for i in graph}
    gauges = {i: Gauge(GaugeSpec(), root=i == 0) for i in graph}
    for i, hops in nx.single_source_shortest_path_length(graph, 0).items():
        gauges[i].hops = hops
    encoders = {i: Mlp(hidden=()).build((D,), D, 0, i) for i in graph}
    before = spread(stats, graph)
    for _ in range(30):
        told = {i: StatsMessage(stats[i], gauges[i].hops) for i in graph}
        stats = {i: gauges[i].turn(encoders[i], stats[i], [told[j] for j in graph[i]]) for i in graph}
    assert before > 0.2
    assert spread(stats, graph) < 0.02

"""Algorithm 2 beside the optimum, on random labels and graphs; and runs of Algorithm 3 on a graph with long links.

    python experiments/clusters.py --instances 20 --write
    python experiments/clusters.py --long-links --instances 3 --write

--write puts the table into docs/clusters.md between its markers.
"""

import argparse
import math
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

from ratemesh.errors import RatemeshWarning
from ratemesh.experiment.config import make_config
from ratemesh.experiment.experiment import run
from ratemesh.graph.clusters import (
    Cluster,
    cover_cost,
    critical_path,
    hops_inside,
    label_cover_clusters,
    lacking_edges,
    replicas,
)
from ratemesh.graph.optimal_clusters import ClusterRule, clusters_by, optimal_label_cover
from ratemesh.graph.topology import ErdosRenyi, Topology, of_edges

PAGE = Path(__file__).parents[1] / "docs" / "clusters.md"
RANDOM = "| agents × labels | Algorithm 2 | optimal | optimal, as many clusters | needless replica | longest |"
LONG_LINKS = (
    "| rule | clusters | replicas | turns | hops | edges laid | kB a round | pooled, % | label-aware, % "
    "| rounds to 60 % |"
)
GOAL = 0.6
CLASSES = 10
SIZES = ((5, 4), (8, 4), (8, 7), (10, 5), (10, 7), (12, 4))
"""Agents, and labels that each of them holds."""


def instance(agents: int, held: int, seed: int) -> tuple[list[list[int]], Topology]:
    """Return random labels that cover all classes, and a random graph."""
    draw = random.Random(seed)
    while True:
        labels = [draw.sample(range(CLASSES), held) for _ in range(agents)]
        if len(set().union(*labels)) == CLASSES:
            return labels, ErdosRenyi(nodes=agents).build(seed)


def has_needless_replica(clusters: list[Cluster], labels: list[list[int]]) -> bool:
    """Whether Algorithm 2's last cluster would cover without one of the agents that other clusters have."""
    *others, last = clusters
    return any(
        len(set().union(*(labels[j] for j in last if j != i))) == CLASSES
        for i in last
        if any(i in cluster for cluster in others)
    )


def row(agents: int, held: int, instances: int) -> str:
    """Return a line of the table: means over instances of clusters, replicas and hops, three ways."""
    costs: dict[str, list[tuple[int, float, float, int]]] = {"greedy": [], "free": [], "same": []}
    needless, took = 0, []
    for seed in range(instances):
        labels, topology = instance(agents, held, seed)
        greedy = label_cover_clusters(labels, CLASSES)
        began = time.perf_counter()
        free = optimal_label_cover(labels, topology, CLASSES)
        same = optimal_label_cover(labels, topology, CLASSES, at_least=len(greedy))
        took.append((time.perf_counter() - began) / 2)
        needless += has_needless_replica(greedy, labels)
        for name, clusters in (("greedy", greedy), ("free", free), ("same", same)):
            costs[name].append(cover_cost(clusters, topology.distances()))
    cells = [f"{agents} × {held}", *map(_cell, costs.values()), f"{needless} of {instances}", f"{max(took):.1f} s"]
    return "| " + " | ".join(cells) + " |"


def _cell(costs: list[tuple[int, float, float, int]]) -> str:
    means = (statistics.mean(values) for values in zip(*((-c[3], c[1], c[2]) for c in costs), strict=True))
    return " / ".join(f"{value:.1f}" for value in means)


def places(seed: int) -> tuple[list[tuple[int, ...]], Topology]:
    """Return labels and the graph of three places, which all hold all classes.

    Inside a place all four nodes are joined, and one long link joins every two places.
    """
    draw = random.Random(seed)
    nodes = draw.sample(range(12), 12)
    groups = [sorted(nodes[start : start + 4]) for start in (0, 4, 8)]
    links = [(groups[0][3], groups[1][0]), (groups[1][3], groups[2][0]), (groups[2][3], groups[0][0])]
    inside = [pair for group in groups for pair in combinations(group, 2)]
    while True:
        labels = [tuple(sorted(draw.sample(range(CLASSES), 5))) for _ in nodes]
        if all(len(set().union(*(labels[i] for i in group))) == CLASSES for group in groups):
            return labels, of_edges(12, [*inside, *links])


def with_edges_of(rule: ClusterRule, labels: Sequence[tuple[int, ...]], topology: Topology) -> Topology:
    """Return the graph with the edges added that the rule's clusters lack."""
    while lacking := lacking_edges(clusters_by(rule, labels, topology, CLASSES), topology.edges):
        topology = of_edges(topology.nodes, [*topology.edges, *lacking])
    return topology


def train(
    rule: ClusterRule, labels: Sequence[tuple[int, ...]], topology: Topology, seed: int
) -> list[Mapping[str, Any]]:
    """Run Algorithm 3 on the digits and return the records of its rounds."""
    records: list[Mapping[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", RatemeshWarning)
        edges = Path(folder) / "edges.txt"
        edges.write_text("".join(f"{i} {j}\n" for i, j in topology.edges))
        table = {
            "seed": seed,
            "rounds": 15,
            "d": 32,
            "output": {"evaluate_every": 1},
            "data": "digits",
            "graph": {"name": "edge_file", "path": str(edges), "nodes": topology.nodes},
            "partition": {"name": "labels", "labels": labels},
            "encoders": [{"name": "mlp", "hidden": [64]}],
            "local": {"epochs": 2, "batch_size": 50, "schedule": "constant"},
            "method": {"name": "alg3", "clustering": rule, "rho": 0.5, "gamma": 5.0, "coupling": {"start": 3}},
            "engine": {"workers": 1},
        }
        run(make_config(table, ["method.warm_start.epochs=0"]), Path(folder) / "run", progress=records.append)
    return records


def long_links(rule: ClusterRule, instances: int) -> str:
    """Return a line of the second table: what a rule costs, the mean over instances; of rounds, the median."""
    found: list[tuple[float, ...]] = []
    for seed in range(instances):
        labels, topology = places(seed)
        joined = with_edges_of(rule, labels, topology)
        clusters, distances = clusters_by(rule, labels, joined, CLASSES), topology.distances()
        records = train(rule, labels, joined, seed)
        judged = [record["evaluation"] for record in records]
        there = next((t for t, point in enumerate(judged, 1) if point["acc_energy"] >= GOAL), math.inf)
        hops = sum(hops_inside(cluster, distances) for cluster in clusters)
        laid = len(joined.edges) - len(topology.edges)
        sizes = (len(clusters), replicas(clusters, topology.nodes), critical_path(clusters))
        reached = (100 * judged[-1]["acc_energy"], 100 * judged[-1]["acc_label_aware"])
        found.append((there, *sizes, hops, laid, records[-1]["bytes"] / 1000, *reached))
    rounds, *others = zip(*found, strict=True)
    cells = [f"{statistics.mean(values):.1f}" for values in others]
    return f"| {rule} | " + " | ".join([*cells, f"{statistics.median(rounds):g}"]) + " |"


def main() -> None:
    """Measure, print, and write the table if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=20, help="random instances a line")
    parser.add_argument("--long-links", action="store_true", help="run Algorithm 3 by every rule instead")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    arguments = parser.parse_args()
    if arguments.long_links:
        name, heading = "long links", LONG_LINKS
        rows = (long_links(rule, arguments.instances) for rule in get_args(ClusterRule))
    else:
        name, heading = "clusters", RANDOM
        rows = (row(agents, held, arguments.instances) for agents, held in SIZES)
    lines = [heading, "|---" * (heading.count("|") - 1) + "|"]
    for line in rows:
        lines.append(line)
        print(line, flush=True)
    if arguments.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(f"<!-- {name} -->")
        after = rest.partition(f"<!-- /{name} -->")[2]
        table = "\n".join(lines)
        PAGE.write_text(f"{before}<!-- {name} -->\n{table}\n<!-- /{name} -->{after}", encoding="utf-8")


if __name__ == "__main__":
    main()

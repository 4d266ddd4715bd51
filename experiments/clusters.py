"""Algorithm 2 beside the optimum, on random labels and graphs.

    python experiments/clusters.py --instances 20 --write

--write puts the table into docs/clusters.md between its markers.
"""

import argparse
import random
import statistics
import time
from pathlib import Path

from ratemesh.graph.clusters import Cluster, cover_cost, label_cover_clusters
from ratemesh.graph.optimal_clusters import optimal_label_cover
from ratemesh.graph.topology import ErdosRenyi, Topology

PAGE = Path(__file__).parents[1] / "docs" / "clusters.md"
BEGIN, END = "<!-- clusters -->", "<!-- /clusters -->"
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


def main() -> None:
    """Measure, print, and write the table if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=20, help="random instances a line")
    parser.add_argument("--write", action="store_true", help=f"put the table into {PAGE.name}")
    arguments = parser.parse_args()
    heading = "| agents × labels | Algorithm 2 | optimal | optimal, as many clusters | needless replica | longest |"
    lines = [heading, "|---|---|---|---|---|---|"]
    for agents, held in SIZES:
        lines.append(row(agents, held, arguments.instances))
        print(lines[-1], flush=True)
    if arguments.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        table = "\n".join(lines)
        PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()

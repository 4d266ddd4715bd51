"""What the rule of clusters costs Algorithm 3 where nodes are far apart: hops, bytes, and rounds to agreement.

    python experiments/clustering.py --draws 20 --seeds 2 --out runs/clustering --write

Eight nodes stand in a ring and hold five of the ten digits each, drawn at random. Members of a cluster need a link;
those that the ring lacks are long ones, relayed by the nodes between. Bytes are counted as sent, and once for every
edge of the ring that they cross. What clusters cost is averaged over many draws of labels; what they come to is
trained for some of them. Runs are kept under --out and not repeated.
"""

import argparse
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import cast, get_args

from results import write_table
from rich.console import Console

from ratemesh.experiment.config import Config, load_config
from ratemesh.experiment.experiment import resume, run
from ratemesh.experiment.plan import Plan
from ratemesh.experiment.records import RunFolder
from ratemesh.graph.clusters import critical_path, hops_inside, lacking_edges, replicas
from ratemesh.graph.optimal_clusters import ClusterRule, clusters_by
from ratemesh.graph.topology import Topology, of_edges
from ratemesh.messages.statistics import message_bytes
from ratemesh.methods.alg3 import Alg3, ClusterPlan

HERE = Path(__file__).parent
NODES, CLASSES, HELD = 8, 10, 5
RING = of_edges(NODES, [(i, (i + 1) % NODES) for i in range(NODES)])
DISAGREEMENT = 0.4
COST = {
    "clusters": "clusters",
    "replicas": "replicas",
    "turns": "turns a round",
    "hops": "hops inside",
    "links": "long links",
    "sent": "kB sent a round",
    "relayed": "kB over edges a round",
}
TRAINED = {
    "to_agreement": f"rounds to disagreement {DISAGREEMENT:g}",
    "sent_until": "MB sent until then",
    "relayed_until": "MB over edges until then",
    "disagreement": "disagreement at the end",
    "acc_label_aware": "label-aware accuracy at the end, %",
}


def draw_labels(seed: int) -> list[list[int]]:
    """Return random labels of all nodes that cover all classes."""
    draw = random.Random(seed)
    while True:
        labels = [sorted(draw.sample(range(CLASSES), HELD)) for _ in range(NODES)]
        if len(set().union(*labels)) == CLASSES:
            return labels


def linked(rule: ClusterRule, labels: list[list[int]]) -> Topology:
    """Return the ring with the long links that the rule's clusters need.

    Links bring nodes nearer, so that a rule may find other clusters on the ring with links: it is asked again.
    """
    graph = RING
    while lacking := lacking_edges(clusters_by(rule, labels, graph, CLASSES), graph.edges):
        graph = of_edges(NODES, [*RING.edges, *lacking])
    return graph


def settings(rule: ClusterRule, seed: int, edges: Path) -> Config:
    """Return the experiment, on a graph whose edges are in a file."""
    labels = draw_labels(seed)
    edges.write_text("".join(f"{i} {j}\n" for i, j in linked(rule, labels).edges))
    return load_config(
        HERE / "digits.toml",
        [
            f"seed={seed}",
            "rounds=16",
            "d=64",
            f'graph={{name="edge_file", nodes={NODES}, path="{edges}"}}',
            f'partition={{name="labels", labels={labels}}}',
            'encoders=["mlp"]',
            f'method={{name="alg3", clustering="{rule}", rho=0.5, gamma=5.0, coupling={{start=8}}}}',
            "method.warm_start.epochs=0",
            "output.evaluate_every=0",
        ],
    )


def cost(config: Config) -> dict[str, float]:
    """Return what the clusters cost: counted before anything is trained."""
    plan, distances = Plan(config), RING.distances()
    spec, labels, clusters = cast("Alg3", config.method), plan.labels(), plan.clusters()
    found = {
        "clusters": len(clusters),
        "replicas": replicas(clusters, NODES),
        "turns": critical_path(clusters),
        "hops": sum(hops_inside(cluster, distances) for cluster in clusters),
        "links": len(plan.topology.edges) - len(RING.edges),
        "sent": 0.0,
        "relayed": 0.0,
    }
    for i in range(NODES):
        mine = ClusterPlan(i, plan.topology.neighbours(i), labels, clusters)
        sizes = CLASSES, config.d
        told = spec.stats_bytes(len(labels[i]), *sizes)
        turn = message_bytes(spec.codec, len(labels[i]), *sizes, means=False, frame=False)
        messages = [(j, told) for j in mine.peers] + [(j, turn) for s in mine.mine for j in mine.after(s)]
        found["sent"] += sum(size for _, size in messages) / 1000
        found["relayed"] += sum(size * distances[i][j] for j, size in messages) / 1000
    return found


def train(rule: ClusterRule, seed: int, out: Path) -> dict[str, float]:
    """Run a rule with a seed, or read it if it is there; rounds and bytes are infinite if the nodes do not agree."""
    folder, config = out / f"{rule}-{seed}", settings(rule, seed, out / f"{rule}-{seed}.edges")
    metrics = resume(folder).metrics if (folder / "config.toml").exists() else run(config, folder).metrics
    agreed = (r["round"] for r in RunFolder(folder).records() if r["disagreement"] <= DISAGREEMENT)
    rounds, spent = float(next(agreed, math.inf)), cost(config)
    return {
        "to_agreement": rounds,
        "sent_until": rounds * spent["sent"] / 1000,
        "relayed_until": rounds * spent["relayed"] / 1000,
        "disagreement": metrics["disagreement"],
        "acc_label_aware": 100 * metrics["acc_label_aware"],
    }


def line(key: str, words: str, found: Mapping[ClusterRule, Sequence[Mapping[str, float]]]) -> str:
    """Return a line of the table: the means of a number over draws, rule by rule."""
    digits = {"sent": ",.0f", "relayed": ",.0f", "disagreement": ".2f"}.get(key, ".1f")
    means = [fmean(one[key] for one in of_rule) for of_rule in found.values()]
    return f"| {words} | " + " | ".join(f"{mean:{digits}}" if math.isfinite(mean) else "–" for mean in means) + " |"


def main() -> None:
    """Count and train by all rules, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=20, help="draws of labels whose clusters are counted")
    parser.add_argument("--seeds", type=int, nargs="*", default=[2], help="draws that are trained")
    parser.add_argument("--out", type=Path, default=Path("runs/clustering"))
    parser.add_argument("--write", action="store_true", help="put the table into experiments/RESULTS.md")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    rules: tuple[ClusterRule, ...] = get_args(ClusterRule)
    scratch = options.out / "counted.edges"
    counted = {rule: [cost(settings(rule, seed, scratch)) for seed in range(options.draws)] for rule in rules}
    trained = {rule: [train(rule, seed, options.out) for seed in options.seeds] for rule in rules}
    lines = ["| | " + " | ".join(rules) + " |", "|---" + "|--:" * len(rules) + "|"]
    lines += [line(key, words, counted) for key, words in COST.items() if options.draws]
    lines += [line(key, words, trained) for key, words in TRAINED.items() if options.seeds]
    Console().print("\n".join(lines), markup=False, soft_wrap=True)
    if options.write:
        write_table("clustering", lines)


if __name__ == "__main__":
    main()

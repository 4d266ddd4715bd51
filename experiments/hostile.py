"""What peers that send well-formed lies do to the honest ones, and what a robust fold is worth.

    python experiments/hostile.py --out runs/hostile --write

The first peers of the graph train as all do, but tell their neighbours other statistics: those of the next class
("swapped"), or their own, turned by an orthogonal matrix drawn anew every round ("turned"). Both pass every check of a
message. Only the honest nodes are judged. Runs are kept under --out and not repeated.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from results import write_table
from rich.console import Console
from safetensors.torch import load_file

from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceJudge
from ratemesh.experiment.config import load_config
from ratemesh.experiment.experiment import resume, run
from ratemesh.methods.alg1 import Alg1, Alg1Program
from ratemesh.metrics.geometry import relative_distance
from ratemesh.seeds import generator
from ratemesh.training.coupled import Edges
from ratemesh.training.protocol import Exchange, Node

HERE = Path(__file__).parent
FOLDS: dict[str, list[object]] = {"off": [], "median": ["median"], "trimmed, 2 left out": ["trimmed", 2]}


class Hostile(Alg1):
    """Algorithm 1 in which the nodes 1 to `liars` lie; node 0 gives the frame and is honest."""

    liars: int = Field(0, ge=0)
    lie: Literal["swapped", "turned"] = "swapped"

    def program(self, node: Node) -> Alg1Program:
        """Return an honest or a lying program."""
        return Liar(self, node) if 1 <= node.index <= self.liars else Alg1Program(self, node)


class Liar(Alg1Program):
    """Trains like all others, and tells something else."""

    def __init__(self, spec: Hostile, node: Node) -> None:
        super().__init__(spec, node)
        self.edges = LyingEdges(spec, self)


class LyingEdges(Edges):
    """Sends other statistics than the node has, and keeps the true ones."""

    def __init__(self, spec: Hostile, program: Alg1Program) -> None:
        super().__init__(spec, program.gauge, program.node.index, program.stats)
        self.lie, self.program = spec.lie, program

    def exchange(self, stats: ClassStats, peers: Sequence[int]) -> Exchange:
        """Return an exchange of statistics that the node does not have."""
        exchange = super().exchange(self._made_up(stats), peers)
        self.told = stats
        return exchange

    def _made_up(self, stats: ClassStats) -> ClassStats:
        if self.lie == "swapped":
            return ClassStats(stats.V.roll(1, 0), stats.mu.roll(1, 0), stats.m.roll(1, 0))
        node = self.program.node
        draw = generator(node.seed, "lie", node.index, self.program.sample_passes)
        Q = torch.linalg.qr(torch.randn(stats.d, stats.d, generator=draw))[0]
        return stats.rotated(Q)


def judge(folder: Path, liars: int) -> tuple[float, float]:
    """Return averaged accuracy and mean disagreement of the honest nodes, from the features that the run kept."""
    kept = load_file(folder / "features.safetensors")
    honest = [i for i in range(len(kept["Z_test"])) if not 1 <= i <= liars]
    Z, y, node = kept["Z_train"], kept["y_train"], kept["node_train"]
    K = int(y.max()) + 1
    stats = [ClassStats.of(Z[node == i], y[node == i], K) for i in honest]
    accuracy = SubspaceJudge("average").fit_stats(ClassStats.sum(stats)).score(kept["Z_test"][honest], kept["y_test"])
    pairs = [relative_distance(a, b) for i, a in enumerate(stats) for b in stats[:i]]
    return accuracy, sum(pairs) / len(pairs)


def settings(lie: str, liars: int, fold: list[object]) -> list[str]:
    """Return the changes of one row."""
    changes = ["rounds=25", "method.name=hostile:Hostile", f"method.lie={lie}", f"method.liars={liars}"]
    if fold:
        changes.append(f"method.robust.fold={fold[0]}")
        changes += [f"method.robust.drop={drop}" for drop in fold[1:]]
    return changes


def main() -> None:
    """Run all rows and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/hostile"))
    parser.add_argument("--write", action="store_true", help="put the table into experiments/RESULTS.md")
    arguments = parser.parse_args()
    lines = ["| fold | nobody lies | 1 swapped | 2 swapped | 1 turned | 2 turned |", "|---|---|---|---|---|---|"]
    for words, fold in FOLDS.items():
        cells = []
        for lie, liars in (("swapped", 0), ("swapped", 1), ("swapped", 2), ("turned", 1), ("turned", 2)):
            folder = arguments.out / f"{'-'.join(map(str, fold)) or 'off'}-{liars}-{lie}"
            if (folder / "config.toml").is_file():
                resume(folder)
            else:
                run(load_config(HERE / "digits.toml", settings(lie, liars, fold)), folder)
            accuracy, apart = judge(folder, liars)
            cells.append(f"{100 * accuracy:.1f} %, {apart:.2f}")
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    Console().print("\n".join(lines), markup=False)
    if arguments.write:
        write_table("hostile", lines)


if __name__ == "__main__":
    main()

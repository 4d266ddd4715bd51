"""What sketch moments need: samples of a class that follow one law at all sites. What happens where they do not.

    python experiments/law.py --seeds 3

Four nodes of MNIST by pairs (experiments/language.py), trained apart and turned once by V, μ and C. At every second
node all images, test images too, are changed. Across is 1-NN by the ten digits, which training never saw; the changed
nodes' own accuracy tells what the change itself costs.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from itertools import permutations
from statistics import fmean

import torch
from language import settings
from results import write_table
from torch import Tensor

from ratemesh.core.gauge import align
from ratemesh.core.subspace import accuracy
from ratemesh.data import pixels
from ratemesh.experiment.config import make_config
from ratemesh.experiment.plan import ExperimentSite, Plan
from ratemesh.metrics.language import gallery_and_queries
from ratemesh.training.local import encode
from ratemesh.training.protocol import Node

Change = Callable[[Tensor], Tensor]


def turned(degrees: float) -> Change:
    """Return what turns images (m, C, H, W) by an angle."""

    def change(X: Tensor) -> Tensor:
        angle, nothing = torch.full((len(X),), degrees), torch.zeros(len(X))
        back = pixels.affine_map(angle, nothing + 1, nothing, nothing, nothing)
        return pixels.warp(pixels.as_float(X), back, "zeros")

    return change


CHANGES: dict[str, Change] = {
    "none": pixels.as_float,
    "half as bright": lambda X: pixels.as_float(X) / 2,
    "turned by 20°": turned(20.0),
    "turned by 90°": turned(90.0),
    "inverted": lambda X: 1 - pixels.as_float(X),
}


class Changed(Plan):
    """The plan with every second node's images changed."""

    change: Change

    @cached_property
    def made(self) -> list[ExperimentSite]:
        """Sites that were made, in order."""
        return []

    def site(self, index: int) -> ExperimentSite:
        """Make a site, and remember it."""
        self.made.append(super().site(index))
        return self.made[-1]

    def node(self, index: int) -> Node:
        """Return what a node is given."""
        node = super().node(index)
        return replace(node, X=self.images(index, node.X))

    def images(self, index: int, X: Tensor) -> Tensor:
        """Return images as node `index` sees them."""
        return self.change(X) if index % 2 else pixels.as_float(X)


def judged(change: Change, seed: int) -> list[float]:
    """Return fine 1-NN: own of unchanged nodes, own of changed ones, across between the two kinds."""
    table = {**settings("mnist-pairs", "independent"), "seed": seed, "engine": {"name": "inprocess", "workers": 1}}
    plan = Changed(make_config(table))
    plan.change = change
    nodes = plan.topology.nodes
    with plan.config.engine.open(plan, nodes) as engine:
        for t in range(1, plan.config.rounds + 1):
            engine.play(t)
    fine = plan.data.fine_test
    assert fine is not None
    gallery, queries = gallery_and_queries(fine)
    Z = [encode(site.program.encoder, plan.images(site.index, plan.data.X_test)) for site in plan.made]
    stats = [site.program.stats for site in plan.made]
    own = [accuracy(fine[gallery][(z[queries] @ z[gallery].T).argmax(1)], fine[queries]) for z in Z]
    across = []
    for i, j in permutations(range(nodes), 2):
        if i % 2 != j % 2:
            Q = align(stats[i], stats[j])
            nearest = (Z[i][queries] @ Q.T @ Z[j][gallery].T).argmax(1)
            across.append(accuracy(fine[gallery][nearest], fine[queries]))
    return [fmean(own[::2]), fmean(own[1::2]), fmean(across)]


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    given = options.parse_args()
    torch.set_num_threads(1)
    lines = ["| images of every second node | own, unchanged | own, changed | across |", "|---|--:|--:|--:|"]
    for name, change in CHANGES.items():
        found = [judged(change, seed) for seed in range(given.seeds)]
        cells = [f"{100 * fmean(v):.1f} ± {50 * (max(v) - min(v)):.1f}" for v in zip(*found, strict=True)]
        lines.append("| " + " | ".join([name, *cells]) + " |")
        print(lines[-1], flush=True)
    if given.write:
        write_table("law", lines)

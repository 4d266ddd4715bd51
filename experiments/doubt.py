"""What a node's doubt about images of classes it never saw is worth in the fusion, measured on finished runs.

    python experiments/doubt.py runs/mnist-4x5 runs/mnist-5x4

All rules use the same residuals r_ik to the pooled subspaces, and o_i = min_k r_ik over the classes that node i holds.
p_i is conformal: the part of node i's own training samples whose o is at least as large. Features come from the run
folder, so accuracies are of the samples kept there.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceJudge
from ratemesh.metrics.accuracies import holders


class View(NamedTuple):
    """What a rule may look at: r (N, m, K), held (N, 1, K), own residuals o (N, m, 1), p-values (N, m, 1)."""

    r: Tensor
    held: Tensor
    own: Tensor
    p: Tensor

    def mean(self, weights: Tensor) -> Tensor:
        """Return residuals averaged over nodes with weights (N, m or 1, K)."""
        return (self.r * weights).sum(0) / weights.sum(0).clamp(min=1e-12)

    def recognised(self, c: float) -> Tensor:
        """Return how far below c the nodes that lack a class see the sample in their own classes, on average."""
        lacking = 1 - self.held
        return ((c - self.own).clamp(min=0) * lacking).sum(0) / lacking.sum(0).clamp(min=1)


RULES: dict[str, Callable[[View], Tensor]] = {
    "all nodes, residuals added (energy)": lambda v: v.r.sum(0),
    "holders, mean (label-aware)": lambda v: v.mean(v.held),
    "holders, smallest": lambda v: v.r.masked_fill(v.held == 0, torch.inf).min(0).values,
    "holders, weighted by p + 0.1": lambda v: v.mean(v.held * (v.p + 0.1)),
    "holders, weighted by p + 0.01": lambda v: v.mean(v.held * (v.p + 0.01)),
    "label-aware, others speak against it below 0.1": lambda v: v.mean(v.held) + v.recognised(0.1),
    "label-aware, others speak against it below 0.3": lambda v: v.mean(v.held) + v.recognised(0.3),
}


def accuracies(folder: Path) -> list[float]:
    """Return the accuracy of every rule on a run's kept features."""
    kept = load_file(folder / "features.safetensors")
    Z, y, node = kept["Z_train"], kept["y_train"], kept["node_train"]
    K = int(y.max()) + 1
    stats = [ClassStats.of(Z[node == i], y[node == i], K) for i in range(len(kept["Z_test"]))]
    held = holders(stats)
    judge = SubspaceJudge().fit_stats(ClassStats.sum(stats))
    r = torch.stack([judge.residuals(features) for features in kept["Z_test"]])
    own = r.masked_fill(~held[:, None], torch.inf).min(2).values
    known = [judge.residuals(Z[node == i]).masked_fill(~held[i], torch.inf).min(1).values for i in range(len(stats))]
    p = torch.stack([(k.sort().values[:, None] >= o).double().mean(0) for k, o in zip(known, own, strict=True)])
    view = View(r.double(), held[:, None].double(), own[..., None].double(), p[..., None])
    return [float((rule(view).argmin(1) == kept["y_test"]).double().mean()) for rule in RULES.values()]


def main() -> None:
    """Print one column a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    folders = parser.parse_args().runs
    columns = [accuracies(folder) for folder in folders]
    lines = ["| | " + " | ".join(folder.name for folder in folders) + " |", "|---" + "|--:" * len(folders) + "|"]
    for name, row in zip(RULES, zip(*columns, strict=True), strict=True):
        lines.append(f"| {name} | " + " | ".join(f"{100 * value:.2f} %" for value in row) + " |")
    Console().print("\n".join(lines), markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()

"""How to put the nodes' answers together, measured on a finished run: pooled statistics, or every node's own.

    python experiments/fusion.py runs/cifar10

Features of held-out samples come from the run folder, so accuracies are of the samples kept there; statistics come from
the last checkpoint.
"""

import argparse
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor

from ratemesh.core.gaussian import OwnGaussians
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import Fusion, NearestSubspace
from ratemesh.experiment.records import RunFolder


def load(folder: RunFolder) -> tuple[list[ClassStats], Tensor, Tensor]:
    """Return every node's statistics, the features of held-out samples (N, m, d), and their labels (m,)."""
    kept = load_file(folder.features)
    files = sorted(folder.states(folder.load_config().rounds).glob("node-*.safetensors"))
    states = [load_file(file) for file in files]
    stats = [ClassStats(state["V"].double(), state["mu"].double(), state["m"].double()) for state in states]
    return stats, kept["Z_test"].double(), kept["y_test"]


def rules(stats: list[ClassStats], Z: Tensor, y: Tensor) -> dict[str, float]:
    """Return the accuracy of every way to judge."""
    pooled = ClassStats.sum(stats)
    K, d = pooled.mu.shape
    ideal = max(1, d // K)  # directions that K orthogonal classes have room for
    own = torch.stack([NearestSubspace().fit_stats(s).residuals(z) for s, z in zip(stats, Z, strict=True)]).sum(0)

    def judged(fusion: Fusion, rank: int | None = None) -> float:
        return NearestSubspace(fusion, rank=rank).fit_stats(pooled).score(Z, y)

    return {
        "features averaged, pooled subspaces (paper)": judged("average"),
        "residuals added, pooled subspaces (fused)": judged("energy"),
        f"features averaged, pooled subspaces of d/K = {ideal} directions": judged("average", ideal),
        f"residuals added, pooled subspaces of d/K = {ideal} directions": judged("energy", ideal),
        "features averaged, pooled Gaussians": OwnGaussians().fit([pooled]).score(Z.mean(0, keepdim=True), y),
        "residuals added, own subspaces": float((own.argmin(1) == y).double().mean()),
        "log-likelihoods added, own Gaussians": OwnGaussians().fit(stats).score(Z, y),
    }


def main() -> None:
    """Print the rules, then what single nodes and single architectures come to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    folder = RunFolder.existing(parser.parse_args().run)
    stats, Z, y = load(folder)
    lines = [
        "| | accuracy |",
        "|---|--:|",
        *(f"| {name} | {100 * a:.1f} % |" for name, a in rules(stats, Z, y).items()),
    ]
    encoders = folder.load_config().encoders
    for kind, spec in enumerate(encoders):
        nodes = [i for i in range(len(stats)) if i % len(encoders) == kind]
        alone = [f"{100 * NearestSubspace().fit_stats(stats[i]).score(Z[i], y):.0f}" for i in nodes]
        together = NearestSubspace("average").fit_stats(ClassStats.sum([stats[i] for i in nodes])).score(Z[nodes], y)
        lines.append(
            f"| {spec.name}: own subspaces {', '.join(alone)} %; averaged over these nodes | {100 * together:.1f} % |"
        )
    Console().print("\n".join(lines), markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()

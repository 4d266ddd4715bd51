"""How to put the nodes' answers together, on finished runs side by side: pooled statistics, or every node's own.

    python experiments/fusion.py runs/cifar10 runs/cifar10-independent

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
from ratemesh.core.subspace import Fusion, SubspaceJudge
from ratemesh.experiment.config import EvaluationSpec
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
    ideal = EvaluationSpec(rank="d/K").rule(d, K).rank

    def judged(fusion: Fusion, rank: int | None = None) -> float:
        return SubspaceJudge(fusion, rank=rank).fit_stats(pooled).score(Z, y)

    def by_own(rank: int | None = None) -> float:
        one = [SubspaceJudge(rank=rank).fit_stats(s).residuals(z) for s, z in zip(stats, Z, strict=True)]
        return float((torch.stack(one).sum(0).argmin(1) == y).double().mean())

    return {
        "features averaged, pooled subspaces (paper)": judged("average"),
        "residuals added, pooled subspaces (fused)": judged("energy"),
        f"features averaged, pooled subspaces of d/K = {ideal} directions": judged("average", ideal),
        f"residuals added, pooled subspaces of d/K = {ideal} directions": judged("energy", ideal),
        "features averaged, pooled Gaussians": OwnGaussians().fit([pooled]).score(Z.mean(0, keepdim=True), y),
        "residuals added, own subspaces": by_own(),
        f"residuals added, own subspaces of d/K = {ideal} directions": by_own(ideal),
        "log-likelihoods added, own Gaussians": OwnGaussians().fit(stats).score(Z, y),
    }


def groups(folder: RunFolder, stats: list[ClassStats], Z: Tensor, y: Tensor) -> dict[str, str]:
    """Return, for every architecture, how its nodes do by themselves, percent."""
    encoders = folder.load_config().encoders
    alone = [f"{100 * SubspaceJudge().fit_stats(s).score(z, y):.0f}" for s, z in zip(stats, Z, strict=True)]
    return {
        f"{spec.name}: every node by its own subspaces": ", ".join(alone[kind :: len(encoders)]) + " %"
        for kind, spec in enumerate(encoders)
    }


def main() -> None:
    """Print the rules, then what single nodes come to: one column a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    folders = [RunFolder.existing(run) for run in parser.parse_args().runs]
    columns = []
    for folder in folders:
        loaded = load(folder)
        percent = {rule: f"{100 * accuracy:.1f} %" for rule, accuracy in rules(*loaded).items()}
        columns.append(percent | groups(folder, *loaded))
    lines = [f"| | {' | '.join(folder.path.name for folder in folders)} |", "|---|" + "--:|" * len(folders)]
    lines += [f"| {rule} | {' | '.join(column.get(rule, '–') for column in columns)} |" for rule in columns[0]]
    Console().print("\n".join(lines), markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()

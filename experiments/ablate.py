"""Which settings pay: change one at a time, on one of the experiments, over several seeds.

    python experiments/ablate.py digits --seeds 0 1 2 --out runs/ablation --write

Runs are kept under --out and not repeated; an interrupted ablation goes on where it stopped. --write puts the table
into experiments/RESULTS.md between its markers.
"""

import argparse
import math
import statistics
from pathlib import Path
from typing import NamedTuple

from results import write_table
from rich.console import Console

from ratemesh.experiment.config import load_config
from ratemesh.experiment.experiment import resume, run
from ratemesh.metrics.table import METRICS

HERE = Path(__file__).parent


class Study(NamedTuple):
    """An experiment, what is changed of it for all rows (to be short), and the rows: one change each."""

    config: str
    base: list[str]
    variants: dict[str, list[str]]


DIGITS = {
    "default": [],
    "coupling constant (from round 1)": ["method.coupling.schedule=constant"],
    "coupling ramped over 16 rounds": ["method.coupling.schedule=ramp", "method.coupling.ramp=16"],
    "γ = 1, ρ = 0.1": ["method.gamma=1", "method.rho=0.1"],
    "γ = 10, ρ = 1": ["method.gamma=10", "method.rho=1"],
    "objective_scale = paper": ["method.objective_scale=paper"],
    "in-batch statistics (β = 1)": ["method.running.beta=1"],
    "H refreshed every 3 batches": ["method.running.refresh=3"],
    "gauge off": ["method.gauge.enabled=false"],
    "gauge without class means": ["method.gauge.means=0"],
    "cross-entropy warm start, 10 epochs": ["method.warm_start.epochs=10"],
    "everything off (paper-stable)": ["preset=paper-stable", "local.batch_size=1000"],
}
MNIST = {
    "default": [],
    "no warm start (2 rounds more)": ["method.warm_start.epochs=0", "rounds=10"],
    "no augmentation": ["local.augment={}"],
    "γ = 5, ρ = 0.5": ["method.gamma=5", "method.rho=0.5"],
    "no coupling (gauge only)": ["method.gamma=0", "method.rho=0"],
    "gauge off": ["method.gauge.enabled=false"],
    "in-batch statistics (β = 1)": ["method.running.beta=1"],
    "batches of 250": ["local.batch_size=250"],
    "H refreshed every 4 batches": ["method.running.refresh=4"],
    "learning rate constant": ["local.schedule=constant"],
    "Adam": ["local.optimizer=adam", "local.lr=1e-3"],
    "no cross-entropy beside −ΔR": ["method.cross_entropy=0"],
}
CIFAR10 = {
    "default": [],
    "no cross-entropy beside −ΔR": ["method.cross_entropy=0"],
    "cross-entropy first, 3 of 8 epochs": ["method.cross_entropy=0", "method.warm_start.epochs=3", "rounds=5"],
    "in-batch statistics (β = 1)": ["method.running.beta=1"],
    "coupling not balanced": ["method.coupling.balance=0"],
    "γ = 5, ρ = 0.5": ["method.gamma=5", "method.rho=0.5"],
    "γ = 20, ρ = 2": ["method.gamma=20", "method.rho=2"],
    "γ = 20, ρ = 2, balance 0.05": ["method.gamma=20", "method.rho=2", "method.coupling.balance=0.05"],
    "no coupling (gauge only)": ["method.gamma=0", "method.rho=0"],
    "Independent": ['graph={name="empty", nodes=5}'],
    "weights averaged too (alg1_weights)": ["method.name=alg1_weights"],
    "D-SGD": ['method={name="dsgd"}'],
}
ADAM = ["local.optimizer=adam", "local.lr=5e-4", "local.batch_size=32"]
"""The best of Adam on CIFAR, in place of the experiments' Muon."""

ALONE = {
    "VGG11": [],
    "VGG11, cross-entropy of weight 10": ["method.cross_entropy=10"],
    "VGG11, cross-entropy of weight 100": ["method.cross_entropy=100"],
    "VGG11, cross-entropy alone, no ΔR": ['method={name="dsgd"}'],
    "VGG11, no cross-entropy beside −ΔR": ["method.cross_entropy=0"],
    "VGG11, Adam": ADAM,
    "VGG11, flips only": ["local.augment={flip=0.5}"],
    "VGG16": ['encoders=[{name="vgg16", width=0.25}]'],
    "VGG16, Adam": ['encoders=[{name="vgg16", width=0.25}]', *ADAM],
    "ResNet18": ['encoders=[{name="resnet18", width=0.125}]'],
    "ResNet18, Adam": ['encoders=[{name="resnet18", width=0.125}]', *ADAM],
}
CIFAR100 = {
    "default": [],
    "Adam": ADAM,
    "coupling not balanced": ["method.coupling.balance=0"],
    "coupling from round 1": ["method.coupling.start=1"],
    "no coupling (gauge only)": ["method.gamma=0", "method.rho=0"],
    "Independent": ['graph={name="empty", nodes=5}'],
    "in-batch statistics (β = 1)": ["method.running.beta=1"],
    "neighbours' statistics as a prior, half": ["method.running.prior=0.5"],
    "batches of 100": ["local.batch_size=100"],
    "batches of 100, balanced": ["local.batch_size=100", "local.balance=true"],
    "256 dimensions, H every 16 batches": ["d=256", "method.running.refresh=16"],
}
FIVE_ALIKE = [
    "graph.nodes=5",
    'encoders=[{name="vgg11", width=0.25}]',
    "rounds=8",
    "method.coupling.start=4",
    "output.evaluate_every=0",
]
"""To be short: five nodes of the network that learns fastest."""

ONE_NODE = ['graph={name="empty", nodes=1}', 'encoders=[{name="vgg11", width=0.25}]', "rounds=8"]
"""A node by itself, with the images that one of ten has."""

STUDIES = {
    "digits": Study("digits.toml", [], DIGITS),
    "mnist": Study("mnist-iid-small.toml", ["rounds=8", "data.train_limit=20000", "output.evaluate_every=0"], MNIST),
    "cifar10": Study("cifar10-iid-small.toml", [*FIVE_ALIKE, "data.train_limit=5000"], CIFAR10),
    "cifar10-alone": Study("cifar10-iid-small.toml", [*ONE_NODE, "data.train_limit=5000"], ALONE),
    "cifar100": Study("cifar100-iid-small.toml", [*FIVE_ALIKE, "data.train_limit=7500"], CIFAR100),
}
COLUMNS = (
    "acc_average",
    "acc_energy",
    "acc_gaussian",
    "acc_node",
    "disagreement",
    "overlap",
    "rank_min",
    "rank_max",
    "reduction",
)


def measure(study: Study, name: str, seed: int, out: Path) -> dict[str, float]:
    """Run one variant with one seed, or read it if it is there."""
    folder = out / f"{list(study.variants).index(name):02d}-{seed}"
    config = load_config(HERE / study.config, [*study.base, *study.variants[name], f"seed={seed}"])
    if (folder / "config.toml").exists():
        return resume(folder).metrics
    return run(config, folder).metrics


def cell(key: str, values: list[float]) -> str:
    """Return the mean over the seeds, ± their standard deviation where there are several."""
    if not all(isinstance(v, float) and math.isfinite(v) for v in values):
        return "–"
    metric = METRICS[key]
    factor, digits = (100, 2) if metric.unit == "percent" else (1, metric.digits)
    spread = f" ± {factor * statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{factor * statistics.mean(values):.{digits}f}{spread}"


def main() -> None:
    """Measure all variants of a study and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", nargs="+", help="only these rows, by name")
    parser.add_argument("--out", type=Path, default=Path("runs/ablation"))
    parser.add_argument("--write", action="store_true", help="put the table into experiments/RESULTS.md")
    options = parser.parse_args()
    study = STUDIES[options.study]
    lines = ["| | " + " | ".join(METRICS[key].short for key in COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name in options.rows or study.variants:
        results = [measure(study, name, seed, options.out / options.study) for seed in options.seeds]
        lines.append(
            f"| {name} | " + " | ".join(cell(key, [r.get(key, math.nan) for r in results]) for key in COLUMNS) + " |"
        )
        Console().print(lines[-1], markup=False, soft_wrap=True)
    if options.write:
        write_table(f"ablation {options.study}", lines)


if __name__ == "__main__":
    main()

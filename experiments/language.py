"""What nodes understand of each other: own and cross, by class and by a finer labelling that training never saw.

    python experiments/language.py digits-pairs --out runs/language --seeds 3

Every row is a run of the product; what is there already is not run again. Nothing is chosen here: settings were chosen
on validation samples (RESULTS.md), test samples are opened once a row. The table goes into RESULTS.md with --write.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from results import write_table

from ratemesh.experiment.config import make_config, merged
from ratemesh.experiment.experiment import run
from ratemesh.experiment.storage import read_json

TWO = [{"name": "mlp"}, {"name": "conv4", "width": 0.25}]
FOUR = [
    {"name": "vgg11", "width": 0.25},
    {"name": "vgg16", "width": 0.25},
    {"name": "resnet18", "width": 0.125},
    {"name": "resnet34", "width": 0.125},
]
HYBRID = {"name": "alg1", "cross_entropy": 10}
NATURAL = {"optimizer": "muon", "batch_size": 64, "augment": {"shift": 4, "flip": 0.5}}
BRIEF = {"coupling": {"start": 4}, "running": {"refresh": 4}, "warm_start": {"epochs": 0}}

DIGITS: dict[str, Any] = {
    "preset": "plain",
    "rounds": 20,
    "data": {"name": "digits", "validation": 0.1},
    "graph": {"name": "erdos_renyi", "nodes": 10, "p": 0.5},
    "encoders": TWO,
    "local": {"optimizer": "muon", "epochs": 5, "batch_size": 50},
    "method": HYBRID,
    "evaluation": {"rank": "d/K"},
}
MNIST: dict[str, Any] = {
    "preset": "plain",
    "rounds": 6,
    "data": {"name": "mnist", "train_limit": 12_000},
    "graph": {"name": "complete", "nodes": 4},
    "encoders": TWO,
    "local": {"optimizer": "muon"},
    "method": HYBRID,
    "evaluation": {"rank": "d/K"},
}
CIFAR10: dict[str, Any] = {
    "preset": "plain",
    "rounds": 8,
    "data": {"name": "cifar10", "train_limit": 20_000},
    "graph": {"name": "complete", "nodes": 4},
    "encoders": FOUR,
    "local": NATURAL,
    "method": {**HYBRID, "cross_entropy": 30, **BRIEF},
    "evaluation": {"rank": 0},
}
CIFAR100: dict[str, Any] = {
    **CIFAR10,
    "data": {"name": "cifar100", "coarse": True, "train_limit": 20_000},
    "encoders": FOUR[:1],
    "method": {**HYBRID, **BRIEF},
}
SETS = {
    "digits": DIGITS,
    "digits-pairs": merged(DIGITS, {"data": {"coarse": True}}),
    "mnist": MNIST,
    "mnist-pairs": merged(MNIST, {"data": {"coarse": True}}),
    "cifar10": CIFAR10,
    "cifar100-coarse": CIFAR100,
}

ROWS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "independent": ("Independent", "nothing", {"graph": {"name": "empty"}}),
    "moments": ("ratemesh without sketch", "V, μ", {"method": {"gauge": {"sketch": 0}}}),
    "ratemesh": ("ratemesh", "V, μ, C", {}),
    "pull": ("ratemesh, sketch pull 50", "V, μ, C", {"method": {"sketch_pull": 50}}),
    "fedproto": ("FedProto", "μ", {"method": {"name": "fedproto"}}),
    "fedpcl": ("FedPCL", "μ", {"method": {"name": "fedpcl"}}),
}

COLUMNS = {
    "own": ("acc_own",),
    "cross": ("acc_cross",),
    "worst": ("acc_cross_worst",),
    "1-NN own": ("retrieval_own",),
    "cross ": ("retrieval_cross",),
    "fine own": ("retrieval_own_fine",),
    "fine cross": ("retrieval_cross_fine",),
    "averaged": ("acc_average",),
    "ranks": ("rank_min", "rank_max"),
    "MB sent": ("bytes_total",),
}
SCALES = {"rank_min": 1.0, "rank_max": 1.0, "bytes_total": 1e-6}


def settings(name: str, row: str) -> dict[str, Any]:
    """Return a row's settings on a data set; a method of another name drops what belongs to ours."""
    table = merged(SETS[name], ROWS[row][2])
    if row == "independent":  # the empty graph takes the number of nodes only
        table["graph"] = {"name": "empty", "nodes": SETS[name]["graph"]["nodes"]}
    return table


def trained(name: str, row: str, seed: int, out: Path) -> dict[str, Any]:
    """Return a run's metrics; run it if it is not there."""
    folder = out / name / row / f"seed-{seed}"
    if not (folder / "metrics.json").exists():
        config = make_config({**settings(name, row), "seed": seed, "engine": {"name": "inprocess", "workers": 1}})
        print(f"{name} {row} seed {seed}", flush=True)
        run(config, folder)
    return read_json(folder / "metrics.json")


def cell(runs: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> str:
    """Return the mean over seeds of each number, with half the range behind ± where there are several seeds."""
    words = []
    for key in keys:
        if key not in runs[0]:
            return "–"
        values = [SCALES.get(key, 100.0) * metrics[key] for metrics in runs]
        half = (max(values) - min(values)) / 2
        words.append(f"{fmean(values):.1f}" + (f" ± {half:.1f}" if len(values) > 1 and len(keys) == 1 else ""))
    return "–".join(words)


def table(name: str, rows: Sequence[str], seeds: int, out: Path) -> list[str]:
    """Train what is missing; return the lines of the table."""
    lines = [
        f"`{name}`, {seeds} seed{'s' if seeds > 1 else ''} (mean ± half the range), test samples:",
        "",
        "| " + " | ".join(["row", *(head.strip() for head in COLUMNS), "shared"]) + " |",
        "|---|" + "--:|" * len(COLUMNS) + "---|",
    ]
    for row in rows:
        runs = [trained(name, row, seed, out) for seed in range(seeds)]
        label, shared, _ = ROWS[row]
        lines.append("| " + " | ".join([label, *(cell(runs, keys) for keys in COLUMNS.values()), shared]) + " |")
    return lines


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("set", choices=SETS)
    options.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--out", type=Path, default=Path("runs/language"))
    options.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    given = options.parse_args()
    found = table(given.set, given.rows, given.seeds, given.out)
    print("\n".join(found))
    if given.write:
        write_table(f"language {given.set}", found)

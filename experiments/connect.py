"""Encoders trained apart, connected once by their statistics: what they understand of each other, and the bytes of it.

    ratemesh data get mnist
    python experiments/connect.py --out runs/connect

Four tasks, every node with samples and weights of its own, trained on `graph = "empty"`: digits (ten classes, two
architectures); MNIST by pairs of digits (five classes in training, all ten asked by nearest neighbour); the same with
encoders of d = 64 and 128; MNIST where three sites have never seen a nine and a fourth has. Settings are looked at on
samples held out of the training data (`--part val`); test samples are opened by `--part test`. Trained sites are kept
under --out and not trained again.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ratemesh.data import DATASETS
from ratemesh.experiment.config import make_config
from ratemesh.experiment.experiment import run
from ratemesh.experiment.plan import Plan
from ratemesh.experiment.records import RunFolder
from ratemesh.training.local import encode

HELD_OUT = 2000
"""Most samples for choosing, and most for the test."""

ENCODERS = [{"name": "mlp"}, {"name": "conv4", "width": 0.25}]
MNIST = {"rounds": 4, "local": {"epochs": 1, "optimizer": "muon"}, "encoders": ENCODERS}
DIGITS = {**MNIST, "rounds": 8, "local": {"epochs": 5, "batch_size": 50, "optimizer": "muon"}}
RUNS: dict[str, dict[str, Any]] = {
    "digits": {"data": "digits", "nodes": 4, "each": 280, "settings": DIGITS},
    "coarse": {"data": "mnist", "nodes": 4, "coarse": True, "settings": MNIST},
    "narrow": {"data": "mnist", "nodes": 2, "coarse": True, "d": 64, "settings": {**MNIST, "seed": 1}},
    "nine": {"data": "mnist", "nodes": 3, "classes": 9, "settings": MNIST},
    "ten": {"data": "mnist", "nodes": 1, "settings": {**MNIST, "seed": 1, "encoders": ENCODERS[1:]}},
}


def train(
    out: Path,
    name: str,
    *,
    data: str,
    nodes: int,
    settings: Mapping[str, Any],
    each: int = 2000,
    d: int = 128,
    coarse: bool = False,
    classes: int = 10,
) -> list[Path]:
    """Train nodes that never talk; return a file of features a node, as `ratemesh connect` reads them, and `*_val`."""
    files = [out / f"{name}-{i}.npz" for i in range(nodes)]
    if all(file.is_file() for file in files):
        return files
    found = DATASETS[data](name=data).load(0)
    most = min(HELD_OUT, len(found.y_train) // 5)
    held = {"val": (found.X_train[-most:], found.y_train[-most:]), "test": (found.X_test, found.y_test)}
    X, y = found.X_train[:-most], found.y_train[:-most]
    rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(settings.get("seed", 0)))
    rows = rows[y[rows] < classes][: nodes * each]
    samples, step = out / f"{name}-samples.npz", 2 if coarse else 1
    some = held["val"][1] < classes  # a run asks for held-out samples; these are not looked at here
    np.savez(
        samples,
        x_train=X[rows],
        y_train=y[rows] // step,
        x_test=held["val"][0][some],
        y_test=held["val"][1][some] // step,
    )
    table = {
        **settings,
        "d": d,
        "data": {"name": "npz", "path": str(samples)},
        "graph": {"name": "empty", "nodes": nodes},
        "method": {"cross_entropy": 10.0},
    }
    folder = run(table, out / name).folder
    plan = Plan(make_config(table))
    for i, (file, part) in enumerate(zip(files, plan.parts, strict=True)):
        site = plan.site(i)
        site.load(str(RunFolder(folder).states(plan.config.rounds)))
        parts = {
            "train": (plan.data.X_train[part], plan.data.y_train[part] * step),
            **{key: (A[:HELD_OUT], b[:HELD_OUT]) for key, (A, b) in held.items()},
        }
        arrays = {"x_train": parts["train"][0].numpy()}
        for key, (A, b) in parts.items():
            arrays |= {f"z_{key}": encode(site.program.encoder, A).numpy(), f"y_{key}": (b // step).numpy()}
            arrays |= {f"fine_{key}": b.numpy()} if key != "train" else {}
        np.savez(file, **arrays)
    return files


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/connect"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, task in RUNS.items():
        print(train(arguments.out, name, **task), flush=True)

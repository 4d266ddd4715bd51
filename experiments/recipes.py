"""Which recipe pays: settings are tried on validation samples only, and what was chosen is then tested once.

    python experiments/recipes.py try letters "rounds=24 local.optimizer=muon method.cross_entropy=30" --data tables
    python experiments/recipes.py test letters mnist --data tables --seeds 3 --write

`try` plays a row, overrides "a.b=value" on top of preset "plain", by the product's engine on the set's nodes and judges
it on the samples that were held out of every node's own (`data.validation`); test samples are not looked at. Own, cross
and averaged by three rules: directions that hold 95 % of a class's variance, d/K directions, the nearest class mean;
then the nearest sample, own and cross. `test` compares presets on test samples; --write puts the table into RESULTS.md.
What is there already is not run again. letters, satellite and vowel are NAME.npz in the folder that --data names
(RESULTS.md says where they come from), MNIST and CIFAR-10 as `ratemesh data get` leaves them there.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from results import write_table

from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceRule
from ratemesh.engines.protocol import Site
from ratemesh.experiment.config import Config, make_config
from ratemesh.experiment.experiment import run
from ratemesh.experiment.plan import Plan
from ratemesh.experiment.storage import read_json
from ratemesh.metrics.evaluate import HeldOut, glimpse
from ratemesh.metrics.language import cross, own, recall_pairs

MLPS = [{"name": "mlp", "hidden": hidden} for hidden in ([256, 256], [512], [128, 128, 128], [384, 192], [192, 192])]
TWO = [{"name": "mlp"}, {"name": "conv4", "width": 0.25}]
TABLE = {"graph": {"name": "ring", "nodes": 5}, "encoders": MLPS}
TEN = {"name": "erdos_renyi", "nodes": 10, "p": 0.5}
FOUR = {"name": "complete", "nodes": 4}
VGG = [{"name": "vgg11", "width": 0.25}]

SETS: dict[str, dict[str, Any]] = {
    "letters": {**TABLE, "data": {"name": "npz", "path": "letters.npz", "validation": 0.1}},
    "satellite": {**TABLE, "data": {"name": "npz", "path": "satellite.npz", "validation": 0.15}},
    "vowel": {**TABLE, "data": {"name": "npz", "path": "vowel.npz", "validation": 0.2}},
    "digits": {"data": {"name": "digits", "validation": 0.2}, "graph": TEN, "encoders": TWO},
    "digits-pairs": {"data": {"name": "digits", "coarse": True, "validation": 0.2}, "graph": TEN, "encoders": TWO},
    "mnist": {"data": {"name": "mnist", "train_limit": 6000, "validation": 0.15}, "graph": FOUR, "encoders": TWO},
    "cifar10": {"data": {"name": "cifar10", "train_limit": 6000, "validation": 0.15}, "graph": FOUR, "encoders": VGG},
}
"""Data, nodes and networks, the same for every row of a set."""

TESTED: dict[str, dict[str, Any]] = {
    "plain, the same passes": {"preset": "plain", "rounds": 22},
    "default": {"preset": "default"},
}
"""Presets that are tested; plain has two epochs of warm start."""

COLUMNS = ("val_acc_own", "val_acc_cross", "val_retrieval_cross", "val_acc_average")
ON_TEST = tuple(key.removeprefix("val_") for key in COLUMNS)
HEADS = ("own", "cross", "1-NN cross", "averaged")


def settings(name: str, seed: int, data: Path, over: Mapping[str, Any], words: str = "") -> Config:
    """Return a configuration of a set's nodes with the settings `over`, and overrides separated by blanks."""
    table = {**SETS[name], "seed": seed, "engine": {"name": "inprocess", "workers": 1}, **over}
    if "path" in table["data"]:
        table["data"] = {**table["data"], "path": str(data / table["data"]["path"])}
    elif table["data"]["name"] != "digits":
        table["data"] = {**table["data"], "dir": str(data)}
    return make_config(table, words.split())


def judged(config: Config, every: int) -> list[dict[str, Any]]:
    """Train, and return validation numbers after every so many rounds, and after the last."""
    plan, points = Plan(config), []
    plan.check()
    with config.engine.open(plan, plan.topology.nodes) as engine:
        for t in range(1, config.rounds + 1):
            engine.play(t)
            if t == config.rounds or (every and t % every == 0):
                stats = [ClassStats.from_tensors(answer) for answer in engine.ask(Site.stats)]
                seen = engine.ask(Site.features, "validation")
                held = HeldOut(torch.stack([s["Z"] for s in seen]), seen[0]["y"], seen[0].get("fine"))
                points.append({"round": t, **numbers(stats, held, config.d)})
    return points


def numbers(stats: list[ClassStats], held: HeldOut, d: int) -> dict[str, Any]:
    """Return what settings are chosen by: own, cross and averaged by every rule, and nearest samples, fine too."""
    ideal = max(1, d // stats[0].num_classes)
    rules = {"energy": SubspaceRule(), "d/K": SubspaceRule(rank=ideal), "mean": SubspaceRule(rank=0)}
    found: dict[str, Any] = {}
    for name, rule in rules.items():
        seen = glimpse(stats, {"": held}, rule)
        found[name] = [seen["acc_own"], seen["acc_cross"], seen["acc_average"]]
        found["1-NN"] = [seen["retrieval_own"], seen["retrieval_cross"]]
    if held.fine is not None:
        recall = recall_pairs(held.Z, held.fine)
        found["fine"] = [own(recall), cross(recall) if len(recall) > 1 else math.nan]
    return found


def tried(name: str, words: str, seed: int, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the points of one row with one seed; train if they are not kept yet."""
    config = settings(name, seed, given.data, {"preset": "plain"}, words)
    kept = given.out / name / f"{config.digest()[:16]}-{given.every}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        found = {"settings": words, "seed": seed, "points": judged(config, given.every)}
        kept.write_text(json.dumps(found), encoding="utf-8")
    points: list[dict[str, Any]] = json.loads(kept.read_text(encoding="utf-8"))["points"]
    return points


def in_words(points: Sequence[Mapping[str, Any]]) -> str:
    """Return the means over seeds, in percent."""
    means = {
        key: [100 * fmean(values) for values in zip(*(point[key] for point in points), strict=True)]
        for key in points[0]
        if key != "round"
    }
    return "  ".join(f"{key} " + "/".join(f"{value:.1f}" for value in values) for key, values in means.items())


def tested(name: str, row: str, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Return the metrics of one preset on one set; train if they are not kept yet."""
    folder = given.out / "tested" / name / f"{list(TESTED).index(row)}-{seed}"
    if not (folder / "metrics.json").exists():
        run(settings(name, seed, given.data, TESTED[row]), folder)
    return read_json(folder / "metrics.json")


def table(names: Sequence[str], given: argparse.Namespace) -> list[str]:
    """Return the lines of the table of presets: validation and test, mean over seeds ± half the range."""
    heads = [f"{head}, {part}" for part in ("validation", "test") for head in HEADS]
    lines = [f"| set | preset | {' | '.join(heads)} |", "|---|---|" + "--:|" * len(heads)]
    for name in names:
        for row in TESTED:
            runs = [tested(name, row, seed, given) for seed in range(given.seeds)]
            cells = [cell([100 * metrics[key] for metrics in runs]) for key in COLUMNS + ON_TEST]
            lines.append(f"| {name} | {row} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return lines


def cell(values: Sequence[float]) -> str:
    """Return the mean ± half the range."""
    return f"{fmean(values):.1f} ± {(max(values) - min(values)) / 2:.1f}"


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=("try", "test"))
    options.add_argument("names", nargs="+", help="try: a set, then rows of overrides; test: sets")
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--every", type=int, default=0, help="try: rounds between numbers; 0 only at the end")
    options.add_argument("--data", type=Path, default=Path("data"))
    options.add_argument("--out", type=Path, default=Path("runs/recipes"))
    options.add_argument("--write", action="store_true", help="test: put the table into RESULTS.md")
    given = options.parse_args()
    if given.what == "test":
        found = table(given.names, given)
        if given.write:
            write_table("recipes", found)
    for row in given.names[1:] if given.what == "try" else ():
        runs = [tried(given.names[0], row, seed, given) for seed in range(given.seeds)]
        for points in zip(*runs, strict=True):
            print(f"{given.names[0]}  {row}  [round {points[0]['round']}]  {in_words(points)}", flush=True)

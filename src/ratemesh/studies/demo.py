"""The demonstration: ten sites with few images each, what people would do, and what a mesh adds; one table.

Sites train on pairs of digits, 0/1 to 8/9, and are asked for pairs and, as fine labels, for digits, of which no row is
told. Every row has what validation samples chose for it (experiments/RESULTS.md, "Recipes"): optimiser, weights,
augmentation, rounds; networks see every image equally often. Test images are opened here only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ratemesh.data.augment import AugmentSpec
from ratemesh.experiment.config import make_config, merged
from ratemesh.experiment.experiment import Progress, run
from ratemesh.experiment.plan import Plan
from ratemesh.experiment.storage import write_json
from ratemesh.metrics.table import METRICS
from ratemesh.report.figures import draw_language, draw_structure
from ratemesh.report.runs import open_run
from ratemesh.studies.alone import Alone, best_of_scikit_learn

ROUNDS = 20

AUGMENT: dict[str, Any] = {"translate": 0.1, "rotate": 10, "zoom": [0.9, 1.1]}

SETTING: dict[str, Any] = {
    "preset": "images",
    "data": {"name": "digits", "coarse": True, "validation": 0},
    "graph": {"name": "erdos_renyi", "nodes": 10, "p": 0.5},
    "encoders": [{"name": "mlp"}, {"name": "conv4", "width": 0.25}],
    "local": {"optimizer": "muon", "epochs": 5, "batch_size": 50, "augment": AUGMENT},
    "output": {"evaluate_every": 0},  # nothing is held out for validation, and test images are opened at the end
}
"""What the rows that train networks share beside the rounds: images, sites, networks, local training, seed."""

TRAINED: dict[str, dict[str, Any]] = {
    "independent": {"graph": {"name": "empty", "nodes": 10}},
    "fedproto": {"method": {"name": "fedproto"}},
    "ratemesh": {},
    "one-place": {"graph": {"name": "empty", "nodes": 1}, "encoders": [{"name": "mlp"}]},
}
"""Rows that train networks; in one place it is the one of the two networks that is better there."""

ROWS: dict[str, str] = {
    "ratemesh": "ratemesh",
    "fedproto": "FedProto",
    "independent": "networks, each alone",
    "site": "scikit-learn, a site",
    "one-place": "network, pooled",
    "pooled": "scikit-learn, pooled",
}
"""What the table calls its rows, in order."""

COLUMNS: dict[str, str] = {
    "acc_cross": "cross",
    "retrieval_cross_fine": "fine cross",
    "acc_own": "own",
    "retrieval_own_fine": "fine own",
    "acc_average": "all together",
    "bytes_total": "sent",
}
"""Its columns: what only a mesh gives first."""

LEGEND = (
    "Held-out images; sites were told of five pairs of digits only. cross: a node names the pair from another node's "
    "features, by its own statistics alone; fine cross: the nearest image as another node sees it shows the same "
    "digit. own, fine own: the same on a node's own features (scikit-learn: on its images, by pixels). all together: "
    "features averaged over the nodes (scikit-learn: a vote of the sites). pooled: all images in one place. "
    "scikit-learn: the best of its classifiers, by cross-validation."
)


@dataclass(frozen=True)
class Demo:
    """What the demonstration left: the numbers of its rows by their names in the table, and where things are."""

    rows: dict[str, Mapping[str, Any]]
    summary: Path
    figures: tuple[Path, ...]


def run_demo(out: Path, progress: Callable[[str, int], Progress], rounds: int = ROUNDS, seed: int = 0) -> Demo:
    """Train the rows into `out` and summarise them.

    Args:
        out: new folder.
        progress: given a row's name and its number of rounds, returns what is called every round.
        rounds: of every row that trains networks.
        seed: of every row.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for name, settings in TRAINED.items():
        table = {**merged(SETTING, settings), "rounds": rounds, "seed": seed}
        found[name] = run(table, out / name, progress=progress(name, rounds)).metrics
    found["one-place"] = {key: found["one-place"][key] for key in ("method", "acc_own", "retrieval_own_fine")}
    found |= _without_networks(seed)
    rows = {words: found[name] for name, words in ROWS.items()}
    summary, structure = out / "summary.json", out / "structure.png"
    write_json(summary, [{"row": words, **summarise(row)} for words, row in rows.items()])
    runs = [open_run(out / name) for name in ("fedproto", "ratemesh")]
    draw_language(runs, out / "understanding", formats=["png"])
    draw_structure(out / "ratemesh", structure)
    return Demo(rows, summary, (out / "understanding.png", structure))


def _without_networks(seed: int) -> dict[str, Mapping[str, Any]]:
    """Return the rows of scikit-learn: every site by itself, and all images in one place."""
    plan, augment = Plan(make_config({**SETTING, "seed": seed})), AugmentSpec(**AUGMENT)
    places = {"site": plan.parts, "pooled": [torch.cat(plan.parts)]}
    return {
        name: _numbers(best_of_scikit_learn(plan.data, parts, augment, seed), alone=len(parts) == 1)
        for name, parts in places.items()
    }


def _numbers(found: Alone, *, alone: bool) -> dict[str, Any]:
    """Return accuracies under the names that runs have for them; in one place there are no others to ask or tell."""
    together = {} if alone else {"acc_average": found.together, "bytes_total": 0}
    return {"method": "scikit-learn", "acc_own": found.own, "retrieval_own_fine": found.fine, **together}


def summarise(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the final numbers of a run that the terminal and the page's small tables show, in their order."""
    named = {key for key, metric in METRICS.items() if metric.heading or metric.short}
    shown = {key: metrics[key] for key in METRICS if key in named and key in metrics}
    sent = {"bytes": shown.pop("bytes_total")} if "bytes_total" in shown else {}
    return {"method": metrics["method"], **shown, **sent}

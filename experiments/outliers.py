"""How well `score_samples` tells samples of classes that training never saw, on digits and MNIST.

    python experiments/outliers.py digits mnist --out runs/outliers --seeds 3

Two digits at a time are held out, and one site trains on the other eight: by −ΔR, by −ΔR with cross-entropy beside it
(hybrid), and by cross-entropy alone, with the same network, optimiser and sample-passes. AUROC: the chance that a
sample of a known digit scores higher than one of a digit held out. Which score `score_samples` is was chosen where 0/1
and 2/3 are held out, by samples of the training files that the site did not train on; the table is of 4/5, 6/7 and 8/9,
by the test files. Features that are there already are not made again. The table goes into RESULTS.md with --write.
"""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from results import write_table
from safetensors.torch import load_file, save_file
from sklearn.covariance import EmpiricalCovariance
from sklearn.metrics import roc_auc_score
from torch import Tensor

from ratemesh.data import DATASETS, Dataset, DatasetSpec
from ratemesh.data.files import Array
from ratemesh.engines.inprocess import LocalSites
from ratemesh.estimators.subspace import NearestSubspace
from ratemesh.experiment.config import make_config
from ratemesh.experiment.plan import ExperimentSite, Plan
from ratemesh.threads import pinned
from ratemesh.training.classifier import Classifier
from ratemesh.training.local import LocalTrainer, encode

SETS: dict[str, dict[str, Any]] = {
    "digits": {
        "data": {"name": "digits"},
        "rounds": 20,
        "local": {"optimizer": "muon", "epochs": 2, "batch_size": 50},
        "encoders": ["mlp"],
    },
    "mnist": {
        "data": {"name": "mnist", "train_limit": 4000},
        "rounds": 10,
        "local": {"optimizer": "muon"},
        "encoders": [{"name": "conv4", "width": 0.25}],
    },
}
METHOD = {"name": "alg1", "warm_start": {"epochs": 2}, "running": {"refresh": 1}}
WEIGHTS = {"ΔR": 0, "hybrid": 30, "cross-entropy": 0}
"""Of cross-entropy beside −ΔR; the last way has a loop of its own."""
CHOICE, REPORT = ((0, 1), (2, 3)), ((4, 5), (6, 7), (8, 9))
Pairs = tuple[tuple[int, int], ...]
Known = Mapping[str, Tensor]
"""Features (m, d) of a split's `train`, `choice`, `choice_out`, `test`, `test_out`; `y` (m,) and `logits_…` (m, K)."""


class Without(DatasetSpec):
    """Another data set without some of its classes, the others numbered anew."""

    of: dict[str, Any]
    out: tuple[int, int]

    def whole(self, seed: int) -> Dataset:
        """Return the data with all classes."""
        return DATASETS[self.of["name"]](**self.of).load(seed)

    def load(self, seed: int) -> Dataset:
        """Return the data without the classes."""
        data = self.whole(seed)
        kept = [k for k in range(data.num_classes) if k not in self.out]
        code = torch.full((data.num_classes,), -1).index_put((torch.tensor(kept),), torch.arange(len(kept)))
        for part, y in (("train", data.y_train), ("test", data.y_test)):
            data = data.rows(part, (code[y] >= 0).nonzero().flatten())
        names = tuple(data.classes[k] for k in kept)
        data = replace(data, y_train=code[data.y_train], y_test=code[data.y_test])
        return replace(data, num_classes=len(kept), classes=names)


def plan_of(name: str, out: tuple[int, int], seed: int, how: str) -> Plan:
    """Return a site's plan: the method on one node."""
    table = {**SETS[name], "method": {**METHOD, "cross_entropy": WEIGHTS[how]}}
    data = Without(name="without", of=table.pop("data"), out=out, validation=0.1)
    return Plan(
        make_config({"preset": "plain", **table, "seed": seed, "data": data, "graph": {"name": "complete", "nodes": 1}})
    )


def by_ratemesh(plan: Plan) -> dict[str, torch.nn.Module]:
    """Train the site by the rounds of its plan."""
    sites = LocalSites(plan, [0])
    for t in range(1, plan.config.rounds + 1):
        sites.play(t)
    site = sites._sites[0]
    assert isinstance(site, ExperimentSite)
    return {"": site.program.encoder}


def by_cross_entropy(plan: Plan) -> dict[str, torch.nn.Module]:
    """Train the same network by cross-entropy for as many epochs."""
    node, config = plan.node(0), plan.config
    epochs = config.rounds * config.local.epochs + config.method.epochs_before
    model = Classifier(node.encoder, node.num_classes)
    local = node.local.model_copy(update={"epochs": 1, "decay_rounds": epochs})
    trainer = LocalTrainer(model, local, node.seed, node.index, "cross-entropy")
    for t in range(1, epochs + 1):
        trainer.train(node.X, node.y, model.loss, t)
    return {"": node.encoder, "logits_": model}


TRAINED: dict[str, Callable[[Plan], dict[str, torch.nn.Module]]] = {
    "ΔR": by_ratemesh,
    "hybrid": by_ratemesh,
    "cross-entropy": by_cross_entropy,
}


def known(name: str, out: tuple[int, int], seed: int, how: str, folder: Path) -> Known:
    """Return what a trained site makes of its samples and of those held out; train it if it is not there."""
    file = folder / f"{name}-{out[0]}{out[1]}-{how}-{seed}.safetensors"
    if not file.exists():
        print(file.stem, flush=True)
        plan = plan_of(name, out, seed, how)
        data, whole = plan.data, plan.config.data.whole(seed)  # type: ignore[attr-defined]
        samples = {
            "train": data.X_train[plan.parts[0]],
            "choice": data.X_train[plan.validation],
            "choice_out": whole.X_train[torch.isin(whole.y_train, torch.tensor(out)).nonzero().flatten()],
            "test": data.X_test,
            "test_out": whole.X_test[torch.isin(whole.y_test, torch.tensor(out)).nonzero().flatten()],
        }
        models = TRAINED[how](plan)
        found = {f"{kind}{part}": encode(models[kind], X) for kind in models for part, X in samples.items()}
        folder.mkdir(parents=True, exist_ok=True)
        save_file({**found, "y": data.y_train[plan.parts[0]], "y_test": data.y_test}, file)
    return load_file(file)


def spread(of: Known) -> Array:
    """Return the mean residual of every class's own training samples, (K,)."""
    r, y = -NearestSubspace().fit(of["train"], of["y"]).decision_function(of["train"]).numpy(), of["y"].numpy()
    return np.array([r[y == k, k].mean() for k in range(r.shape[1])])


CANDIDATES: dict[str, Callable[[Array, Array], Array]] = {
    "minus the smallest residual": lambda r, _: -r.min(1),
    "… relative to its class's mean": lambda r, s: -(r / s).min(1),
    "log Σ_k exp(−r_k / mean residual)": lambda r, s: np.logaddexp.reduce(-r / s.mean(), axis=1),
    "second smallest minus smallest": lambda r, _: np.diff(np.sort(r, 1)[:, :2], axis=1)[:, 0],
    "minus smallest / second smallest": lambda r, _: -np.sort(r, 1)[:, 0] / np.sort(r, 1)[:, 1],
}


def candidate(which: str) -> Callable[[Known, str], Array]:
    """Return a score by residuals to a site's class subspaces."""

    def score(of: Known, part: str) -> Array:
        r = -NearestSubspace().fit(of["train"], of["y"]).decision_function(of[part])
        return CANDIDATES[which](r.numpy(), spread(of))

    return score


def mahalanobis(of: Known, part: str) -> Array:
    """Return minus the distance to the nearest class mean by the covariance inside classes."""
    Z, y, asked = of["train"].double().numpy(), of["y"].numpy(), of[part].double().numpy()
    means = np.stack([Z[y == k].mean(0) for k in range(y.max() + 1)])
    inside = EmpiricalCovariance(assume_centered=True).fit(Z - means[y])
    score: Array = -np.stack([inside.mahalanobis(asked - mean) for mean in means]).min(0)
    return score


def score_samples(of: Known, part: str) -> Array:
    """Return what the estimator does."""
    found: Array = NearestSubspace().fit(of["train"], of["y"]).score_samples(of[part]).numpy()
    return found


def softmax(of: Known, part: str) -> Array:
    """Return the probability of the likeliest class."""
    return of[f"logits_{part}"].softmax(1).amax(1).numpy()


def logit(of: Known, part: str) -> Array:
    """Return the largest logit."""
    return of[f"logits_{part}"].amax(1).numpy()


ROWS: list[tuple[str, str, Callable[[Known, str], Array]]] = [
    ("`score_samples`", "ΔR", score_samples),
    ("`score_samples`", "hybrid", score_samples),
    ("`score_samples`", "cross-entropy", score_samples),
    ("Mahalanobis", "ΔR", mahalanobis),
    ("Mahalanobis", "hybrid", mahalanobis),
    ("Mahalanobis", "cross-entropy", mahalanobis),
    ("maximum softmax", "cross-entropy", softmax),
    ("largest logit", "cross-entropy", logit),
]


def auroc(score: Callable[[Known, str], Array], part: str, of: Known) -> float:
    """Return the chance, in percent, that a sample of `part` scores higher than one held out."""
    inside, outside = score(of, part), score(of, f"{part}_out")
    truth = np.r_[np.ones(len(inside)), np.zeros(len(outside))]
    return 100 * float(roc_auc_score(truth, np.r_[inside, outside]))


def cell(values: list[float]) -> str:
    """Return mean and worst."""
    return f"{fmean(values):.1f} ({min(values):.1f})"


def accuracy(of: Known) -> float:
    """Return the part of test samples of known classes that are told right, in percent."""
    subspaces = NearestSubspace().fit(of["train"], of["y"])
    found = of["logits_test"].argmax(1) if "logits_test" in of else subspaces.predict(of["test"])
    return 100 * float((found == of["y_test"]).double().mean())


def table(names: list[str], seeds: int, folder: Path) -> list[str]:
    """Train what is missing; return the lines of both tables."""

    def over(name: str, pairs: Pairs, how: str, value: Callable[[Known], float]) -> str:
        return cell([value(known(name, out, seed, how, folder)) for out in pairs for seed in range(seeds)])

    def row(words: str, pairs: Pairs, how: str, value: Callable[[Known], float]) -> str:
        return f"| {words} | " + " | ".join(over(name, pairs, how, value) for name in names) + " |"

    head = ["| " + " | ".join(["AUROC, percent: mean (worst)", *names]) + " |", "|---|" + "--:|" * len(names)]
    choices = [row(which, CHOICE, "ΔR", partial(auroc, candidate(which), "choice")) for which in CANDIDATES]
    rows = [row(f"{words}, {how}", REPORT, how, partial(auroc, score, "test")) for words, how, score in ROWS]
    rows += [row(f"accuracy on the eight known digits, {how}", REPORT, how, accuracy) for how in TRAINED]
    return [
        *(
            f"Chosen where {_words(CHOICE)} are held out, by residuals r_k of features trained by −ΔR:",
            "",
            *head,
            *choices,
        ),
        *("", f"Test files, where {_words(REPORT)} are held out; {seeds} seeds each:", "", *head, *rows),
    ]


def _words(pairs: Pairs) -> str:
    return ", ".join(f"{a}/{b}" for a, b in pairs)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("sets", choices=SETS, nargs="+")
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--out", type=Path, default=Path("runs/outliers"))
    options.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    given = options.parse_args()
    with pinned(1):
        found = table(given.sets, given.seeds, given.out)
    print("\n".join(found))
    if given.write:
        write_table("outliers", found)

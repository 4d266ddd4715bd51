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
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from ratemesh.connection.connection import connect
from ratemesh.connection.files import SMALL, read_site, write_site
from ratemesh.connection.site import SiteStatistics
from ratemesh.connection.understood import understanding
from ratemesh.core.stats import ClassStats
from ratemesh.data import DATASETS
from ratemesh.data.features import Labelled
from ratemesh.experiment.config import make_config
from ratemesh.experiment.experiment import run
from ratemesh.experiment.plan import Plan
from ratemesh.experiment.records import RunFolder
from ratemesh.messages.codecs import PACKED
from ratemesh.messages.formats import CodecSpec
from ratemesh.messages.lowrank import LowRank
from ratemesh.studies.connect import P_SMALL, P
from ratemesh.training.local import encode

HELD_OUT = 2000
"""Most samples for choosing, and most for the test."""

ENCODERS = [{"name": "mlp"}, {"name": "conv4", "width": 0.25}]
MNIST = {"rounds": 4, "local": {"epochs": 1, "optimizer": "muon"}, "encoders": ENCODERS}
DIGITS = {**MNIST, "rounds": 8, "local": {"epochs": 5, "batch_size": 50, "optimizer": "muon"}}
NOT_CENTRED = "packed, not centred"
FORMS: dict[str, tuple[CodecSpec, int]] = {"packed": (PACKED, P), "small": (SMALL, P_SMALL), "no sketch": (PACKED, 0)}
OTHERS: dict[str, tuple[CodecSpec, int]] = {
    "packed, p = 12": (PACKED, P_SMALL),
    "rank 3, p = 12": (LowRank(name="lowrank", rank=3, inner="int8"), P_SMALL),
    "rank 6, p = 12": (LowRank(name="lowrank", rank=6, inner="int8"), P_SMALL),
    "rank 8, p = 8": (LowRank(name="lowrank", rank=8, inner="int8"), 8),
    NOT_CENTRED: (PACKED, P),
}
"""How statistics are sent, and what else was tried on samples held out of the training data."""

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
        "preset": "plain",
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
            "train": (plan.data.X_train[part], y[rows][part]),
            **{key: (A[:HELD_OUT], b[:HELD_OUT]) for key, (A, b) in held.items()},
        }
        arrays: dict[str, Any] = {"x_train": parts["train"][0].numpy()}
        for key, (A, b) in parts.items():
            arrays |= {f"z_{key}": encode(site.program.encoder, A).numpy(), f"y_{key}": (b // step).numpy()}
            arrays[f"fine_{key}"] = b.numpy()
        np.savez(file, **arrays)
    return files


def told(file: Path, form: str, without: Sequence[int] = ()) -> tuple[SiteStatistics, int]:
    """Return a site as others read it, and the bytes of its file; `without` statistics of some classes."""
    arrays = np.load(file)
    keep = ~np.isin(arrays["y_train"], without)
    Z, y, X = (arrays[key][keep] for key in ("z_train", "y_train", "x_train"))
    codec, p = {**FORMS, **OTHERS}[form]
    site = SiteStatistics.of(Z, y, X=X, name=file.stem, sketch={"name": "auto", "p": p} if p else None)
    if form == NOT_CENTRED and site.sketch:
        H = site.sketch.spec.build(site.sketch.shape, site.sketch.seed)(torch.from_numpy(X))
        labels = torch.tensor([site.classes.index(str(label)) for label in y])
        plain = ClassStats.of(normalize(torch.from_numpy(Z), dim=1), labels, len(site.classes), H=H)
        site = replace(site, stats=plain, offset=torch.zeros(site.d))
    with tempfile.TemporaryDirectory() as scratch:
        size = write_site(path := Path(scratch) / "site.safetensors", site, codec)
        return read_site(path), size


def held_out(file: Path, part: str) -> Labelled:
    """Return a site's features of samples that no encoder was trained on."""
    arrays = np.load(file)
    words, fine = (arrays[f"{key}_{part}"].astype(str) for key in ("y", "fine"))
    return Labelled(torch.from_numpy(arrays[f"z_{part}"]), words, fine)


def row(name: str, files: Sequence[Path], part: str, form: str) -> str:
    """Return a line of the first table: all sites connected at once."""
    sites, sizes = zip(*(told(file, form) for file in files), strict=True)
    found = understanding(connect(sites), [held_out(file, part) for file in files])["summary"]
    keys = ("acc_own", "acc_cross", "acc_cross_worst", "acc_joint", "retrieval_own_fine", "retrieval_cross_fine")
    return f"| {name}, {form} | {' | '.join(f'{100 * found[key]:.1f}' for key in keys)} | {max(sizes) / 1000:.1f} |"


def joining(files: Sequence[Path], part: str) -> list[str]:
    """Return what the last site and the others understand of each other: joined later, or there from the start."""
    sites = [told(file, "packed")[0] for file in files]
    lines = []
    for name, mesh in {"from the start": connect(sites), "joined": connect(sites[:-1]).join(sites[-1])}.items():
        pairs = understanding(mesh, [held_out(file, part) for file in files])["pairs"]
        newcomer = [p for p in pairs if (p["speaker"] == files[-1].stem) != (p["judge"] == files[-1].stem)]
        means = [100 * np.mean([pair[key] for pair in newcomer]) for key in ("accuracy", "retrieval_fine")]
        lines.append(f"| the last site {name} | {means[0]:.1f} | {means[1]:.1f} |")
    return lines


def new_class(files: Sequence[Path], part: str, words: str) -> str:
    """Return how the others' nines are judged when the last site alone brings statistics of nines."""
    sites = [told(file, "packed", without=[9] if file != files[-1] else [])[0] for file in files]
    mesh = connect(sites[:-1]).join(sites[-1])
    rates = []
    for i, file in enumerate(files[:-1]):
        said = held_out(file, part)
        heard = mesh.predict(i, said.Z)
        rates.append([(heard == said.words)[chosen].mean() for chosen in (said.words == "9", said.words != "9")])
    nines, others = 100 * np.mean(rates, axis=0)
    return f"| {words} | {nines:.1f} | {others:.1f} |"


def new_names(files: Sequence[Path], part: str) -> str:
    """Return how well others' eights and nines are told apart when the last site alone has names for the two."""
    arrays = np.load(files[-1])
    fine, y = arrays["fine_train"], arrays["y_train"]
    twice = np.concatenate([np.arange(len(y)), np.flatnonzero(fine >= 8)])
    words = np.concatenate([y, fine[fine >= 8]]).astype(str)  # the pair "4" stays, and ties the frames
    newcomer = SiteStatistics.of(arrays["z_train"][twice], words, X=arrays["x_train"][twice], name="names")
    mesh = connect([told(file, "packed")[0] for file in files[:-1]]).join(newcomer)
    rates = []
    for i, file in enumerate(files[:-1]):
        said = held_out(file, part)
        digits = np.asarray(said.fine)
        pair = np.isin(digits, ("8", "9"))
        columns = [mesh.classes.index(word) for word in ("8", "9")]
        nearer = mesh.rule("names").residuals(mesh.encode(i, said.Z[pair]))[:, columns].argmin(1)
        rates.append((np.array(["8", "9"])[nearer] == digits[pair]).mean())
    return f"MNIST by pairs, one site names eights and nines: others' are told apart in {100 * np.mean(rates):.1f} %"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/connect"))
    parser.add_argument("--part", choices=("val", "test"), default="val")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    files = {name: train(arguments.out, name, **task) for name, task in RUNS.items()}
    part, meshes = arguments.part, {"digits": files["digits"], "MNIST by pairs": files["coarse"]}
    meshes["MNIST by pairs, d = 128, 128, 64, 64"] = [*files["coarse"][:2], *files["narrow"]]
    print("| % | own | another site's | worst pair | all together | 1-NN fine, own | across | kB a site |")
    for name, sites in meshes.items():
        for form in FORMS if part == "test" else {**FORMS, **OTHERS}:
            print(row(name, sites, part, form), flush=True)
    print(
        "| MNIST by pairs | to and from the others | 1-NN fine |", *joining(files["coarse"], part), sep="\n", flush=True
    )
    print("| nines, of which one site alone has statistics | nines | others |")
    print(new_class(files["digits"], part, "digits: every encoder was trained on nines"), flush=True)
    print(new_class([*files["nine"], *files["ten"]], part, "MNIST: no other encoder ever saw one"), flush=True)
    print(new_names(files["coarse"], part))

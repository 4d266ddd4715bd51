"""Runs for tests of figures and reports: invented ones, a real one, ways to damage copies of it, pages taken apart."""

import json
import re
import shutil
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch

import ratemesh
from ratemesh.experiment.config import load_config
from ratemesh.experiment.experiment import run
from ratemesh.experiment.trials import run_trials
from ratemesh.report.folders import open_runs
from ratemesh.report.page import render
from ratemesh.report.runs import Features, Run

SMOKE = Path(ratemesh.__file__).parents[2] / "experiments" / "smoke.toml"
VOID = {"meta", "link", "img", "path"}
Damage = Callable[[Path], object]
Copy = Callable[..., Path]

ROUNDS, NODES, K, D = 6, 3, 4, 8


def features(seed: int = 0, counts: Sequence[int] = (30, 30, 30, 30)) -> Features:
    """Unit rows in random order, classes along their own axes with some noise, both signs."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    y = y[torch.randperm(len(y), generator=draw)]
    Z = 0.3 * torch.randn(len(y), D, generator=draw)
    Z[torch.arange(len(y)), y] += torch.randint(0, 2, (len(y),), generator=draw) * 2.0 - 1
    return Features(torch.nn.functional.normalize(Z, dim=1), y, torch.arange(len(y)) % NODES)


def records(rounds: int = ROUNDS, **changed: Any) -> list[dict[str, Any]]:
    """Numbers that differ between rounds, nodes and keys, so that a mix-up shows."""
    out = []
    for t in range(1, rounds + 1):
        nodes = [
            {
                "expand": 10.0 + t + i,
                "compress": 5.0 - 0.1 * t + i,
                "total": 3.0 - t - i,
                "disagreement": 1 / (t + i + 1),
            }
            for i in range(NODES)
        ]
        for node in nodes:
            node["overlap"] = 0.5 / (t * t + node["expand"])
        mean = {key: sum(node[key] for node in nodes) / NODES for key in nodes[0]}
        out.append({"round": t, **mean, "bytes": 100 * t, "nodes": nodes, **changed})
    return out


def graph(clusters: Sequence[int | None] = (None, None, None)) -> dict[str, Any]:
    nodes = [
        {"index": i, "encoder": ("mlp", "conv4")[i % 2], "samples": 9, "cluster": c} for i, c in enumerate(clusters)
    ]
    edges = [{"ends": [0, 1], "disagreement": 0.1}, {"ends": [1, 2], "disagreement": 0.9}]
    return {"schema": 1, "nodes": nodes, "edges": [*edges, {"ends": [0, 2], "disagreement": None}]}


def toy(name: str = "toy", seed: int = 0, **changed: Any) -> Run:
    run = Run(name, Path("nowhere"), records=records(), network=graph(), initial=features(7), features=features(seed))
    run.metrics = {"acc_average": 0.9, "acc_energy": 0.95, "acc_node": 0.8, "bytes_total": 2100, "sample_passes": 600}
    run.metrics |= {"cross_matrix": [[0.9, 0.2, 0.3], [0.4, 0.8, 0.5], [0.6, None, 0.7]]}
    for key, value in changed.items():
        setattr(run, key, value)
    return run


def smoke_run(parent: Path) -> Path:
    """Run the small experiment into a new folder, with accuracies on the way."""
    return run(SMOKE, parent / "smoke", overrides=["output.evaluate_every=2"]).folder


def smoke_trials(parent: Path, count: int = 3) -> Path:
    """Run the small experiment with several seeds into a new folder."""
    config = load_config(SMOKE, ["rounds=2", "output.evaluate_every=1"])
    return run_trials(config, parent / "trials", count).folder


def copier(source: Path, parent: Path) -> Copy:
    """Return a function that copies the run under a name and damages the copy."""

    def copy(name: str = "copy", *damages: Damage) -> Path:
        folder = parent / name
        shutil.copytree(source, folder)
        for damage in damages:
            damage(folder)
        return folder

    return copy


class Page(HTMLParser):
    """A page taken apart, and checked to be balanced."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"style", "script"}:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def all(self, name: str, **wanted: str) -> list[dict[str, str | None]]:
        return [found for tag, found in self.tags if tag == name and wanted.items() <= found.items()]


def page(*folders: Path) -> Page:
    """The page without figures, which take their time."""
    runs, notes = open_runs(folders)
    return Page(render(runs, [*notes, *(note for one in runs for note in one.notes)], {}))


def edited(name: str, **changes: object) -> Damage:
    def edit(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**content, **changes}))

    return edit


def on(data: str) -> Damage:
    def edit(folder: Path) -> None:
        for config in folder.rglob("config.toml"):
            config.write_text(config.read_text().replace('name = "subspaces"', f'name = "{data}"'))

    return edit


def without(*names: str) -> Damage:
    def remove(folder: Path) -> None:
        for name in names:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove

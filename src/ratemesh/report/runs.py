"""A run folder as figures and reports see it: what is there, and words for what is not."""

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ratemesh.core.stats import ClassStats
from ratemesh.errors import InputError
from ratemesh.experiment.records import SCHEMA, RunFolder
from ratemesh.experiment.storage import read_json, read_tensors
from ratemesh.experiment.trials import Interval
from ratemesh.metrics.table import LABEL_AWARE, VALIDATION

INCOMPLETE = "the run is incomplete"
"""How the note on a run without final numbers begins."""


@dataclass(frozen=True)
class Features:
    """Training features of all nodes, the paper's Z: Z (n, d), y (n,) labels, node (n,) who saw the sample."""

    Z: Tensor
    y: Tensor
    node: Tensor

    def equals(self, other: "Features") -> bool:
        """Whether they are the same features of the same classes."""
        return torch.equal(self.Z, other.Z) and torch.equal(self.y, other.y)

    def stats(self) -> ClassStats:
        """Return their class statistics, double precision."""
        return ClassStats.of(self.Z.double(), self.y, int(self.y.max()) + 1, unit=False)


@dataclass(frozen=True)
class Curve:
    """A recorded number over rounds: its mean over the nodes, and the lowest and the highest node."""

    rounds: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]

    @property
    def values(self) -> list[float]:
        """The means that are known."""
        return [value for value in self.mean if math.isfinite(value)]


@dataclass
class Run:
    """One run, or several trials of it; what the folder lacks is empty here, and a sentence in `notes`.

    Trials are one entry: `metrics` are means over the complete ones with their `intervals`, `records` are means over
    them whose "nodes" are the trials, and what cannot be averaged is of the first complete one.

    Attributes:
        stats: class statistics of all nodes after the last round; only of a run that `open_underway` opened.
        site: what a site of a mesh, which knows its own part only, wrote at its end.
        trials: the runs that were started, in the order of their seeds; none for a single run.
        planned: how many trials there should be.
    """

    name: str
    path: Path
    config: dict[str, Any] = field(default_factory=dict)
    config_text: str = ""
    records: list[dict[str, Any]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    network: dict[str, Any] = field(default_factory=dict)
    site: dict[str, Any] = field(default_factory=dict)
    features: Features | None = None
    initial: Features | None = None
    stats: ClassStats | None = None
    notes: list[str] = field(default_factory=list)
    trials: list["Run"] = field(default_factory=list)
    planned: int = 0
    intervals: dict[str, Interval] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether the run wrote its final numbers, readable or not."""
        return RunFolder(self.path).metrics.exists()

    @property
    def complete(self) -> list["Run"]:
        """The trials with final numbers."""
        return [trial for trial in self.trials if trial.metrics]

    @property
    def whole(self) -> bool:
        """Whether everything that was planned has final numbers."""
        return len(self.complete) == self.planned if self.planned else bool(self.metrics or self.site)

    @property
    def partial(self) -> bool:
        """Whether nodes hold different labels, as far as it is known."""
        keys = {LABEL_AWARE, VALIDATION + LABEL_AWARE}
        return any(keys & table.keys() for table in [self.metrics, *self.evaluations])

    @property
    def evaluations(self) -> list[Mapping[str, Any]]:
        """The held-out numbers of the rounds that recorded some."""
        found = [record.get("evaluation") for record in self.records]
        return [table for table in found if isinstance(table, Mapping)]

    @property
    def validated(self) -> bool:
        """Whether its rounds tell of validation samples only: the test samples were opened at the end."""
        own = [key for table in self.evaluations for key in table if key.startswith(("acc_", VALIDATION))]
        return bool(own) and all(key.startswith(VALIDATION) for key in own)

    @property
    def state(self) -> str:
        """How far it came, in words."""
        if self.planned:
            done = len(self.complete)
            of = f"{done} of {self.planned}" if done < self.planned else f"{done}"
            return f"{of} trial{'s' if self.planned > 1 else ''} complete"
        if self.metrics or self.site:
            return "complete" if self.metrics else "complete: one site of a mesh"
        rounds = f"{len(self.records)} of {self.setting('rounds', '?')} rounds"
        return f"final numbers unreadable, {rounds}" if self.ended else f"incomplete: {rounds}"

    @property
    def sample(self) -> str:
        """Name of the run whose features and network are shown: the first complete one of trials."""
        return f"{self.name}, {self.complete[0].name}" if self.complete else self.name

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, as far as they are known."""
        found = self.network.get("classes")
        return tuple(map(str, found)) if isinstance(found, list) else ()

    def setting(self, key: str, default: Any = None) -> Any:
        """Return the setting "a.b" of the resolved configuration."""
        value: Any = self.config
        for step in key.split("."):
            if not isinstance(value, Mapping) or step not in value:
                return default
            value = value[step]
        return value

    def final(self, key: str) -> float:
        """Return a final number; NaN where it is not known."""
        return number(self.metrics.get(key))

    def half_width(self, key: str) -> float:
        """Return the half-width of the interval of a final number over trials; NaN without one."""
        return self.intervals[key].half_width if key in self.intervals else math.nan

    def curve(self, key: str, sign: float = 1) -> Curve:
        """Return a number of the records over rounds, times `sign`; NaN where it was not recorded."""
        low, high = [], []
        for record in self.records:
            values = [v for node in record["nodes"] if math.isfinite(v := number(node.get(key)))]
            low.append(sign * min(values, default=math.nan))
            high.append(sign * max(values, default=math.nan))
        mean = [sign * number(record.get(key)) for record in self.records]
        return Curve([int(record["round"]) for record in self.records], mean, low, high)


def number(value: object) -> float:
    """Return a JSON value as a number; NaN for null and for anything that is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def open_run(path: Path, name: str | None = None) -> Run:
    """Read all that a run folder holds."""
    folder = RunFolder.existing(path)
    run = Run(name or path.resolve().name, path)
    read_config(run, folder)
    run.environment = read_object(run, path / "environment.json")
    if not (path / "environment.json").exists():
        run.notes.append("environment.json is missing, so versions and machine are not known.")
    run.network = read_object(run, path / "network.json")
    _read_rounds(run, folder)
    _read_metrics(run, folder)
    run.initial = _read_features(run, folder.initial_features, "before")
    run.features = _read_features(run, folder.features, "after")
    return run


def read_config(run: Run, folder: RunFolder) -> None:
    """Read the settings, or say why not."""
    try:
        run.config_text = folder.config.read_text(encoding="utf-8")
        run.config = tomllib.loads(run.config_text)
    except (OSError, ValueError) as error:  # UnicodeDecodeError and TOMLDecodeError are ValueErrors
        run.notes.append(f"config.toml cannot be read ({error}); what depends on settings is left out.")


def read_object(run: Run, path: Path) -> dict[str, Any]:
    """Return what a JSON file holds; one that is missing, broken or too new counts as empty."""
    if not path.exists():
        return {}
    try:
        content = read_json(path)
    except InputError as error:
        run.notes.append(str(error))
        return {}
    if number(content.get("schema", SCHEMA)) > SCHEMA:
        run.notes.append(
            f"{path.name} has schema {content['schema']}, and this version reads up to {SCHEMA}; it is left out. "
            "Update ratemesh."
        )
        return {}
    return content


def _read_rounds(run: Run, folder: RunFolder) -> None:
    """Read the records, each with its round and its list of nodes."""
    try:
        records = folder.records()
    except (OSError, ValueError) as error:
        run.notes.append(f"rounds.jsonl cannot be read ({error}).")
        records = []
    for record in records:
        if isinstance(record, dict) and math.isfinite(number(record.get("round"))):
            nodes = record.get("nodes")
            per_node = [node for node in nodes if isinstance(node, dict)] if isinstance(nodes, list) else []
            run.records.append({**record, "nodes": per_node})
    if not run.records:
        run.notes.append("no round is recorded, so there are no curves and no measured cost.")
    run.seconds, run.cpu_seconds = (_seconds(folder.timing, key) for key in ("seconds", "cpu_seconds"))


def _seconds(path: Path, key: str) -> list[float]:
    """Read how long rounds took, as far as the file goes; a site by itself does not count CPU seconds."""
    out = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []:
        try:
            out.append(number(json.loads(line)[key]))
        except (ValueError, TypeError, KeyError):  # a crash cut the line short
            break
    return [value for value in out if math.isfinite(value)]


def _read_metrics(run: Run, folder: RunFolder) -> None:
    if folder.metrics.exists():
        run.metrics = read_object(run, folder.metrics)
        return
    run.site = read_object(run, folder.path / "summary.json")
    if run.site:
        run.notes.append(
            f"one site of a mesh, finished: {100 * number(run.site.get('accuracy')):.1f} % of held-out samples by "
            "its own statistics. Numbers over all nodes are known only where all sites are put together."
        )
        return
    wanted, done = run.setting("rounds", "?"), len(run.records)
    run.notes.append(
        f"{INCOMPLETE}: {done} of {wanted} rounds are recorded and metrics.json is missing. "
        f"Go on with it: ratemesh resume {run.path}"
    )


def _read_features(run: Run, path: Path, when: str) -> Features | None:
    """Read the training features that were kept, if they can be drawn."""
    if not path.exists():
        if when == "before" or run.metrics:  # of an incomplete run the end is said to be missing already
            run.notes.append(f"no features were kept {when} training; {_why_none(run, path)}.")
        return None
    try:
        tensors = read_tensors(path)
        features = Features(tensors["Z_train"].float(), tensors["y_train"].long(), tensors["node_train"].long())
    except InputError as error:
        run.notes.append(str(error))
        return None
    except KeyError as error:
        run.notes.append(f"{path.name} must hold training features; it has no {error}. It is left out.")
        return None
    if not len(features.Z) or not bool(torch.isfinite(features.Z).all()):
        run.notes.append(f"{path.name} holds no samples, or numbers that are not finite; it is left out.")
        return None
    return features


def _why_none(run: Run, path: Path) -> str:
    """Say why there are no features: only what the settings and the folder bear out."""
    if run.site:
        return "a site by itself keeps none"
    return f"{path.name} is missing" if run.setting("output.features") else "run with output.features above 0"

"""The paper's experiments by name: its panels, one TOML file a panel and scale, and the rows of its Table I.

A row is a panel's file with some tables replaced: data, partition, seeds, nodes and d are the panel's in all of them.
Algorithm 1 may begin with epochs of cross-entropy; the other rows get as many rounds more, so that budgets are equal.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratemesh.errors import InputError
from ratemesh.experiment.config import Config, load_config, make_config
from ratemesh.experiment.named import experiments
from ratemesh.specs import nearest
from ratemesh.studies.compare import budget

PANELS = ("mnist-iid", "mnist-4x5", "mnist-5x4", "cifar10-iid", "cifar10-4x5", "cifar10-5x4", "cifar100-iid")
"""Data set, and who has what: the same distribution everywhere, or so many nodes with so many labels each."""
SCALES = ("small", "paper")

DATASETS = ("mnist", "cifar10", "cifar100")

DIGITS: dict[str, Any] = {
    "crop_scale": [0.4, 1.0],
    "rotate": 15.0,
    "translate": 0.1,
    "brightness": 0.4,
    "contrast": 0.4,
    "blur": 0.5,
}
"""Views of digits: no flips, which make other digits, and no colours, of which there are none."""

COLOURS: dict[str, Any] = {
    "crop_scale": [0.2, 1.0],
    "flip": 0.5,
    "brightness": 0.8,
    "contrast": 0.8,
    "saturation": 0.8,
    "hue": 0.2,
    "jitter": 0.8,
    "grey": 0.2,
}
"""Views of CIFAR images, as the federated code bases have them."""


@dataclass(frozen=True)
class Row:
    """A row: the paper's name of the method, its folder here, the method, and its graph where not the panel's.

    Attributes:
        alone: one node has all the data.
    """

    title: str
    name: str
    method: str = "alg1"
    graph: str = ""
    alone: bool = False


ROWS = (
    Row("Algorithm 1", "alg1"),
    Row("CenMCR", "centralised", graph="empty", alone=True),
    Row("D-SGD", "dsgd", "dsgd"),
    Row("Independent MCR²", "independent", graph="empty"),
    Row("FedU²", "fedu2", "fedu2", "star"),
    Row("FedSimCLR", "fedsimclr", "fedsimclr", "star"),
    Row("FedU", "fedu", "fedu", "star"),
    Row("Orchestra", "orchestra", "orchestra", "star"),
)
"""In the order of the paper's figure of the same methods; its table has no row of independent nodes.

The centralised row is Algorithm 1 on one node with all the data, the independent one on nodes without edges; both
with the same switches.
"""


def panel_file(name: str, scale: str) -> Path:
    """Return the TOML file of a panel."""
    if name not in PANELS:
        raise InputError(f"panel must be a known name; got '{name}'. {nearest(name, PANELS)}")
    if scale not in SCALES:
        raise InputError(f"scale must be a known name; got '{scale}'. {nearest(scale, SCALES)}")
    return experiments()[f"{name}-{scale}"]


def load_panel(name: str, scale: str, overrides: Sequence[str] = ()) -> Config:
    """Read a panel's configuration; overrides win."""
    return load_config(panel_file(name, scale), overrides)


def table_configs(dataset: str, scale: str, overrides: Sequence[str] = ()) -> dict[str, Config]:
    """Return every row's experiment by its name; see `row_configs` for what overrides apply to."""
    if dataset not in DATASETS:
        raise InputError(f"dataset must be one of the paper's table; got '{dataset}'. {nearest(dataset, DATASETS)}")
    panel = tomllib.loads(panel_file(f"{dataset}-iid", scale).read_text(encoding="utf-8"))
    return row_configs(panel, DIGITS if dataset == "mnist" else COLOURS, overrides)


def row_configs(panel: Mapping[str, Any], views: Mapping[str, Any], overrides: Sequence[str] = ()) -> dict[str, Config]:
    """Return every row's experiment on the ground of a panel's table.

    Args:
        panel: settings of Algorithm 1, as in its file.
        views: augmentation for the methods that compare views.
        overrides: settings "a.b=value" of all rows; those of method and graph only where a row has the panel's.
    """
    first = make_config(panel, overrides)
    return {row.name: _config(row, panel, views, overrides, first) for row in ROWS}


def _config(
    row: Row, panel: Mapping[str, Any], views: Mapping[str, Any], overrides: Sequence[str], first: Config
) -> Config:
    table, foreign = dict(panel), []
    if row.method != "alg1":
        table["method"] = {"name": row.method, **_own(row, first)}
        foreign.append("method")
    if row.graph:
        table["graph"] = {"name": row.graph, "nodes": 1 if row.alone else first.graph.nodes}
        foreign.append("graph")
    if row.graph == "star":
        # Larger batches: every sample is compared with the others of its batch. One model has one architecture.
        table["local"] = {
            **panel.get("local", {}),
            "batch_size": 128,
            "lr": 1e-3,
            "schedule": "cosine",
            "augment": views,
        }
        table["encoders"] = list(panel.get("encoders", ["mlp"]))[:1]
    given = [override for override in overrides if override.partition(".")[0].strip() not in foreign]
    return make_config(table, [*given, f"rounds={_rounds(row, make_config(table, given), first)}"])


def _own(row: Row, first: Config) -> dict[str, Any]:
    """Return the settings that a row's method has of its own on this ground."""
    if row.method == "dsgd" and len(first.encoders) > 1:
        return {"scope": "group"}  # as in the paper: averaged by architecture
    if row.method == "orchestra" and first.data.name in ("mnist", "digits"):
        return {"rotations": 2}  # turned by 180°, some digits are others
    return {}


def _rounds(row: Row, config: Config, first: Config) -> int:
    """Return the rounds that give a row as many passes over the data as the first one has."""
    rounds, rest = divmod(budget(first) - config.method.epochs_before, config.local.epochs)
    if rest:
        raise InputError(
            f"method.warm_start.epochs must be a multiple of local.epochs = {config.local.epochs}, so that row "
            f"'{row.name}' can have as many passes over the data in whole rounds; got {first.method.epochs_before}."
        )
    return rounds

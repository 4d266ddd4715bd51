"""What a round costs: measured bytes beside the formulas of Remarks 2 and 4, and beside what D-SGD would send."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import fmean

import torch
from safetensors import SafetensorError, safe_open

from ratemesh.errors import RatemeshError
from ratemesh.experiment.config import Config, make_config
from ratemesh.report.cited import table_for
from ratemesh.report.figures.network import Edge, Network
from ratemesh.report.runs import Run, number

FLOAT = 4
"""Bytes of a number on the wire."""

BUFFERS = ("running_mean", "running_var", "num_batches_tracked", "gauge")
"""Ends of names that are state of a network, not parameters."""

KNOWN: dict[str, tuple[tuple[int, ...], int]] = {
    "digits": ((1, 8, 8), 10),
    "mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
}
"""Shape of a sample and number of classes where no setting changes them: known without reading the data."""


@dataclass(frozen=True)
class State:
    """What a checkpoint tells of a node.

    Attributes:
        parameters: numbers of the encoder that training changes; what D-SGD would send.
        architecture: equal for nodes whose parameters could be averaged.
        counts: samples per class; empty if the method keeps none.
    """

    parameters: int
    architecture: Hashable
    counts: tuple[float, ...] = ()


@dataclass(frozen=True)
class Cost:
    """Bytes that all nodes together send a round, and seconds; NaN where not known, and `notes` say why.

    Attributes:
        measured: mean over the recorded rounds.
        full: |N_i|·K·d² numbers, summed over the nodes (Remark 2).
        held: |N_i|·|K_i|·d² numbers, K_i the classes that node i holds (Remark 4).
        packed: as `full`, but one triangle of the symmetric matrices.
        dsgd: every node's encoder to all its neighbours.
        dsgd_alike: the same to neighbours of its own architecture only, as D-SGD does in the paper.
        seconds: wall-clock time, mean over the rounds.
    """

    measured: float
    full: float = math.nan
    held: float = math.nan
    packed: float = math.nan
    dsgd: float = math.nan
    dsgd_alike: float = math.nan
    seconds: float = math.nan
    notes: tuple[str, ...] = ()


def cost_of(run: Run) -> Cost:
    """Work out every cost that the run folder lets us know; of trials, the means: seeds differ in their graphs."""
    if run.trials:
        return _mean_cost([cost_of(trial) for trial in run.complete or run.trials])
    sent = [value for record in run.records if math.isfinite(value := number(record.get("bytes")))]
    measured, seconds = _mean(sent), _mean(run.seconds)
    config = _config(run)
    edges = _edges(run, config)
    if edges is None:
        return Cost(measured, seconds=seconds, notes=("the graph is not known, so no formula can be filled in.",))
    degree = Counter(node for edge in edges for node in edge)
    states = _states(run) or _rebuilt(config, degree)
    d, K = number(run.setting("d")), _classes(run, states)
    held = sum(n * _held(states, node) for node, n in degree.items())
    return Cost(
        measured=measured,
        full=FLOAT * degree.total() * K * d**2,
        held=FLOAT * held * d**2,
        packed=FLOAT * degree.total() * K * d * (d + 1) / 2,
        dsgd=_parameters(edges, states, alike=False),
        dsgd_alike=_parameters(edges, states, alike=True),
        seconds=seconds,
        notes=tuple(_unknown(degree, states, K * d)),
    )


def _mean_cost(costs: list[Cost]) -> Cost:
    """Return means of what is known; equal notes once."""
    numbers = [field.name for field in fields(Cost) if field.name != "notes"]
    found = {key: [v for cost in costs if math.isfinite(v := getattr(cost, key))] for key in numbers}
    notes = dict.fromkeys(note for cost in costs for note in cost.notes)
    return Cost(**{key: _mean(values) for key, values in found.items()}, notes=tuple(notes))


def _mean(values: list[float]) -> float:
    return fmean(values) if values else math.nan


def _config(run: Run) -> Config | None:
    """Return the validated configuration; a newer version's may not be one here.

    Defaults must not fill gaps: what a damaged file does not say is not known.
    """
    try:
        return make_config(run.config) if {"data", "graph", "encoders", "d"} <= run.config.keys() else None
    except RatemeshError:
        return None


def _edges(run: Run, config: Config | None) -> list[Edge] | None:
    """Return the graph as recorded, else as the configuration draws it."""
    network = Network.of(run.network)
    if network is not None:
        return list(network.edges)
    try:
        return list(config.graph.build(config.seed).edges) if config else None
    except RatemeshError:  # the file of edges may be gone
        return None


def _states(run: Run) -> dict[int, State]:
    """Read the last checkpoint's shapes and counts; no weight is loaded."""
    folders = sorted((run.path / "checkpoints").glob("round-*"))
    files = sorted(folders[-1].glob("node-*.safetensors")) if folders else []
    try:
        return {int(file.stem.removeprefix("node-")): _state(file) for file in files}
    except (OSError, SafetensorError, ValueError):
        return {}


def _state(file: Path) -> State:
    with safe_open(file, "pt") as tensors:
        names = list(tensors.keys())
        # Algorithm 3 keeps a network a cluster that the node is in; they are alike, and any one will do.
        prefix = min((name.partition("modules.")[0] for name in names if "modules." in name), default="") + "modules."
        shapes = {
            name.removeprefix(prefix): tuple(tensors.get_slice(name).get_shape())
            for name in names
            if name.startswith(prefix) and not name.endswith(BUFFERS)
        }
        # Heads are a method's own affair; where there are any, the encoder has a name of its own beside them.
        shapes = {name: shape for name, shape in shapes.items() if "encoder." in name} or shapes
        counts = tuple(tensors.get_tensor("m").tolist()) if "m" in names else ()
    return State(_total(shapes.values()), tuple(sorted(shapes.items())), counts)


def _total(shapes: Iterable[tuple[int, ...]]) -> int:
    return sum(math.prod(shape) for shape in shapes)


def _rebuilt(config: Config | None, nodes: Iterable[int]) -> dict[int, State]:
    """Build the encoders anew, without memory, where the shape of a sample is known without the data."""
    shape = _shape(config) if config else None
    if config is None or shape is None:
        return {}
    try:
        with torch.device("meta"):
            networks = [spec.network(shape, config.d) for spec in config.encoders]
    except (RatemeshError, RuntimeError):  # a plug-in may not fit, or may insist on real tensors
        return {}
    totals = [_total(tuple(p.shape) for p in network.parameters()) for network in networks]
    return {node: State(totals[node % len(totals)], node % len(totals)) for node in nodes}


def _shape(config: Config) -> tuple[int, ...] | None:
    settings = config.data.model_dump()
    if config.data.name == "subspaces":
        return (int(settings["ambient"]),)
    if settings.get("path") is not None:  # a file in the data set's place
        return None
    return KNOWN.get(table_for(config.data.name) or config.data.name, (None, 0))[0]


def _classes(run: Run, states: dict[int, State]) -> float:
    """Return K, from a checkpoint, the data set's name or settings, or the labels that were kept."""
    counts = [len(state.counts) for state in states.values() if state.counts]
    name = str(run.setting("data.name", ""))
    known = KNOWN.get(table_for(name) or name, ((), 0))[1] or number(run.setting("data.classes"))
    if counts:
        return counts[0]
    if run.setting("data.path") is not None or run.setting("data.coarse", False):
        known = math.nan
    if math.isfinite(known):
        return known
    return math.nan if run.features is None else int(run.features.y.max()) + 1


def _held(states: dict[int, State], node: int) -> float:
    """Return |K_i|; NaN when no checkpoint tells."""
    counts = states[node].counts if node in states else ()
    return sum(count > 0 for count in counts) if counts else math.nan


def _parameters(edges: list[Edge], states: dict[int, State], *, alike: bool) -> float:
    """Return bytes of parameters over all edges, both ways; NaN when a node's are not known."""
    if not {node for edge in edges for node in edge} <= states.keys():
        return math.nan
    pairs = [(states[i], states[j]) for i, j in edges]
    return FLOAT * sum(a.parameters + b.parameters for a, b in pairs if not alike or a.architecture == b.architecture)


def _unknown(degree: Counter[int], states: dict[int, State], size: float) -> Iterable[str]:
    """Say which numbers are lacking; `size` is NaN when K or d is."""
    if not degree.keys() <= states.keys():
        yield "the number of parameters is not known: no checkpoint is kept, and the encoders cannot be rebuilt."
    if not math.isfinite(size):
        yield "K or d is not known, so the formulas cannot be filled in."
    elif not all(math.isfinite(_held(states, node)) for node in degree):
        yield "which classes a node holds is not known without a checkpoint, so Remark 4 cannot be filled in."

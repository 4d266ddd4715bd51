"""A trained mesh as a folder: weights without optimiser state, statistics, class names, preparation; no pickle.

mesh.json               the card: all that is no tensor
README.md               the same for people
node-NNNN.safetensors   a node's encoder: weights, buffers and gauge
statistics.safetensors  every node's class statistics, by "NNNN."
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ratemesh._version import __version__
from ratemesh.core.stats import ClassStats, check_stats
from ratemesh.data import INTAKES, IntakeSpec, Samples
from ratemesh.encoders import ENCODERS, Encoder, EncoderSpec, OwnModule, rebuilt, recipe_of
from ratemesh.errors import InputError
from ratemesh.experiment.card import Card, NodeCard
from ratemesh.experiment.page import page_of
from ratemesh.experiment.plan import Plan
from ratemesh.experiment.storage import read_json, read_tensors, write_json, write_tensors, write_text
from ratemesh.messages.formats import Payload
from ratemesh.metrics.table import LABEL_AWARE, VALIDATION
from ratemesh.specs import build, resolve
from ratemesh.training.local import named, under

SCHEMA = 1
CARD, PAGE, STATISTICS = "mesh.json", "README.md", "statistics.safetensors"


@dataclass(frozen=True)
class SavedMesh:
    """A trained mesh, read from or written to a folder.

    Attributes:
        card: all that is no tensor.
        intake: how raw samples become what encoders take.
        encoders: every node's.
        stats: every node's class statistics.
    """

    card: Card
    intake: IntakeSpec
    encoders: Sequence[Encoder]
    stats: Sequence[ClassStats]

    def write(self, folder: Path) -> None:
        """Write all of it; the card comes last, so that a folder with a card is whole."""
        folder.mkdir(parents=True, exist_ok=True)
        for i, encoder in enumerate(self.encoders):
            write_tensors(folder / _file(i), {name: value.cpu() for name, value in encoder.state_dict().items()})
        write_all_but_encoders(folder, self.card, self.stats)


def write_all_but_encoders(folder: Path, card: Card, stats: Sequence[ClassStats]) -> None:
    """Write statistics, page and, last, the card."""
    tensors: dict[str, Tensor] = {}
    for i, s in enumerate(stats):
        tensors |= named(f"{i:04d}.", {"V": s.V, "mu": s.mu, "m": s.m})
    write_tensors(folder / STATISTICS, {name: value.cpu() for name, value in tensors.items()})
    write_text(folder / PAGE, page_of(card))
    write_json(folder / CARD, {"schema": SCHEMA, **card.model_dump(mode="json", exclude_none=True)})


def save_run(
    folder: Path,
    plan: Plan,
    stats: Sequence[ClassStats],
    weights: Sequence[Payload],
    metrics: Mapping[str, Any],
    only: int | None = None,
) -> None:
    """Write the mesh that a run has trained.

    Args:
        stats: every node's class statistics.
        weights: every node's encoder, as named tensors.
        only: the one node that these are of, where it is a site by itself.
        metrics: what the run came to; what was best on validation samples is how the mesh judges.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for i, tensors in enumerate(weights):
        write_tensors(folder / _file(i), tensors)
    write_all_but_encoders(folder, _card(plan, metrics, only), stats)


def _card(plan: Plan, metrics: Mapping[str, Any], only: int | None) -> Card:
    """Return the card of what a run has trained."""
    config, data = plan.config, plan.data
    rule = plan.rule
    return Card(
        version=__version__,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        d=config.d,
        classes=data.classes,
        numbers=all(_is_whole(name) for name in data.classes),
        intake=intake_of(data.intake, data.X_train).model_dump(mode="json", exclude_none=True),
        energy=rule.energy,
        rank=rule.rank,
        fusion=_best(metrics, FUSED if LABEL_AWARE not in metrics else {**FUSED, "energy": LABEL_AWARE}),
        alone=_best(metrics, ALONE),
        nodes=tuple(_node_card(plan, i) for i in (range(plan.topology.nodes) if only is None else [only])),
        edges=plan.topology.edges if only is None else (),
        method=config.method.label(plan.topology),
        metrics={key: value for key, value in metrics.items() if isinstance(value, int | float)},
    )


def _node_card(plan: Plan, i: int) -> NodeCard:
    """Return what is kept of a node; a network that was given as an object has a recipe, where one can be had."""
    spec = plan.config.encoder_of(i)
    two = plan.data.X_train[:2]
    return NodeCard(
        name=plan.config.name_of(i),
        encoder=spec.model_dump(mode="json", exclude_none=True),
        recipe=recipe_of(spec.network(plan.shape, plan.config.d), two) if isinstance(spec, OwnModule) else None,
        parameters=plan.parameters[i],
        samples=len(plan.parts[i]),
    )


def _file(i: int) -> str:
    return f"node-{i:04d}.safetensors"


def read_saved(folder: Path, networks: Sequence[nn.Module] | None = None) -> SavedMesh:
    """Read a saved mesh; nothing in it is executed.

    Args:
        folder: with a card.
        networks: a network a node, where they were given as objects whose classes cannot be made again; copies get the
            weights.
    """
    told = read_json(folder / CARD)
    if told.pop("schema", None) != SCHEMA:
        raise InputError(f"'{folder / CARD}' must have schema {SCHEMA}; it was written by another version.")
    card = build(Card, told, CARD)
    intake = resolve(card.intake, INTAKES, IntakeSpec, f"{CARD} intake")  # type: ignore[type-abstract]
    if networks is not None and len(networks) != len(card.nodes):
        raise InputError(f"networks must hold one a node, {len(card.nodes)}; got {len(networks)}.")
    encoders = []
    for i, node in enumerate(card.nodes):
        encoder = Encoder(networks[i] if networks else _network(node, intake.shape, card.d), card.d)
        _fill(encoder, folder / _file(i))
        encoders.append(encoder.eval())
    return SavedMesh(card, intake, encoders, _read_stats(folder / STATISTICS, card))


def _network(node: NodeCard, shape: tuple[int, ...], d: int) -> nn.Module:
    """Make a node's network, with weights that are yet to be filled in."""
    if node.recipe is not None:
        return rebuilt(node.recipe)
    spec = resolve(node.encoder, ENCODERS, EncoderSpec, f"{CARD} encoder")  # type: ignore[type-abstract]
    return spec.network(shape, d)


def _fill(encoder: Encoder, path: Path) -> None:
    try:
        encoder.load_state_dict(read_tensors(path))
    except RuntimeError as error:
        raise InputError(f"'{path}' must hold the weights of the network that the card names ({error}).") from None


def _read_stats(path: Path, card: Card) -> list[ClassStats]:
    tensors = read_tensors(path)
    found = []
    for i in range(len(card.nodes)):
        try:
            stats = ClassStats.from_tensors(under(f"{i:04d}.", tensors))
        except KeyError as error:
            raise InputError(f"'{path}' must hold statistics of node {i}; it lacks {error}.") from None
        check_stats(stats, f"statistics of node {i} in '{path}'")
        if (stats.num_classes, stats.d) != (len(card.classes), card.d):
            raise InputError(
                f"'{path}' must hold {len(card.classes)} classes in {card.d} dimensions, as the card says; got "
                f"{stats.num_classes} and {stats.d} of node {i}."
            )
        found.append(stats)
    return found


def intake_of(given: IntakeSpec | None, X: Tensor) -> IntakeSpec:
    """Return how raw samples become samples like X (m, ...): as the data say, else as they are."""
    if given is not None:
        return given
    return Samples(name="samples", shape=tuple(X.shape[1:]), dtype=str(X.dtype).removeprefix("torch."))


def _is_whole(name: str) -> bool:
    """Whether a name is a whole number as Python writes it."""
    return name.removeprefix("-").isdecimal() and str(int(name)) == name


FUSED = {"energy": "acc_energy", "average": "acc_average", "gaussian": "acc_gaussian"}
ALONE = {"energy": "acc_own", "gaussian": "acc_own_gaussian"}
"""By which metric a way of judging is chosen, for all nodes together and for one. Where nodes hold different labels,
residuals of a class are added over its holders only (`mesh.judging`), so energy goes by the label-aware one."""


def _best(metrics: Mapping[str, Any], ways: Mapping[str, str]) -> Any:
    """Return the way of judging that was best on validation samples; the first where nothing is known."""
    known = {way: value for way, key in ways.items() if (value := metrics.get(VALIDATION + key, math.nan)) >= 0}
    return max(known or dict.fromkeys(ways, 0.0), key=lambda way: known.get(way, 0.0))

"""What a user says of a node, and all nodes of a mesh brought into one form: data, partition and encoders of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ratemesh.data import Dataset
from ratemesh.data.objects import Labelled, all_classes, coded, labelled
from ratemesh.data.tables import Table
from ratemesh.encoders import EncoderSpec, OwnModule, check_width, width_of
from ratemesh.errors import InputError

Network = nn.Module | EncoderSpec | str | Mapping[str, Any]
WIDTH = 128
"""d where neither the user nor a network says it."""


@dataclass(frozen=True)
class Node:
    """A node of a mesh: its network and its data.

    Attributes:
        network: any `torch.nn.Module` from samples to d numbers, of which a copy is trained; or the name, table or
            object of a built-in encoder.
        X: samples: an array or tensor (m, ...), a pandas frame, a torch Dataset or DataLoader of pairs, or a Hugging
            Face data set.
        y: (m,) labels, numbers or words; of a frame or Hugging Face data set also the name of a column.
        eval: samples and labels that nobody trains on, in the same forms: a pair (X, y), or what holds both.
        name: what people call the node; its number unless given.
        device: where it trains, "auto", "cpu", "cuda", "cuda:1", "mps"; that of the mesh unless given.
    """

    network: Network
    X: Any
    y: Any = None
    eval: Any = None
    name: str | None = None
    device: str | None = None

    def samples(self, what: str) -> Labelled:
        """Return the training samples."""
        return labelled(self.X, self.y, what)

    def held_out(self, what: str) -> Labelled | None:
        """Return the samples that nobody trains on, if there are any."""
        if self.eval is None:
            return None
        if isinstance(self.eval, tuple | list) and len(self.eval) == 2:
            return labelled(self.eval[0], self.eval[1], what)
        return labelled(self.eval, self.y if isinstance(self.y, str) else None, what)

    @property
    def encoder(self) -> EncoderSpec | str | Mapping[str, Any]:
        """The network as a configuration names it."""
        return OwnModule.of(self.network) if isinstance(self.network, nn.Module) else self.network


@dataclass(frozen=True)
class Held:
    """What all nodes of a mesh hold.

    Attributes:
        data: everybody's samples, one node's after the other's; those for evaluation as the test part.
        sizes: training samples of every node.
        columns: names of a sample's numbers, where they came in frames.
    """

    data: Dataset
    sizes: tuple[int, ...]
    columns: tuple[str, ...] = ()


def names_of(nodes: Sequence[Node]) -> list[str]:
    """Return what nodes are called, all different."""
    names = [str(i) if node.name is None else node.name for i, node in enumerate(nodes)]
    if len(set(names)) < len(names):
        raise InputError(f"nodes must have different names; got {names}.")
    return names


def devices_of(nodes: Sequence[Node], shared: Any) -> Any:
    """Return where nodes train, as a configuration names it: where they say, or where all do."""
    if not any(node.device for node in nodes):
        return shared
    dealt = shared if isinstance(shared, list) else [shared]
    return [node.device or dealt[i % len(dealt)] for i, node in enumerate(nodes)]


def gathered(nodes: Sequence[Node], classes: Sequence[Any] | None) -> Held:
    """Return what all nodes hold, labels as places among the classes.

    Args:
        classes: labels in the order that is wanted, or names of labels 0..K-1; all that occur unless given.
    """
    names = [f"node '{name}'" for name in names_of(nodes)]
    parts = [node.samples(what) for node, what in zip(nodes, names, strict=True)]
    tests = [part for node, what in zip(nodes, names, strict=True) if (part := node.held_out(f"eval of {what}"))]
    _check_alike([*parts, *tests], names)
    known = all_classes([part.y for part in parts]) if classes is None else list(classes)
    if len(set(map(str, known))) < len(known) or len(known) < 2:
        raise InputError(f"classes must be at least two different labels; got {known}.")
    X_test, y_test = _joined(tests, known, "eval") if tests else (parts[0].X[:0], torch.zeros(0, dtype=torch.int64))
    data = Dataset(*_joined(parts, known, "y"), X_test, y_test, len(known), classes=tuple(map(str, known)))
    return Held(data, tuple(len(part.y) for part in parts), parts[0].columns)


def _joined(parts: Sequence[Labelled], classes: Sequence[Any], what: str) -> tuple[Tensor, Tensor]:
    return torch.cat([part.X for part in parts]), torch.cat([coded(part.y, classes, what) for part in parts])


def _check_alike(parts: Sequence[Labelled], names: Sequence[str]) -> None:
    """Refuse samples of different shapes or kinds: nodes must be able to look at the same sample."""
    first = parts[0]
    for part, name in zip(parts[1:], [*names[1:], *["eval"] * len(parts)], strict=False):
        if part.X.shape[1:] != first.X.shape[1:] or part.X.dtype != first.X.dtype:
            raise InputError(
                f"{name}: X must be like that of {names[0]}, {tuple(first.X.shape[1:])} {first.X.dtype}; got "
                f"{tuple(part.X.shape[1:])} {part.X.dtype}. Bring samples to one shape first."
            )
        if part.columns != first.columns:
            raise InputError(f"{name}: X must have the columns of {names[0]}, in one order; got {list(part.columns)}.")


def width(nodes: Sequence[Node], X: Tensor, d: int | None) -> int:
    """Return d: as given, or what the users' networks make of two samples X (2, ...).

    Every network is tried before anything is trained.
    """
    found = {
        name: width_of(node.network, X, f"node '{name}'")
        for name, node in zip(names_of(nodes), nodes, strict=True)
        if isinstance(node.network, nn.Module)
    }
    if d is None and len(set(found.values())) > 1:
        widths = ", ".join(f"node '{name}' {width}" for name, width in found.items())
        raise InputError(
            f"networks must give one number of features d; got {widths}. Give all a last layer of d outputs."
        )
    wanted = next(iter(found.values()), WIDTH) if d is None else d
    for name, got in found.items():
        check_width(got, wanted, f"node '{name}'")
    return wanted


def standardised(held: Held, standardise: bool) -> Held:
    """Return what nodes hold with an intake for rows by columns: those of a frame, or such as are to be standardised.

    Means and scales are of the training samples of all nodes.
    """
    data, columns = held.data, held.columns
    if not (standardise or columns):
        return held
    if data.X_train.ndim != 2:
        raise InputError(
            f"standardise must be False for samples that are no rows (m, p); got shape {tuple(data.X_train.shape)}. "
            "Standardise inside the network."
        )
    names = columns or tuple(str(i) for i in range(data.X_train.shape[1]))
    intake = Table.learned(data.X_train.double().numpy(), names, standardise, fill=False)
    X_train, X_test = (intake.prepare(X) if len(X) else X.float() for X in (data.X_train, data.X_test))
    return replace(held, data=replace(data, X_train=X_train, X_test=X_test, intake=intake))

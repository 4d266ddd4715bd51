"""One node of a mesh as one plain torch module: raw rows or samples in, unit features and classes out.

Nothing in here looks at values to decide what to do, so that exporters can follow it.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from ratemesh.core.gaussian import OwnGaussians
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceJudge
from ratemesh.data import IntakeSpec
from ratemesh.data.tables import Table
from ratemesh.encoders import Encoder
from ratemesh.encoders.encoder import as_float
from ratemesh.experiment.card import Card

ROUNDING = 1e-4
"""Standard deviations that a raw value may be off by as float32; columns that need more are taken as float64."""
FOLDED = 1e-4
"""What the features of a network with the gauge in its weights may differ by; else it is no such network."""


class Standardise(nn.Module):
    """Fill gaps, take off the mean and divide by the scale of every column: (m, p) raw rows to (m, p) float32."""

    mean: Tensor
    scale: Tensor
    fill: Tensor | None

    def __init__(self, table: Table) -> None:
        super().__init__()
        p = len(table.columns)
        held = {"mean": table.mean or [0.0] * p, "scale": table.scale or [1.0] * p, "fill": table.fill}
        for name, values in held.items():
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64) if values else None)
        rounding = float((self.mean.abs() / self.scale).max()) * torch.finfo(torch.float32).eps
        if rounding <= ROUNDING:
            self.float()

    @property
    def dtype(self) -> torch.dtype:
        """What raw rows must be, so that standardising them loses nothing that matters."""
        return self.mean.dtype

    def forward(self, X: Tensor) -> Tensor:
        """Return rows as the network takes them."""
        if self.fill is not None:
            X = torch.where(torch.isnan(X), self.fill, X)
        return ((X - self.mean) / self.scale).float()


class Subspaces(nn.Module):
    """Minus squared residuals to every class's subspace: (m, d) features to (m, K) scores."""

    mu: Tensor
    axes: Tensor
    held: Tensor

    def __init__(self, stats: ClassStats, card: Card) -> None:
        super().__init__()
        judge = SubspaceJudge("energy", rule=card.rule).fit_stats(stats)
        self.register_buffer("mu", stats.mu.float())
        axes = judge.directions.float()
        self.register_buffer("axes", axes if axes.shape[-1] else torch.zeros(*axes.shape[:-1], 1))  # nearest mean
        self.register_buffer("held", stats.held)

    def forward(self, Z: Tensor) -> Tensor:
        """Return scores, −∞ for classes that the node does not hold."""
        inside = torch.einsum("md,kdr->mkr", Z, self.axes) - torch.einsum("kd,kdr->kr", self.mu, self.axes)
        apart = Z.square().sum(-1, keepdim=True) - 2 * Z @ self.mu.mT + self.mu.square().sum(-1)
        return (inside.square().sum(-1) - apart).masked_fill(~self.held, -torch.inf)


class Gaussians(nn.Module):
    """Log-likelihoods under Gaussians of the node's classes, up to a constant: (m, d) to (m, K) scores."""

    directions: Tensor
    offsets: Tensor
    held: Tensor

    def __init__(self, stats: ClassStats) -> None:
        super().__init__()
        directions, offsets = OwnGaussians().fit([stats]).discriminants[0]
        self.register_buffer("directions", directions.float())
        self.register_buffer("offsets", offsets.float())
        self.register_buffer("held", stats.held)

    def forward(self, Z: Tensor) -> Tensor:
        """Return scores, −∞ for classes that the node does not hold."""
        return (Z @ self.directions - self.offsets).masked_fill(~self.held, -torch.inf)


class Whole(nn.Module):
    """Everything that a node does with a sample: preparation, network, unit length, gauge and, if wanted, classes.

    Returns features (m, d), or features, scores (m, K) and the places of the best classes (m,).
    """

    gauge: Tensor | None

    def __init__(
        self, network: nn.Module, gauge: Tensor | None, prepare: Standardise | None, classifier: nn.Module | None
    ) -> None:
        super().__init__()
        self.prepare = prepare
        self.network = network
        self.register_buffer("gauge", gauge)
        self.classifier = classifier

    def forward(self, X: Tensor) -> Any:
        """Encode, and judge."""
        Z = normalize(self.network(as_float(X if self.prepare is None else self.prepare(X))), dim=1)
        if self.gauge is not None:
            Z = Z @ self.gauge.mT
        if self.classifier is None:
            return Z
        scores = self.classifier(Z)
        return Z, scores, scores.argmax(-1)


@dataclass(frozen=True)
class Raw:
    """What goes into a whole node.

    Attributes:
        shape: of a sample.
        dtype: of the samples.
        table: whose columns they are, where they are raw rows of a table.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    table: Table | None = None

    def draw(self, m: int, seed: int = 0) -> Tensor:
        """Return m random samples: pixels, rows about as far apart as the training rows, or standard normal.

        Other integers are 0 or 1: they may be places in an embedding of unknown size.
        """
        generator = torch.Generator().manual_seed(seed)
        if not self.dtype.is_floating_point:
            most = 256 if self.dtype == torch.uint8 else 2
            return torch.randint(0, most, (m, *self.shape), generator=generator, dtype=self.dtype)
        X = torch.randn(m, *self.shape, generator=generator, dtype=torch.float64)
        if self.table and self.table.mean:
            X = X * torch.tensor(self.table.scale, dtype=X.dtype) + torch.tensor(self.table.mean, dtype=X.dtype)
        if self.table and self.table.fill:
            X[torch.rand(X.shape, generator=generator) < 0.1] = torch.nan
        return X.to(self.dtype)


def whole(encoder: Encoder, intake: IntakeSpec, stats: ClassStats | None, card: Card) -> tuple[Whole, Raw]:
    """Return a node as one module in eval mode, and what goes into it.

    Args:
        stats: the node's class statistics, if it shall classify too.
    """
    prepare = Standardise(intake) if isinstance(intake, Table) else None
    if prepare is not None and isinstance(intake, Table):
        raw = Raw(intake.shape, prepare.dtype, intake)
    else:
        raw = Raw(intake.shape, getattr(torch, getattr(intake, "dtype", "float32")))
    classifier = None
    if stats is not None:
        classifier = Gaussians(stats) if card.alone == "gaussian" else Subspaces(stats, card)
    inner = Raw(intake.shape, torch.float32 if prepare else raw.dtype)
    network = folded(encoder, inner.draw(7))
    gauge = encoder.gauge.clone() if network is None else None
    made = Whole(network or deepcopy(encoder.network), gauge, prepare, classifier)
    return made.cpu().eval().requires_grad_(False), raw


@torch.no_grad()
def folded(encoder: Encoder, X: Tensor) -> nn.Module | None:
    """Return a copy of the network with the gauge in its last linear layer; None where it does not end in one.

    A turn commutes with unit length. Which layer is the last is found out by letting samples X (m, ...) through; that
    nothing else changed, by comparing.
    """
    network = deepcopy(encoder.network).cpu().eval()
    seen: list[tuple[nn.Linear, Tensor]] = []
    layers = [layer for layer in network.modules() if type(layer) is nn.Linear]  # not one whose weights are computed
    hooks = [layer.register_forward_hook(lambda layer, _, Z: seen.append((layer, Z))) for layer in layers]
    out = network(as_float(X))
    for hook in hooks:
        hook.remove()
    last = next((layer for layer, Z in reversed(seen) if Z is out), None)
    if last is None:
        return None
    gauge = encoder.gauge.cpu()
    last.weight.copy_(gauge @ last.weight)
    if last.bias is not None:
        last.bias.copy_(gauge @ last.bias)
    apart = normalize(network(as_float(X)), dim=1) - encoder(X.to(encoder.gauge.device)).cpu()
    return network if float(apart.abs().max()) < FOLDED else None

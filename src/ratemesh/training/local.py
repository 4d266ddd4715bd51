"""The only training loop: a method passes an objective, never a loop of its own."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Generator, Tensor, nn

from ratemesh.core.checks import check_features, check_labels, deviation, is_unit
from ratemesh.core.sketch import check_sketch
from ratemesh.core.stats import ClassStats
from ratemesh.data.augment import AugmentSpec
from ratemesh.devices import CPU, device_of, moved
from ratemesh.errors import InputError, NonFiniteError, NonFiniteFeaturesError
from ratemesh.seeds import generator, seeded
from ratemesh.specs import Spec
from ratemesh.training.optimizers import MUON_LR, Name, make_optimizers

Objective = Callable[[Tensor, Tensor], Tensor]
"""Samples (n, ...) and labels (n,) of a batch to the scalar to minimise."""

ENCODE_BATCH = 128
"""Rows per pass when the whole shard is encoded; small enough for the caches, see benchmarks/RESULTS.md."""


class LocalSpec(Spec):
    """Local training of a round, the same for every method."""

    epochs: int = Field(1, ge=0, description="local epochs a round (the paper's T', in epochs)")
    batch_size: int = Field(100, ge=2, description="rows of a mini-batch; cut to the shard's size")
    optimizer: Name = Field("adam", description="adam (paper), muon: orthogonalised momentum, faster on images; or sgd")
    lr: float = Field(1e-3, gt=0, description=f"learning rate η; with muon {MUON_LR} unless given")
    weight_decay: float = Field(1e-5, ge=0, description="L2 penalty inside the optimiser")
    schedule: Literal["constant", "cosine"] = Field("cosine", description="of the learning rate, over the rounds")
    lr_final: float = Field(0.05, ge=0, le=1, description="cosine: part of lr that is left when the last round is over")
    decay_rounds: int = Field(0, ge=0, description="cosine: rounds that the decay takes; 0 is all of the run's")
    balance: bool = Field(False, description="draw and weigh every class held equally; rare samples come again")
    augment: AugmentSpec = AugmentSpec()

    @model_validator(mode="before")
    @classmethod
    def _rate(cls, given: Any) -> Any:
        """Adam's usual rate is no rate for steps of a fixed length."""
        muon = isinstance(given, dict) and given.get("optimizer") == "muon"
        return {"lr": MUON_LR, **given} if muon else given

    def over(self, rounds: int) -> "LocalSpec":
        """Return the settings for a run of so many rounds: the decay takes all of them unless told otherwise."""
        return self.model_copy(update={"decay_rounds": self.decay_rounds or rounds})

    def lr_at(self, t: int) -> float:
        """Return the learning rate of round t, counted from 1; it depends on t only, so resuming is exact."""
        if self.schedule == "constant" or not self.decay_rounds:  # outside a run its length is not known
            return self.lr
        passed = min(max(t - 1, 0) / self.decay_rounds, 1.0)  # round 0 is a warm start
        return self.lr * (self.lr_final + (1 - self.lr_final) * (1 + math.cos(math.pi * passed)) / 2)

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse samples of a shape that these settings cannot train on."""
        self.augment.check(shape, "local.augment")

    def check_balance(self, counts: Tensor, where: str = "local.batch_size") -> None:
        """Refuse batches that cannot be balanced at some node; counts (N, K) are samples per node and class."""
        if self.balance:
            check_room(self.batch_size, int((counts > 0).sum(1).max()), where)


@dataclass(eq=False)
class LocalTrainer:
    """Mini-batch training on one node's shard; keeps the optimisers between rounds.

    Samples stay on the CPU. A batch moves once to where the modules are, and nothing in a step waits for that device.

    Args:
        modules: what is trained, e.g. the encoder, or encoder and head.
        node: whose shard it is, for random draws and messages.
        purpose: tells this trainer's random draws from the node's others.
        views: how often a batch's samples stand in what the objective is given, one block after the other, each
            augmented on its own.
    """

    modules: nn.Module
    local: LocalSpec
    seed: int
    node: int
    purpose: str
    views: int = 1

    def __post_init__(self) -> None:
        local = self.local
        self.device = device_of(self.modules)
        self.optimizers = make_optimizers(self.modules, local.optimizer, local.lr, local.weight_decay)
        self.sample_passes = 0

    def train(
        self, X: Tensor, y: Tensor, objective: Objective, t: int, after_step: Callable[[], None] = lambda: None
    ) -> float:
        """Minimise `objective` for the local epochs of round t; return its mean over the steps, NaN without any.

        Args:
            after_step: called after every step, e.g. to let a target network follow.
        """
        self.local.check(tuple(X.shape[1:]))
        self.modules.train()
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = group["share"] * self.local.lr_at(t)
        place = (self.seed, "train", self.node, self.purpose, t)
        changes = generator(*place, "augment")
        losses, seen = [], []
        with seeded(*place, "dropout", device=self.device):
            for rows in batches(y, self.local, generator(*place, "batches")):
                self.modules.zero_grad(set_to_none=True)
                batch, labels = self._shown(X, y, rows, changes)
                loss = objective(batch, labels)
                losses.append(loss.detach())
                seen.append(rows)
                if self.device == CPU and not math.isfinite(loss.item()):  # a look costs nothing here
                    raise self._lost(loss.item(), batch, labels, t)
                loss.backward()
                for optimizer in self.optimizers.values():
                    optimizer.step()
                self.sample_passes += len(rows)
                after_step()
        found = torch.stack(losses).flatten().tolist() if losses else []
        for loss, rows in zip(found, seen, strict=True):
            if not math.isfinite(loss):
                raise self._lost(loss, moved(X[rows], self.device), y[rows], t)
        return sum(found) / len(found) if found else math.nan

    def _shown(self, X: Tensor, y: Tensor, rows: Tensor, changes: Generator) -> tuple[Tensor, Tensor]:
        """Return samples and labels of a batch on the device, in every view, augmented there."""
        batch, labels = moved(X[rows], self.device), moved(y[rows], self.device)
        if self.views > 1:
            batch, labels = batch.repeat(self.views, *[1] * (batch.ndim - 1)), labels.repeat(self.views)
        if self.local.augment.enabled:
            batch = self.local.augment.apply(batch, changes)
        return batch, labels

    @torch.no_grad()
    def stats(
        self, encoder: nn.Module, X: Tensor, y: Tensor, num_classes: int, t: int, H: Tensor | None = None
    ) -> ClassStats:
        """Return the statistics of the whole shard after round t, streamed, encoder in eval mode.

        Raises:
            NonFiniteError: says where the numbers were lost.
        """
        encoder.eval()
        check_labels(y, len(X), num_classes)
        if H is not None:
            check_sketch(H, len(y))
        worst: list[Tensor] = []

        def parts() -> Iterator[ClassStats]:
            sketches = [None] * len(y) if H is None else H.split(ENCODE_BATCH)
            for part, labels, h in zip(X.split(ENCODE_BATCH), y.split(ENCODE_BATCH), sketches, strict=False):
                Z = encoder(moved(part, self.device))
                worst.append(deviation(Z))
                sketch = None if h is None else moved(h, self.device)
                yield ClassStats.unchecked(Z, moved(labels, self.device), num_classes, sketch)

        found = ClassStats.sum(parts())
        if not is_unit(torch.stack(worst).max(), found.V.dtype):
            self._find_bad(encoder, X, y, num_classes, t)
        return found

    def _find_bad(self, encoder: nn.Module, X: Tensor, y: Tensor, num_classes: int, t: int) -> None:
        """Raise for the first features that are no unit vectors."""
        for part, labels in zip(X.split(ENCODE_BATCH), y.split(ENCODE_BATCH), strict=True):
            try:
                check_features(encoder(moved(part, self.device)).cpu(), labels, num_classes)
            except NonFiniteFeaturesError as lost:
                raise self._error("features", math.nan, lost.label, t) from None

    def _lost(self, loss: float, X: Tensor, y: Tensor, t: int) -> NonFiniteError:
        """Find the class whose features are no longer numbers."""
        with torch.no_grad():
            finite = torch.isfinite(self.modules(X)).flatten(1).all(1).cpu()
        y = y.cpu()
        label = int(y.mode().values if finite.all() else y[~finite][0])
        return self._error("loss", loss, label, t)

    def _error(self, what: str, value: float, label: int, t: int) -> NonFiniteError:
        when = f"in round {t}" if t else "at the start of round 1"  # a warm start, or untrained features
        return NonFiniteError(
            f"{what} of node {self.node} must be finite; got {value} {when}, class {label}. The last good "
            f"checkpoint is kept. Lower local.lr (now {self.local.lr:g}), or raise local.batch_size."
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Return weights, buffers and optimiser moments as named tensors."""
        moments = {
            f"{kind}.{index}.{name}": value
            for kind, optimizer in self.optimizers.items()
            for index, entry in optimizer.state_dict()["state"].items()
            for name, value in entry.items()
        }
        return {
            **named("modules.", self.modules.state_dict()),
            **moments,
            "sample_passes": torch.tensor(self.sample_passes),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from `state`."""
        self.modules.load_state_dict(under("modules.", state))
        for kind, optimizer in self.optimizers.items():
            moments: dict[int, dict[str, Tensor]] = {}
            for name, value in under(f"{kind}.", state).items():
                index, field = name.split(".")
                moments.setdefault(int(index), {})[field] = value
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.sample_passes = int(state["sample_passes"])


def named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with a prefix before their names, as a state holds several sets of them."""
    return {prefix + name: value for name, value in tensors.items()}


def under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a state whose names have this prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


@torch.no_grad()
def encode(encoder: nn.Module, X: Tensor, batch: int = ENCODE_BATCH) -> Tensor:
    """Return the features (m, d) of all samples, on the CPU; encoder in eval mode, where it is.

    Args:
        batch: samples that are on the encoder's device at a time.
    """
    encoder.eval()
    device = device_of(encoder)
    return torch.cat([encoder(moved(part, device)) for part in X.split(batch)]).cpu()


def check_room(batch_size: int, classes: int, where: str = "batch_size") -> None:
    """Refuse a batch that has no row for each of a node's classes; `where` is the setting to name."""
    fewest = max(2, classes)
    if batch_size < fewest:
        raise InputError(
            f"{where} must leave room for every class in a balanced batch; got {batch_size} for a node with {classes} "
            f"classes. Take at least {fewest}, or set local.balance = false."
        )


def batches(y: Tensor, local: LocalSpec, draw: Generator) -> Iterator[Tensor]:
    """Yield shuffled index batches of all epochs, equal in size to within one row a class: no tiny last batch.

    With `local.balance` they have equally many rows of every class in `y`: an epoch goes once through the largest
    class; samples of rarer classes come again, all as often as each other to within once, shuffled anew every time. So
    an epoch has K_held · max_k m_k rows, not m. Otherwise all samples count as one class.

    Args:
        y: (m,) labels of the node's samples; classes without samples do not count.
    """
    if len(y) == 0:
        raise InputError("y must hold labels to make batches of; got none. Give the node data.")
    kinds = y if local.balance else torch.zeros_like(y)
    classes = [torch.nonzero(kinds == k).flatten() for k in torch.unique(kinds)]
    check_room(local.batch_size, len(classes))
    most = max(len(rows) for rows in classes)
    parts = -(-most // (local.batch_size // len(classes)))
    parts = max(1, min(parts, most * len(classes) // 2))  # no batch of one row
    for _ in range(local.epochs):
        columns = [_repeated(rows, most, draw).tensor_split(parts) for rows in classes]
        yield from (torch.cat(pieces) for pieces in zip(*columns, strict=True))


def _repeated(rows: Tensor, length: int, draw: Generator) -> Tensor:
    """Return so many of `rows`: whole shuffles one after the other, the last one cut."""
    shuffles = [rows[torch.randperm(len(rows), generator=draw)] for _ in range(-(-length // len(rows)))]
    return torch.cat(shuffles)[:length]

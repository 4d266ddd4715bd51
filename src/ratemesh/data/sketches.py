"""Sketches: fixed functions h of a sample, drawn from the run's seed, so that all nodes know the same one.

What a node says of its features' covariance with a sketch (`core.sketch`) ties down what varies inside a class. A
sketch need not be a good feature: its coordinates must vary inside classes, and no constant in it may come from one
node's data. So every sample is brought to mean 0 and variance 1 by itself, which also makes a sketch of images blind to
brightness and contrast, and values end in −1..1, from which bounds on legal messages follow.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, conv2d

from ratemesh.data.pixels import as_float
from ratemesh.devices import CPU, moved
from ratemesh.errors import InputError
from ratemesh.seeds import generator
from ratemesh.specs import NamedSpec, resolve

BATCH = 1000
"""Samples that are sketched at once."""

Sketch = Callable[[Any], Tensor]
"""Takes samples (m, ...), returns (m, p), entries in −1..1."""


class SketchSpec(NamedSpec):
    """Settings of a sketch."""

    kind: ClassVar[str] = "sketch"
    p: int = Field(48, ge=2, le=4096, multiple_of=2, description="numbers of a sketch; a class sends d·p/2 bytes")

    @abstractmethod
    def build(self, shape: tuple[int, ...], seed: int) -> Sketch:
        """Draw the sketch of samples of this shape."""


class Auto(SketchSpec):
    """Convolutions for images of at least 3×3, n-grams for texts, Fourier features for all else."""

    def fitting(self, shape: tuple[int, ...]) -> SketchSpec:
        """Return what fits samples of this shape; texts have none, ()."""
        image = len(shape) == 3 and min(shape[1:]) >= 3
        cls = Convolutions if image else Fourier if shape else Ngrams
        return cls(name=cls.__name__.lower(), p=self.p)

    def build(self, shape: tuple[int, ...], seed: int) -> Sketch:
        """Draw what fits the shape."""
        return self.fitting(shape).build(shape, seed)


class Convolutions(SketchSpec):
    """For images: random filters, rectified, averaged over a grid of places, projected to p numbers, bounded."""

    filters: int = Field(64, ge=1, le=4096, description="random filters, 5×5, or 3×3 where a side is under 16 pixels")
    grid: int = Field(4, ge=1, le=64, description="places along each side over which a filter's answers are averaged")

    def build(self, shape: tuple[int, ...], seed: int) -> Sketch:
        """Draw filters and projection."""
        if len(shape) != 3 or min(shape[1:]) < 3:
            raise InputError(
                f"sketch 'convolutions' must be given images of at least 3×3; got samples of shape {shape}, read as "
                "(channels, height, width). Use 'fourier' for vectors."
            )
        draw, side = generator(seed, "sketch", "convolutions"), 3 if min(shape[1:]) < 16 else 5
        W = torch.randn(self.filters, shape[0], side, side, generator=draw)
        W = (W - W.mean((1, 2, 3), keepdim=True)) / (shape[0] * side**2) ** 0.5
        drawn = Drawn(W, _projection(self.p, self.filters * self.grid**2, draw))

        def sketch(X: Tensor) -> Tensor:
            W, A = drawn.on(X.device)
            answers = conv2d(_standard(as_float(X).float()), W).relu()
            return torch.tanh(_standard(adaptive_avg_pool2d(answers, self.grid).flatten(1)) @ A)

        return _in_batches(sketch, shape)


class Fourier(SketchSpec):
    """For vectors: cosines of random projections; `scale` says over which distances samples differ."""

    scale: float | None = Field(
        None,
        gt=0,
        description="divide samples by this; left out: every sample is standardised by itself",
    )

    def build(self, shape: tuple[int, ...], seed: int) -> Sketch:
        """Draw directions and phases."""
        draw, size = generator(seed, "sketch", "fourier"), math.prod(shape)
        A = _projection(self.p, size, draw) if self.scale is None else torch.randn(size, self.p, generator=draw)
        drawn = Drawn(A, 2 * math.pi * torch.rand(self.p, generator=draw))

        def sketch(X: Tensor) -> Tensor:
            A, phase = drawn.on(X.device)
            flat = as_float(X).float().flatten(1)
            return torch.cos((_standard(flat) if self.scale is None else flat / self.scale) @ A + phase)

        return _in_batches(sketch, shape)


class Ngrams(SketchSpec):
    """For texts: counts of hashed runs of characters, projected to p numbers, bounded."""

    longest: int = Field(3, ge=1, le=8, description="most characters of a run")

    def build(self, shape: tuple[int, ...], seed: int) -> Sketch:  # noqa: ARG002 - texts have no shape
        """Draw the projection of the hashed counts."""
        from sklearn.feature_extraction.text import HashingVectorizer  # slow to import, and only needed here

        counts = HashingVectorizer(analyzer="char_wb", ngram_range=(1, self.longest), n_features=2**12)
        # Counts come with length 1, so a projection has variance 1 without further scaling.
        A = torch.randn(2**12, self.p, generator=generator(seed, "sketch", "ngrams")).numpy()

        def sketch(texts: Sequence[str]) -> Tensor:
            return torch.tanh(torch.from_numpy(counts.transform(texts) @ A).float())

        return sketch


SKETCHES: dict[str, type[SketchSpec]] = {
    "auto": Auto,
    "convolutions": Convolutions,
    "fourier": Fourier,
    "ngrams": Ngrams,
}


def sketch_at(where: str) -> Any:
    """Return a validator that turns a name or a table at this key into the sketch it stands for; "auto" has no name."""
    base: type[NamedSpec] = SketchSpec

    def resolved(table: object) -> NamedSpec:
        named = {"name": "auto", **table} if isinstance(table, Mapping) else table
        return resolve(named, SKETCHES, base, where)

    return BeforeValidator(resolved)


AUTO = Auto(name="auto")

SketchField = Annotated[SerializeAsAny[SketchSpec], sketch_at("method.sketch")]
"""The type of a setting that names a sketch: a name or a table."""


class Drawn:
    """What a sketch has drawn, copied once to every device that samples come on."""

    def __init__(self, *tensors: Tensor) -> None:
        self._copies = {CPU: tensors}

    def on(self, device: torch.device) -> tuple[Tensor, ...]:
        """Return the tensors on a device."""
        if device not in self._copies:
            self._copies[device] = tuple(moved(x, device) for x in self._copies[CPU])
        return self._copies[device]


def _projection(p: int, size: int, draw: torch.Generator) -> Tensor:
    """Draw A (size, p) that takes entries of variance 1 to entries of variance 1."""
    A: Tensor = torch.randn(size, p, generator=draw) / size**0.5
    return A


def _standard(X: Tensor) -> Tensor:
    """Bring every sample (m, ...) to mean 0 and variance 1 by itself; a constant one to 0."""
    flat = X.flatten(1)
    centred = flat - flat.mean(1, keepdim=True)
    scaled: Tensor = centred / centred.std(1, keepdim=True, correction=0).clamp(min=1e-6)
    return scaled.view_as(X)


def _in_batches(sketch: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Sketch:
    """Return the sketch of any number of samples, which must have this shape."""

    @torch.no_grad()
    def sketched(X: Tensor) -> Tensor:
        if tuple(X.shape[1:]) != shape:
            raise InputError(f"samples must have shape {shape} for this sketch; got {tuple(X.shape[1:])}.")
        return torch.cat([sketch(part) for part in X.split(BATCH)])

    return sketched

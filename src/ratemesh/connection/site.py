"""What a site says of its encoder: class statistics of centred features, and how they were made."""

import warnings
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, SerializeAsAny
from torch import Tensor
from torch.nn.functional import normalize

from ratemesh.core.checks import check_finite, to_tensor
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import directions_holding, principal_axes
from ratemesh.data.arrays import as_labels
from ratemesh.data.features import Samples, features_of, samples_of, words_of
from ratemesh.data.sketches import AUTO, SKETCHES, Auto, SketchSpec, sketch_at
from ratemesh.errors import InputError, RatemeshWarning
from ratemesh.specs import NamedSpec, Spec, resolve

FEWEST = 2
"""Samples of a class that statistics can be made of: the mean of one would be that sample's features."""

TIED = 1e-3
"""Part of the strongest direction of sketch moments and means below which another says nothing."""


class SketchUse(Spec):
    """Which sketch of samples was taken: two sites' sketch moments are of one kind only if all of this is equal."""

    spec: Annotated[SerializeAsAny[SketchSpec], sketch_at("sketch")]
    seed: int = Field(ge=0)
    shape: tuple[int, ...]

    def __str__(self) -> str:
        settings = ", ".join(f"{key} = {value}" for key, value in self.spec.model_dump(exclude={"name"}).items())
        return f"{self.spec.name} ({settings}), seed {self.seed}, samples of shape {self.shape}"


@dataclass(frozen=True, eq=False)
class SiteStatistics:
    """Class statistics of one site's features, centred and brought to unit length: z ← (z − μ̄)/‖z − μ̄‖.

    Encoders of other makers put their features about a mean that has nothing to say, and at any length; μ̄, the mean of
    the site's class means, takes that out, whatever the proportions of its classes.

    Attributes:
        name: the site's.
        classes: names of its K classes, by which sites are matched.
        stats: V (K, d, d), μ (K, d), m (K,), and sketch moments where samples were given.
        offset: (d,) μ̄.
        sketch: which sketch; None where there are no sketch moments.
        sent: the file that all this was read from, if it was.
    """

    name: str
    classes: tuple[str, ...]
    stats: ClassStats
    offset: Tensor
    sketch: SketchUse | None = None
    sent: bytes | None = field(default=None, repr=False)

    @property
    def d(self) -> int:
        """Dimension of the features."""
        return self.stats.d

    @property
    def samples(self) -> int:
        """How many samples the statistics are of."""
        return int(self.stats.m.sum())

    def centred(self, Z: Any) -> Tensor:
        """Return features (m, d) as the statistics have them: less the offset, at unit length."""
        Z = to_tensor(Z, "Z").to(self.offset.dtype)
        if Z.ndim != 2 or Z.shape[1] != self.d:
            raise InputError(f"Z must have shape (m, {self.d}), features of '{self.name}'; got {tuple(Z.shape)}.")
        check_finite(Z, "Z")
        return normalize(Z - self.offset, dim=1)

    @classmethod
    def of(
        cls,
        Z: Any,
        y: Any,
        *,
        X: Any = None,
        name: str = "site",
        sketch: str | dict[str, Any] | SketchSpec | None = AUTO,
        seed: int = 0,
    ) -> "SiteStatistics":
        """Compute what a site sends of features and, for sketch moments, samples.

        Args:
            Z: (m, d) features of training samples, of any length.
            y: (m,) labels, whole numbers or words.
            X: the samples: images (m, H, W), (m, C, H, W) or (m, H, W, C), vectors (m, p) or texts; None: no sketch.
            name: the site's name.
            sketch: name or settings of a sketch, the same at all sites; None takes none.
            seed: that the sketch is drawn from, the same at all sites.
        """
        features = features_of(np.asarray(Z), f"features of '{name}'")
        codes, classes = as_labels(words_of(np.asarray(y), len(features), f"labels of '{name}'"), f"labels of '{name}'")
        labels = torch.from_numpy(codes)
        _check_counts(labels, classes, name)
        means = ClassStats.of(features, labels, len(classes), unit=False).mu
        offset = means.mean(0)
        centred = features - offset
        still = centred.norm(dim=1) <= features.norm(dim=1).max() * 1e-6
        if bool(still.any()):
            raise InputError(
                f"features of '{name}' must differ from their mean; row {int(still.nonzero()[0])} does not. Look for a "
                "collapsed encoder."
            )
        use, H = _sketched(X, sketch, seed, len(features), name)
        stats = ClassStats.of(normalize(centred, dim=1), labels, len(classes), H=H)
        return cls(name, classes, stats, offset, use)._looked_at()

    def _looked_at(self) -> "SiteStatistics":
        """Return the site, without sketch moments that say nothing; warn where they say too little."""
        if self.stats.sketch is None:
            return self
        C = self.stats.sketch.C.transpose(0, 1).flatten(1)  # (d, K·p)
        if float(C.norm()) <= 1e-6:
            warnings.warn(
                f"'{self.name}': the sketch is the same for all samples of a class, so its moments say nothing and "
                "are left out. Look at the samples, or take another sketch.",
                RatemeshWarning,
                stacklevel=3,
            )
            plain = ClassStats(self.stats.V, self.stats.mu, self.stats.m)
            return SiteStatistics(self.name, self.classes, plain, self.offset)
        strengths = torch.linalg.svdvals(torch.cat([C, self.stats.mu.mT], dim=1))
        tied = int((strengths > TIED * strengths[0]).sum())
        needed = int(directions_holding(0.95, principal_axes(self.stats.mixture())[0]))
        if tied < needed:
            warnings.warn(
                f"'{self.name}': sketch moments and means tie down {tied} directions, features vary in {needed}; the "
                f"rest is matched by second moments alone. Raise p = {self.stats.sketch.p}, at all sites.",
                RatemeshWarning,
                stacklevel=3,
            )
        return self


def _check_counts(labels: Tensor, classes: tuple[str, ...], name: str) -> None:
    """Require two samples of every class."""
    counts = torch.bincount(labels, minlength=len(classes))
    if int(counts.min()) < FEWEST:
        k = int(counts.argmin())
        raise InputError(
            f"features of '{name}' must be at least {FEWEST} of every class; class '{classes[k]}' has "
            f"{int(counts[k])}. Leave the class out, or add samples."
        )


def _sketched(X: Any, sketch: Any, seed: int, rows: int, name: str) -> tuple[SketchUse | None, Tensor | None]:
    """Return which sketch of the samples is taken, and the sketch (m, p)."""
    if X is None or sketch is None:
        return None, None
    texts = isinstance(X, list | tuple) and all(isinstance(text, str) for text in X)
    samples: Samples = X if texts else samples_of(np.asarray(X), f"samples of '{name}'")
    if len(samples) != rows:
        raise InputError(f"samples of '{name}' must be one a feature, {rows}; got {len(samples)}.")
    shape = tuple(samples.shape[1:]) if isinstance(samples, Tensor) else ()
    base: type[NamedSpec] = SketchSpec
    spec = resolve(sketch, SKETCHES, base, "sketch")
    spec = spec.fitting(shape) if isinstance(spec, Auto) else spec
    if (spec.name == "ngrams") != (shape == ()):
        kind = f"numbers of shape {shape}" if shape else "texts"
        raise InputError(f"sketch '{spec.name}' does not fit samples of '{name}', {kind}. Use 'auto'.")
    use = SketchUse(spec=spec, seed=seed, shape=shape)
    return use, use.spec.build(shape, seed)(samples)

"""A connection: one map a site into a common space, and the classifier there."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ratemesh.connection.files import read_site, write_site
from ratemesh.connection.site import SiteStatistics
from ratemesh.core.connect import connect as connect_stats
from ratemesh.core.connect import join, padded
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceJudge
from ratemesh.data.files import Array
from ratemesh.errors import InputError, RatemeshWarning
from ratemesh.experiment.storage import read_json, read_tensors, write_json, write_tensors
from ratemesh.specs import nearest

SCHEMA = 1
CONNECTION, MAPS, CLASSIFIER, SITES = "connection.json", "maps.safetensors", "classifier.safetensors", "sites"


@dataclass(frozen=True, eq=False)
class Connection:
    """Sites in one space: W_i (D, d_i) with orthonormal columns takes site i's centred features there.

    Attributes:
        sites: what each site said of its encoder.
        maps: W_i of each.
        classes: all classes that any site holds, in the order in which they came.

    >>> draw = torch.Generator().manual_seed(0)
    >>> Z = torch.randn(60, 8, generator=draw) + 3 * torch.eye(8)[torch.arange(60) % 3]
    >>> turn = torch.linalg.qr(torch.randn(8, 8, generator=draw))[0]
    >>> here, there = (SiteStatistics.of(A, torch.arange(60) % 3, name=n) for A, n in ((Z, "a"), (Z @ turn, "b")))
    >>> mesh = connect([here, there])
    >>> (mesh.predict("a", Z) == mesh.predict("b", Z @ turn, judge="a")).mean() > 0.9
    np.True_
    """

    sites: tuple[SiteStatistics, ...]
    maps: tuple[Tensor, ...]
    classes: tuple[str, ...]

    @property
    def dimensions(self) -> int:
        """D, of the common space."""
        return self.maps[0].shape[0]

    @cached_property
    def turned(self) -> list[ClassStats]:
        """Every site's statistics in the common space, over all classes."""
        square = [torch.cat([W, _complement(W)], dim=1) for W in self.maps]
        return [
            padded(s, self.dimensions).rotated(Q)
            for s, Q in zip(_spread(self.sites, self.classes), square, strict=True)
        ]

    @cached_property
    def stats(self) -> ClassStats:
        """Statistics of all sites together, in the common space."""
        return ClassStats.sum(self.turned)

    @cached_property
    def _rules(self) -> dict[int | None, SubspaceJudge]:
        return {}

    def rule(self, judge: int | str | None = None) -> SubspaceJudge:
        """Return the classifier of one site's own statistics, or of all sites' together."""
        j = None if judge is None else self.index(judge)
        if j not in self._rules:
            self._rules[j] = SubspaceJudge().fit_stats(self.stats if j is None else self.turned[j])
        return self._rules[j]

    def index(self, site: int | str) -> int:
        """Return a site's number, by its number or name."""
        names = [known.name for known in self.sites]
        if isinstance(site, str) and site in names:
            return names.index(site)
        if isinstance(site, str) or not 0 <= site < len(names):
            raise InputError(f"site must be one of the connection's; got {site!r}. {nearest(str(site), names)}")
        return site

    def encode(self, site: int | str, Z: Any) -> Tensor:
        """Return features (m, d_i) of a site's encoder in the common space, (m, D), of unit length."""
        i = self.index(site)
        return self.sites[i].centred(Z) @ self.maps[i].mT

    def predict(self, site: int | str, Z: Any, *, judge: int | str | None = None) -> Array:
        """Return class names (m,) of features (m, d_i) of a site, by all sites' statistics, or by the judge's alone."""
        names: Array = np.array(self.classes)[self.rule(judge).predict(self.encode(site, Z)).numpy()]
        return names

    def join(self, newcomer: SiteStatistics) -> "Connection":
        """Return the connection with one site more; nobody else is turned.

        Classes that nobody had are appended. If the newcomer is wider than the common space, this grows: features of
        the others get zeros appended.
        """
        _check([*self.sites, newcomer])
        classes = _all_classes([*self.sites, newcomer])
        shared = set(newcomer.classes) & set(self.classes)
        if not shared:
            raise InputError(
                f"'{newcomer.name}' must share a class with the connection; it holds {', '.join(newcomer.classes)}, "
                f"the connection {', '.join(self.classes)}. Classes are matched by name: check the spelling of labels."
            )
        pool = _widened(self.stats, list(range(len(self.classes))), len(classes))
        W = join(_spread([newcomer], classes)[0], pool)
        maps = tuple(pad(M, (0, 0, 0, W.shape[0] - self.dimensions)) for M in self.maps)
        return Connection((*self.sites, newcomer), (*maps, W), classes)

    def save(self, folder: str | Path, **numbers: Any) -> None:
        """Write maps, classifier and sites into a folder; `numbers` go into connection.json, too."""
        folder = Path(folder)
        (folder / SITES).mkdir(parents=True, exist_ok=True)
        names = [f"{i:03d}.safetensors" for i in range(len(self.sites))]
        for site, name in zip(self.sites, names, strict=True):
            write_site(folder / SITES / name, site)
        maps = {f"map.{i}": W for i, W in enumerate(self.maps)}
        write_tensors(folder / MAPS, {**maps, **{f"offset.{i}": s.offset for i, s in enumerate(self.sites)}})
        write_tensors(folder / CLASSIFIER, self.stats.tensors())
        about = [
            {"name": s.name, "file": f"{SITES}/{name}", "d": s.d, "samples": s.samples, "classes": list(s.classes)}
            | {"sketch": str(s.sketch) if s.sketch else None}
            for s, name in zip(self.sites, names, strict=True)
        ]
        found = {"schema": SCHEMA, "D": self.dimensions, "classes": list(self.classes), "sites": about, **numbers}
        write_json(folder / CONNECTION, found)

    @classmethod
    def load(cls, folder: str | Path) -> "Connection":
        """Open what `save` wrote; every file is checked."""
        folder = Path(folder)
        about = read_json(folder / CONNECTION)
        if about.get("schema") != SCHEMA or not isinstance(about.get("sites"), list):
            raise InputError(f"'{folder / CONNECTION}' must be of schema {SCHEMA}; got {about.get('schema')!r}.")
        sites = [read_site(folder / SITES / f"{i:03d}.safetensors") for i in range(len(about["sites"]))]
        _check(sites)
        tensors = read_tensors(folder / MAPS)
        maps = [tensors.get(f"map.{i}", torch.zeros(0, 0)) for i in range(len(sites))]
        for site, W in zip(sites, maps, strict=True):
            fits = W.shape == (maps[0].shape[0], site.d) and W.dtype == torch.float32
            if not fits or not bool((W.mT @ W - torch.eye(site.d)).abs().max() < 1e-3):
                raise InputError(
                    f"'{folder / MAPS}' must hold a map of '{site.name}', orthonormal columns of {site.d} features; it "
                    "does not. Connect the sites again."
                )
        return cls(tuple(sites), tuple(maps), _all_classes(sites))


def connect(sites: Sequence[SiteStatistics], *, means: float = 1.0, sketch: float = 10.0) -> Connection:
    """Connect encoders that were trained apart, by what their sites say of them; classes are matched by name.

    Args:
        sites: at least two, linked by shared classes.
        means: weight of class means.
        sketch: weight of sketch moments, where sites have them.
    """
    _check(sites)
    classes = _all_classes(sites)
    found = connect_stats(
        _spread(sites, classes), means=means, sketch=sketch, names=[f"'{site.name}'" for site in sites]
    )
    return Connection(tuple(sites), tuple(found.maps), classes)


def _check(sites: Sequence[SiteStatistics]) -> None:
    """Require names of their own, and one sketch; warn where only some sites have sketch moments."""
    names = [site.name for site in sites]
    if len(set(names)) < len(names):
        raise InputError(f"sites must have names of their own; got {names}. Rename them, e.g. with --name.")
    uses = {site.name: site.sketch for site in sites if site.sketch}
    first = next(iter(uses), "")
    for name, use in uses.items():
        if use != uses[first]:
            raise InputError(
                f"sites must use one sketch; '{first}' has {uses[first]}, '{name}' has {use}. Compute statistics again "
                "with one sketch, p and seed, of samples of one shape."
            )
    if uses and (without := [site.name for site in sites if not site.sketch]):
        warnings.warn(
            f"{', '.join(without)} sent no sketch moments: what varies inside classes is matched there by second "
            "moments alone. Give samples (x_train), too.",
            RatemeshWarning,
            stacklevel=3,
        )


def _all_classes(sites: Sequence[SiteStatistics]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for site in sites for name in site.classes))


def _spread(sites: Sequence[SiteStatistics], classes: Sequence[str]) -> list[ClassStats]:
    """Return every site's statistics over all classes, zeros for those that it does not hold."""
    place = {name: k for k, name in enumerate(classes)}
    return [_widened(site.stats, [place[name] for name in site.classes], len(classes)) for site in sites]


def _widened(stats: ClassStats, places: Sequence[int], num_classes: int) -> ClassStats:
    rows = torch.tensor(places)
    return ClassStats.from_tensors(
        {
            key: value.new_zeros(num_classes, *value.shape[1:]).index_copy(0, rows, value)
            for key, value in stats.tensors().items()
        }
    )


def _complement(W: Tensor) -> Tensor:
    """Return orthonormal columns (D, D − d) that are orthogonal to those of W (D, d)."""
    U: Tensor = torch.linalg.svd(W)[0]
    return U[:, W.shape[1] :]

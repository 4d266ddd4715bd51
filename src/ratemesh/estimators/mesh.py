"""A mesh as scikit-learn's estimators are: one site's view of it, or all sites' together."""

import math
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from ratemesh.core.stats import ClassStats
from ratemesh.data.files import Array
from ratemesh.encoders import EncoderSpec
from ratemesh.encoders.encoder import as_float
from ratemesh.errors import InputError, RatemeshWarning
from ratemesh.mesh.judging import judge_of
from ratemesh.mesh.loading import load
from ratemesh.mesh.mesh import Mesh
from ratemesh.mesh.node import Network, Node
from ratemesh.training.local import encode

SMALL: Network = {"name": "mlp", "hidden": (64, 64)}
"""The network of every site where none is given."""


class MeshEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """What both estimators share: training a mesh on rows of a table, and one site's view of it.

    Training computes in float32. What is asked later is computed in float64, so that a row's answer does not depend on
    the rows that are asked with it.
    """

    def __init__(
        self,
        network: Network | Sequence[Network] | None = None,
        *,
        nodes: int = 1,
        graph: Any = "ring",
        site: int | str | None = None,
        rounds: int | None = 24,
        d: int | None = None,
        shape: tuple[int, ...] | None = None,
        validation: float | None = None,
        settings: Mapping[str, Any] | None = None,
        random_state: Any = None,
    ) -> None:
        self.network = network
        self.nodes = nodes
        self.graph = graph
        self.site = site
        self.rounds = rounds
        self.d = d
        self.shape = shape
        self.validation = validation
        self.settings = settings
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def fit(self, X: Any, y: Any, sites: Any = None) -> Self:
        """Train a mesh on rows (m, p) with labels (m,).

        Args:
            sites: (m,) the name of the site that holds a row; left out: `nodes` sites get equal shares of every class.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError("y must hold at least two classes to tell apart; got 1 class. Check the labels.")
        draw = check_random_state(self.random_state)
        held = self._dealt(codes, draw) if sites is None else _by_name(sites, len(y))
        samples = self._shaped(X)
        networks = self._networks(len(held))
        nodes = [
            Node(network, samples[rows], codes[rows], name=name)
            for network, (name, rows) in zip(networks, held.items(), strict=True)
        ]
        settings = {"seed": int(draw.randint(2**31 - 1)), **(self.settings or {})}
        with warnings.catch_warnings():
            if sites is None:  # what the theory says of how rows were dealt is no news to who did not deal them
                warnings.simplefilter("ignore", RatemeshWarning)
            mesh = Mesh(nodes, self.graph, list(range(len(self.classes_))), d=self.d, **settings)
            mesh.fit(self.rounds, validation=self.validation, progress=False)
        self._raw = False
        self._see(Mesh.of(mesh.saved))
        self._index: NearestNeighbors | None = NearestNeighbors().fit(self._look(samples).mean(0).numpy())
        return self

    @classmethod
    def from_mesh(cls, mesh: Mesh | str | Path, site: int | str | None = None) -> Self:
        """Return a fitted estimator: one site's view of a trained mesh, or all sites' together.

        It takes raw samples as the mesh does. A mesh keeps no samples, so call `index` before `kneighbors`.

        Args:
            mesh: a trained one, or the folder of a saved one or of a run.
            site: number or name; None is all sites together.
        """
        mesh = mesh if isinstance(mesh, Mesh) else load(mesh)
        found = cls(site=site)
        found.classes_, found.n_features_in_ = mesh.classes, math.prod(mesh.saved.intake.shape)
        found._raw, found._index = True, None
        return found._see(mesh)

    def index(self, X: Any) -> Self:
        """Look for neighbours among these samples from now on; `fit` does so with those of the training."""
        self._index = NearestNeighbors().fit(self._encoded(X))
        return self

    def kneighbors(
        self, X: Any = None, n_neighbors: int = 5, return_distance: bool = True, *, features: Any = None
    ) -> Any:
        """Return distances and row numbers (m, n_neighbors) of the nearest samples, by features in the common space.

        Args:
            X: samples (m, p); left out: those that are looked among, each without itself.
            return_distance: whether to return distances, too; else only row numbers.
            features: (m, d) instead of samples: any site's, as its `MeshEncoder.transform` has made them.
        """
        check_is_fitted(self, "mesh_")
        if self._index is None:
            raise InputError("kneighbors needs samples to look among; a saved mesh has none. Call index(X) first.")
        rows = self._encoded(X) if features is None and X is not None else features
        return self._index.kneighbors(rows, n_neighbors, return_distance)

    def score_samples(self, X: Any) -> Array:
        """Return minus the smallest residual to a class's subspace, (m,): lower where a sample is like no class.

        Of several sites' views the residuals are added. How well it tells samples of no known class:
        experiments/RESULTS.md.
        """
        Z = self._views(X)
        judge = judge_of(self._seen_stats, len(Z), self.mesh_.saved.card.rule, "energy")
        found: Array = judge(Z).amax(-1).numpy()
        return found

    def _see(self, mesh: Mesh) -> Self:
        """Take over the view of a site, or of all."""
        saved = mesh.saved
        places = range(len(saved.encoders)) if self.site is None else [mesh.place(self.site)]
        self._seen = [deepcopy(saved.encoders[i]).cpu().double() for i in places]
        self._seen_stats = [_double(saved.stats[i]) for i in places]
        self._n_features_out = saved.card.d
        self.mesh_ = mesh
        return self

    def _views(self, X: Any) -> Tensor:
        """Return features (N, m, d) of samples, as all sites see them, or (1, m, d) as one does."""
        check_is_fitted(self, "mesh_")
        return self._look(X if self._raw else self._shaped(validate_data(self, X, reset=False, dtype=np.float64)))

    def _look(self, samples: Any) -> Tensor:
        """Return features (N, m, d) of raw samples as the mesh takes them."""
        prepared = as_float(self.mesh_.saved.intake.prepare(samples)).double()
        return torch.stack([encode(encoder, prepared) for encoder in self._seen])

    def _encoded(self, X: Any) -> Array:
        """Return features (m, d), averaged where several sites look."""
        found: Array = self._views(X).mean(0).numpy()
        return found

    def _shaped(self, X: Array) -> Array:
        """Return rows (m, p) as the networks take them."""
        if self.shape is None:
            return X.astype(np.float32)
        if math.prod(self.shape) != X.shape[1]:
            raise InputError(f"shape must hold the {X.shape[1]} features of a row; got {self.shape}.")
        return X.astype(np.float32).reshape(-1, *self.shape)

    def _networks(self, sites: int) -> list[Network]:
        """Return a network a site; several are dealt out in turn."""
        given = SMALL if self.network is None else self.network
        kinds = [given] if isinstance(given, nn.Module | EncoderSpec | str | Mapping) else list(given)
        if not kinds:
            raise InputError("network must hold at least one network; it is empty. None takes a small one.")
        return [kinds[i % len(kinds)] for i in range(sites)]

    def _dealt(self, codes: Array, draw: Any) -> dict[str, Array]:
        """Deal rows out: equal shares of every class to within one row, sites named by their numbers."""
        if self.nodes < 1 or 2 * self.nodes > len(codes):
            raise InputError(
                f"nodes must leave at least two rows a site; got {self.nodes} for {len(codes)} rows. Take fewer."
            )
        shuffled = draw.permutation(len(codes))
        by_class = shuffled[np.argsort(codes[shuffled], kind="stable")]
        return {str(i): np.sort(by_class[i :: self.nodes]) for i in range(self.nodes)}


class MeshClassifier(ClassifierMixin, MeshEstimator):  # type: ignore[misc]
    """Classify rows of a table by a mesh of sites that share class statistics, and neither rows nor weights.

    There is no `predict_proba`: residuals have no scale that would make them probabilities; `CalibratedClassifierCV`
    measures one. Rows want one scale a column, e.g. by `StandardScaler` in a pipeline.

    Args:
        network: of every site: a `torch.nn.Module` from samples to d numbers, or the name, table or object of a
            built-in encoder; a list of them is dealt out in turn. None: a small fully connected one.
        nodes: sites that rows are dealt out to, unless `fit` is told whose each row is.
        graph: who talks to whom, as for `Mesh`.
        site: whose features and statistics answer, by number or name; None fuses all sites'.
        rounds: of communication.
        d: dimension of the common space; that of the networks unless given, else 128.
        shape: of a sample as the networks take it, e.g. (1, 8, 8); left out: rows as they are.
        validation: part of every site's rows held out to choose how to judge, as for `Mesh.fit`.
        settings: any other setting of a configuration, e.g. {"method": {"cross_entropy": 10}}.
        random_state: seed of every random draw.

    Attributes:
        classes_: (K,) the labels, sorted.
        mesh_: the trained mesh, `ratemesh.Mesh`; `mesh_.save` keeps it.
        n_features_in_: p.
        feature_names_in_: (p,) names of the columns, where they had names.
    """

    def decision_function(self, X: Any) -> Array:
        """Return how well every class fits, (m, K); of two classes (m,), the second one's minus the first one's."""
        found = self._scores(X)
        return found[:, 1] - found[:, 0] if len(self.classes_) == 2 else found

    def predict(self, X: Any) -> Array:
        """Return labels (m,)."""
        found: Array = self._scores(X).argmax(-1)
        return self.classes_[found]

    def _scores(self, X: Any) -> Array:
        """Return (m, K), higher for classes that fit better, by the way of judging that the mesh has chosen."""
        Z, card = self._views(X), self.mesh_.saved.card
        way = card.fusion if self.site is None else card.alone
        found: Array = judge_of(self._seen_stats, len(Z), card.rule, way)(Z).numpy()
        return found


class MeshEncoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, MeshEstimator):  # type: ignore[misc]
    """Turn rows of a table into features of a space that all sites of a mesh share.

    Features (m, d) have unit length where one `site` looks, and are averaged where all do. Arguments and attributes are
    those of `MeshClassifier`.
    """

    def transform(self, X: Any) -> Array:
        """Return features (m, d) in the common space."""
        return self._encoded(X)


def _by_name(sites: Any, rows: int) -> dict[str, Array]:
    """Return the rows of every site, by its name."""
    names = np.asarray(sites)
    if names.shape != (rows,):
        raise InputError(f"sites must name a site a row, shape ({rows},); got shape {names.shape}.")
    found = {str(name): np.flatnonzero(names == name) for name in np.unique(names)}
    if lonely := [name for name, held in found.items() if len(held) < 2]:
        raise InputError(f"sites must have at least two rows each; {', '.join(lonely)} has one. Join sites.")
    return found


def _double(stats: ClassStats) -> ClassStats:
    """Return V, means and counts in float64, on the CPU: not every device has it."""
    V, mu, m = (part.cpu().double() for part in (stats.V, stats.mu, stats.m))
    return ClassStats(V, mu, m)

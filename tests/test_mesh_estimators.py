"""A mesh as scikit-learn's estimators: their contract, sites and views, retrieval, and views of saved meshes."""

import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks
from torch import nn

import ratemesh as rm
from ratemesh import MeshClassifier, MeshEncoder
from ratemesh.data.files import Array
from ratemesh.errors import InputError, RatemeshWarning

FLOWERS = load_iris()
X = StandardScaler().fit_transform(FLOWERS.data)
Y = FLOWERS.target_names[FLOWERS.target]
SITES = np.array(["north", "south", "west"])[np.arange(len(X)) % 3]
FEW = {"rounds": 4, "d": 16}


@parametrize_with_checks([MeshClassifier(**FEW), MeshEncoder(nodes=2, **FEW)])
def test_scikit_learns_own_checks(estimator: object, check: object) -> None:
    check(estimator)  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [MeshClassifier(), MeshEncoder(), MeshClassifier(nodes=2, site=1)], ids=str)
def test_scikit_learns_own_checks_with_defaults(estimator: object) -> None:
    check_estimator(estimator, on_skip=None)


@pytest.fixture(scope="module")
def three() -> MeshClassifier:
    """A mesh of three sites with networks of their own."""
    networks = ["mlp", {"name": "mlp", "hidden": (32,)}]
    return MeshClassifier(networks, rounds=10, d=24, random_state=0).fit(X, Y, sites=SITES)


def test_words_come_back(three: MeshClassifier) -> None:
    assert three.classes_.tolist() == sorted(FLOWERS.target_names)
    assert three.score(X, Y) > 0.9
    assert [card.name for card in three.mesh_.saved.card.nodes] == ["north", "south", "west"]
    assert [card.samples for card in three.mesh_.saved.card.nodes] == [50, 50, 50]
    assert [card.encoder["hidden"] for card in three.mesh_.saved.card.nodes] == [[256, 256], [32], [256, 256]]


def test_answers_are_the_meshs(three: MeshClassifier) -> None:
    labels, found = three.mesh_.predict(X, return_scores=True)
    assert (three.classes_[labels] == three.predict(X)).mean() > 0.99
    assert np.allclose(three.decision_function(X), found, rtol=1e-3, atol=1e-4), "but for float32"
    one = MeshClassifier.from_mesh(three.mesh_, "south")
    assert np.allclose(one.decision_function(X), three.mesh_.predict(X, "south", return_scores=True)[1], atol=1e-4)
    assert not np.allclose(one.decision_function(X), three.decision_function(X), atol=1e-2)


def test_a_site_sees_by_its_own_features(three: MeshClassifier) -> None:
    views = [MeshEncoder.from_mesh(three.mesh_, site).transform(X) for site in ("north", 1, "west", None)]
    assert np.allclose(np.linalg.norm(views[0], axis=1), 1)
    assert np.allclose(np.mean(views[:3], axis=0), views[3])
    assert np.abs(views[0] - views[1]).max() > 0.01


def test_the_same_seed_gives_the_same_answers() -> None:
    found = [MeshEncoder(nodes=2, random_state=seed, **FEW).fit_transform(X, Y) for seed in (3, 3, 4)]
    assert np.array_equal(found[0], found[1])
    assert not np.allclose(found[0], found[2])


def test_a_table_goes_through_a_pipeline() -> None:
    frame = pd.DataFrame(FLOWERS.data, columns=FLOWERS.feature_names)
    pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), MeshClassifier(**FEW, random_state=0))
    pipeline.fit(frame, Y, meshclassifier__sites=SITES)
    assert pipeline[-1].feature_names_in_.tolist() == FLOWERS.feature_names
    assert len(pipeline[-1].mesh_.encoders) == 3
    assert cross_val_score(clone(pipeline), frame, Y, cv=3).mean() > 0.85
    again = pickle.loads(pickle.dumps(pipeline))
    assert (again.predict(frame) == pipeline.predict(frame)).all()


def test_settings_are_searched() -> None:
    search = GridSearchCV(MeshClassifier(rounds=2, random_state=0), {"d": [4, 16]}, cv=2).fit(X, Y)
    assert search.best_estimator_.mesh_.saved.card.d == search.best_params_["d"]


def test_features_serve_what_comes_after() -> None:
    encoder = MeshEncoder(random_state=0, **FEW)
    assert cross_val_score(make_pipeline(encoder, KNeighborsClassifier()), X, Y, cv=3).mean() > 0.85
    assert encoder.fit(X, Y).get_feature_names_out().tolist()[:2] == ["meshencoder0", "meshencoder1"]
    assert encoder.set_output(transform="pandas").transform(X).shape == (len(X), 16)


def test_neighbours_by_samples_and_by_anothers_features(three: MeshClassifier) -> None:
    north, south = (MeshEncoder.from_mesh(three.mesh_, site) for site in ("north", "south"))
    with pytest.raises(InputError, match="Call index"):
        north.kneighbors(X)
    distances, rows = north.index(X).kneighbors(X, n_neighbors=3)
    assert distances.shape == rows.shape == (len(X), 3)
    assert np.allclose(distances[:, 0], 0, atol=1e-6)
    asked = north.kneighbors(features=south.transform(X), n_neighbors=1, return_distance=False)[:, 0]
    assert (Y[asked] == Y).mean() > 0.8, "what one site says, another understands"
    assert (three.kneighbors(n_neighbors=1, return_distance=False)[:, 0] != np.arange(len(X))).all()


def test_strangers_score_lower() -> None:
    images, digits = load_digits(return_X_y=True)
    known = digits < 8
    fitted = MeshClassifier(random_state=0, rounds=15).fit(images[known][:900] / 16, digits[known][:900])
    asked = np.r_[np.flatnonzero(known)[900:], np.flatnonzero(~known)]
    assert roc_auc_score(known[asked], fitted.score_samples(images[asked] / 16)) > 0.9


def test_a_saved_mesh_answers_as_an_estimator(three: MeshClassifier, tmp_path: Path) -> None:
    folder = three.mesh_.save(tmp_path / "flowers")
    again = MeshClassifier.from_mesh(folder, "north")
    assert np.allclose(again.decision_function(X), MeshClassifier.from_mesh(three.mesh_, "north").decision_function(X))
    assert again.n_features_in_ == 4
    assert again.get_params()["site"] == "north"


def own_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 12))


def test_own_networks_and_shapes() -> None:
    images, digits = load_digits(return_X_y=True)
    network = own_network()
    fitted = MeshClassifier(network, shape=(1, 8, 8), rounds=6, random_state=0).fit(images / 16, digits)
    assert fitted.mesh_.saved.card.d == 12
    assert fitted.score(images / 16, digits) > 0.8
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), own_network().parameters(), strict=True))
    with pytest.raises(InputError, match=r"shape must hold the 64 features of a row; got \(8, 9\)"):
        MeshClassifier(shape=(8, 9)).fit(images, digits)


def test_settings_reach_the_run() -> None:
    settings = {"method": {"cross_entropy": 10}, "local": {"optimizer": "muon"}}
    assert MeshClassifier(settings=settings, random_state=0, **FEW).fit(X, Y).score(X, Y) > 0.9
    with pytest.raises(InputError, match=r"methodd is not a setting"):
        MeshClassifier(settings={"methodd": 1}, **FEW).fit(X, Y)


def test_who_names_sites_hears_what_the_theory_says_of_them() -> None:
    uneven = np.where(Y == "setosa", "north", SITES)
    with pytest.warns(RatemeshWarning, match="Assumption 1 does not hold"):
        MeshClassifier(**FEW).fit(X, Y, sites=uneven)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MeshClassifier(nodes=4, **FEW).fit(X[:33], Y[:33] + SITES[:33])


@pytest.mark.parametrize(
    ("options", "sites", "words"),
    [
        ({"nodes": 76}, None, "nodes must leave at least two rows a site; got 76 for 150 rows"),
        ({"nodes": 0}, None, "nodes must leave"),
        ({"network": []}, None, "network must hold at least one"),
        ({}, SITES[1:], r"sites must name a site a row, shape \(150,\); got shape \(149,\)"),
        ({}, np.r_[SITES[1:], ["east"]], "sites must have at least two rows each; east has one"),
        ({"site": "east"}, SITES, "node must be a number in 0..2 or a name; got 'east'"),
    ],
)
def test_refusals(options: dict[str, object], sites: Array | None, words: str) -> None:
    with pytest.raises(InputError, match=words):
        MeshClassifier(**{**FEW, "rounds": 1, **options}).fit(X, Y, sites=sites)  # type: ignore[arg-type]


def test_the_example_of_the_documentation_runs() -> None:
    text = (Path(rm.__file__).parents[2] / "docs" / "estimators.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    found: dict[str, Any] = {}
    exec(code, found)
    assert found["together"] > 0.94
    assert found["alone"] > 0.9
    assert found["understood"] > 0.85
    assert found["doubt"]


def test_both_are_there_by_name() -> None:
    assert rm.MeshClassifier is MeshClassifier
    assert {"MeshClassifier", "MeshEncoder", "NearestSubspace"} <= set(rm.__all__)

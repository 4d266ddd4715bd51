"""What is said of pairs of sites: who judges, who searches, what is confused."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ratemesh.connection import understood
from ratemesh.connection.connection import Connection, connect
from ratemesh.connection.understood import understanding
from ratemesh.core.subspace import SubspaceJudge
from ratemesh.data.features import Labelled
from toy_sites_apart import Law, site


@pytest.fixture(scope="module")
def law() -> Law:
    return Law()


@pytest.fixture(scope="module")
def mesh(law: Law) -> Connection:
    return connect([site(law, 0), site(law, 1, classes=(0, 1, 2)), site(law, 2)])


def test_pairs_are_judged_on_classes_that_both_hold(law: Law, mesh: Connection) -> None:
    X, y = law.samples(120)
    found = understanding(mesh, [Labelled(law.encoder(0)(X), y), None, Labelled(law.encoder(2)(X), y)])
    pairs = {(pair["speaker"], pair["judge"]): pair for pair in found["pairs"]}
    assert pairs["site-0", "site-2"]["samples"] == 120
    assert pairs["site-0", "site-1"]["samples"] == 90
    # By hand: the judge's own statistics, turned by its map, and nothing else.
    judge = mesh.sites[1]
    turned = SubspaceJudge().fit_stats(judge.stats.rotated(mesh.maps[1]))
    Z = mesh.sites[0].centred(law.encoder(0)(X)) @ mesh.maps[0].T
    both = y != "fox"
    expected = (np.array(judge.classes)[turned.predict(Z)] == y)[both].mean()
    assert pairs["site-0", "site-1"]["accuracy"] == pytest.approx(expected)
    assert "accuracy" not in pairs["site-1", "site-0"]
    across = [pairs[ends]["accuracy"] for ends in pairs if ends[0] != ends[1] and ends[0] != "site-1"]
    assert found["summary"]["acc_cross"] == pytest.approx(np.mean(across))
    assert found["summary"]["acc_cross_worst"] == min(across)


def test_a_class_that_a_site_never_held_is_judged_by_all(law: Law, mesh: Connection) -> None:
    X, y = law.samples(120)
    found = understanding(mesh, [None, Labelled(law.encoder(1)(X), y), None])["speakers"]
    assert [(row["site"], row["new"]) for row in found] == [("site-1", 30)]
    heard = mesh.predict(1, law.encoder(1)(X))
    assert found[0]["joint_new"] == pytest.approx((heard == y)[y == "fox"].mean())


def test_the_nearest_sample_is_searched_among_others_than_those_that_ask(law: Law, mesh: Connection) -> None:
    """Two sites with the same held-out samples: labels that nothing but the sample itself decides are not found."""
    X, y = law.samples(400)
    draw = np.random.default_rng(0)
    said = [Labelled(law.encoder(i)(X), y, draw.integers(0, 2, 400).astype(str)) for i in (0, 2)]
    same = [Labelled(part.Z, part.words, said[0].fine) for part in said]
    found = understanding(mesh, [same[0], None, same[1]])["summary"]
    assert found["retrieval_cross"] > 0.95
    assert 0.3 < found["retrieval_cross_fine"] < 0.7


@given(st.lists(st.sampled_from("abcde"), min_size=1, max_size=60), st.integers(1, 8))
def test_every_class_is_searched_and_asks_by_turns(words: list[str], most: int) -> None:
    array = np.array(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(understood, "MOST", most)
        searched, asking = understood._by_turns(array)
        assert max(len(searched), len(asking)) <= most
        patch.setattr(understood, "MOST", 1000)
        searched, asking = understood._by_turns(array)
    assert sorted([*searched, *asking]) == list(range(len(words)))
    for word in set(words):
        assert (array[searched] == word).sum() - (array[asking] == word).sum() in (0, 1)


def test_confusions_are_parts_of_what_was_said() -> None:
    said = np.array(["a"] * 10 + ["b"] * 4)
    heard = np.array(["a"] * 7 + ["b"] * 3 + ["b"] * 3 + ["c"])
    assert understood._confusions(said, heard) == [
        {"said": "a", "heard": "b", "part": 0.3},
        {"said": "b", "heard": "c", "part": 0.25},
    ]
    assert understood._confusions(said, said) == []


def test_without_held_out_features_only_means_are_compared(mesh: Connection) -> None:
    found = understanding(mesh, [None] * 3)
    assert math.isnan(found["summary"]["acc_cross"])
    assert found["summary"]["class_cosine"] > 0.9
    assert len(found["pairs"]) == 6
    a, b = (mesh.turned[i].mu for i in (0, 2))
    by_hand = torch.nn.functional.cosine_similarity(a, b).mean().item()
    pair = next(p for p in found["pairs"] if (p["speaker"], p["judge"]) == ("site-0", "site-2"))
    assert pair["class_cosine"] == pytest.approx(by_hand)

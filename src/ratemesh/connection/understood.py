"""How well the sites of a connection understand each other: site j judges and searches what site i says.

Both on held-out samples of classes that both sites hold. Accuracies are by nearest subspace, fitted to the judge's own
statistics alone. Retrieval is the part of samples whose nearest neighbour at the other site is of their class; in every
class samples are searched and ask by turns, so that sites that hold the same samples do not find them by themselves.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from ratemesh.connection.connection import Connection
from ratemesh.data.features import Labelled
from ratemesh.data.files import Array

MOST = 2000
"""Held-out samples of a site that are searched or ask: retrieval takes time in proportion to their square."""

SHOWN = 5
"""Confusions of a pair that are listed, the most frequent first."""


def understanding(connection: Connection, held_out: Sequence[Labelled | None]) -> dict[str, Any]:
    """Return the numbers of every pair, of every site, and their means, as connection.json has them.

    Args:
        held_out: held-out features of every site; None for one that sent statistics only: it judges.
    """
    said = [None if part is None else connection.encode(i, part.Z) for i, part in enumerate(held_out)]
    pairs = [
        _pair(connection, i, j, held_out, said)
        for i in range(len(connection.sites))
        for j in range(len(connection.sites))
        if held_out[i] is not None or i != j
    ]
    sites = [_alone(connection, i, part) for i, part in enumerate(held_out) if part is not None]
    return {"summary": _summary(pairs, sites), "speakers": sites, "pairs": pairs}


def _pair(
    connection: Connection, i: int, j: int, held_out: Sequence[Labelled | None], said: Sequence[Tensor | None]
) -> dict[str, Any]:
    """Return what site j makes of what site i says."""
    speaker, judge, here, there = connection.sites[i], connection.sites[j], held_out[i], held_out[j]
    found: dict[str, Any] = {
        "speaker": speaker.name,
        "judge": judge.name,
        "class_cosine": _class_cosine(connection, i, j),
    }
    if here is None:
        return found
    shared = np.isin(here.words, sorted({*speaker.classes} & {*judge.classes}))
    heard = connection.predict(i, here.Z, judge=j)
    found |= {"samples": int(shared.sum()), "accuracy": _part(heard[shared] == here.words[shared])}
    found["confusions"] = _confusions(here.words[shared], heard[shared])
    Z, gallery = said[i], said[j]
    if there is None or Z is None or gallery is None:
        return found
    asking, searched = _by_turns(here.words)[1], _by_turns(there.words)[0]
    asking = asking[shared[asking]]
    near = searched[(Z[asking] @ gallery[searched].mT).argmax(1).numpy()]
    for key in ("words", "fine"):
        wanted, labels = getattr(here, key), getattr(there, key)
        if wanted is not None and labels is not None:
            found["retrieval" if key == "words" else "retrieval_fine"] = _part(labels[near] == wanted[asking])
    return found


def _by_turns(words: Array) -> tuple[Array, Array]:
    """Return places of samples to be searched and of samples that ask, at most `MOST` of each, evenly over classes."""
    codes = np.unique(words, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    turn = (np.arange(len(order)) - np.searchsorted(ordered, ordered)) % 2
    searched, asking = order[turn == 0], order[turn == 1]
    return searched[:: 1 + len(searched) // MOST], asking[:: 1 + len(asking) // MOST]


def _alone(connection: Connection, i: int, part: Labelled) -> dict[str, Any]:
    """Return how all sites' statistics together judge what site i says, and that of it which i has no statistics of."""
    site = connection.sites[i]
    right = connection.predict(i, part.Z) == part.words
    known = np.isin(part.words, connection.classes)
    new = known & ~np.isin(part.words, site.classes)
    return {"site": site.name, "joint": _part(right[known]), "joint_new": _part(right[new]), "new": int(new.sum())}


def _class_cosine(connection: Connection, i: int, j: int) -> float:
    """Return the mean cosine of two sites' means of the classes that both hold."""
    a, b = connection.turned[i], connection.turned[j]
    both = a.held & b.held
    return float(cosine_similarity(a.mu[both], b.mu[both]).mean()) if bool(both.any()) else math.nan


def _confusions(said: Array, heard: Array) -> list[dict[str, Any]]:
    """Return which classes are taken for which others, and what part of the class that is."""
    wrong = said != heard
    pairs, counts = np.unique(np.stack([said[wrong], heard[wrong]]), axis=1, return_counts=True)
    first = np.argsort(-counts, kind="stable")[:SHOWN]
    return [
        {"said": str(pairs[0, k]), "heard": str(pairs[1, k]), "part": float(counts[k] / (said == pairs[0, k]).sum())}
        for k in first
    ]


def _part(right: Array) -> float:
    return float(right.mean()) if len(right) else math.nan


def _summary(pairs: Sequence[dict[str, Any]], sites: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return means over sites that judge themselves, and over ordered pairs."""
    own = [pair for pair in pairs if pair["speaker"] == pair["judge"]]
    cross = [pair for pair in pairs if pair["speaker"] != pair["judge"]]
    found = {
        "acc_own": _mean(own, "accuracy"),
        "acc_cross": _mean(cross, "accuracy"),
        "acc_cross_worst": min(_known(cross, "accuracy"), default=math.nan),
        "acc_joint": _mean(sites, "joint"),
        "class_cosine": _mean(cross, "class_cosine"),
    }
    for key in ("retrieval", "retrieval_fine"):
        own_key, cross_key = (key.replace("retrieval", f"retrieval_{which}") for which in ("own", "cross"))
        found |= {own_key: _mean(own, key), cross_key: _mean(cross, key)}
    return found


def _known(rows: Iterable[dict[str, Any]], key: str) -> list[float]:
    return [value for row in rows if math.isfinite(value := row.get(key, math.nan))]


def _mean(rows: Iterable[dict[str, Any]], key: str) -> float:
    known = _known(rows, key)
    return float(torch.tensor(known, dtype=torch.float64).mean()) if known else math.nan

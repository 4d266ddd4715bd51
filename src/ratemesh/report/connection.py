"""The page of a connection: how well each pair of sites understands each other, and what they confuse."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ratemesh.connection.connection import Connection
from ratemesh.report.page import environment

SHOWN = 12
"""Confusions on the page, the most frequent over all pairs."""

TABLES = {
    "accuracy": "Understood: the judge names the class, by its own statistics alone",
    "retrieval": "Found: the nearest sample of the other site is of the same class",
    "retrieval_fine": "Found, by fine labels that no statistics were made of",
    "class_cosine": "Cosine of class means, 1 where the sites agree",
}


def render(mesh: Connection, numbers: Mapping[str, Any]) -> str:
    """Return the page of a connection with the numbers of `understanding`."""
    pairs = numbers["pairs"]
    return (
        environment()
        .get_template("connection.html")
        .render(
            mesh=mesh,
            names=[site.name for site in mesh.sites],
            words=in_words(numbers["summary"]),
            tables={words: cells for key, words in TABLES.items() if (cells := _cells(pairs, key))},
            confusions=_worst(pairs),
            speakers=[row for row in numbers["speakers"] if row["new"]],
            percent=percent,
        )
    )


def in_words(summary: Mapping[str, float]) -> list[str]:
    """Return the main numbers as sentences."""
    lines = {
        "acc_own": "A site names the class of its own features in {} of cases.",
        "acc_cross": "It names that of another site's in {}, on average over ordered pairs.",
        "acc_cross_worst": "The pair that understands each other worst: {}.",
        "acc_joint": "All sites' statistics together: {}.",
        "retrieval_cross": "The nearest sample at another site is of the same class in {} of cases.",
        "retrieval_cross_fine": "It is of the same fine label in {}.",
    }
    found = [line.format(percent(summary[key])) for key, line in lines.items() if math.isfinite(summary[key])]
    return found or ["No site brought held-out features, so nothing says how well they understand each other."]


def percent(part: float) -> str:
    """Return a part of 1 as a percentage; a dash for none.

    >>> percent(0.9876), percent(float("nan"))
    ('98.8 %', '–')
    """
    return f"{100 * part:.1f} %" if math.isfinite(part) else "–"


def _cells(pairs: Sequence[Mapping[str, Any]], key: str) -> dict[tuple[str, str], str]:
    """Return a matrix's cells by speaker and judge; nothing if no pair has the number."""
    shown = (lambda value: f"{value:.3f}") if key == "class_cosine" else percent
    found = {(pair["speaker"], pair["judge"]): pair[key] for pair in pairs if math.isfinite(pair.get(key, math.nan))}
    return {ends: shown(value) for ends, value in found.items()}


def _worst(pairs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the most frequent confusions between different sites."""
    every = [
        {"speaker": pair["speaker"], "judge": pair["judge"], **confusion, "part": percent(confusion["part"])}
        | {"size": confusion["part"]}
        for pair in pairs
        if pair["speaker"] != pair["judge"]
        for confusion in pair.get("confusions", ())
    ]
    return sorted(every, key=lambda row: -row["size"])[:SHOWN]

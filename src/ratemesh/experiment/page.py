"""The page of a saved mesh: what a person who finds the folder needs to know, in Markdown."""

import math
from collections.abc import Mapping
from typing import Any

from ratemesh.experiment.card import Card
from ratemesh.metrics.table import METRICS, VALIDATION

NUMBERS = ("acc_own", "acc_cross", "acc_average", "acc_energy", "acc_gaussian")
"""Accuracies that the page shows, of test samples and of validation samples."""


def page_of(card: Card) -> str:
    """Return the page."""
    return "\n".join([*_head(card), *_numbers(card), *_nodes(card), *_use(card)]) + "\n"


def _head(card: Card) -> list[str]:
    names = ", ".join(card.classes[:30]) + (f", … ({len(card.classes)} in all)" if len(card.classes) > 30 else "")
    shape = " × ".join(map(str, card.intake.get("shape", ())))
    return [
        "# A trained mesh",
        "",
        f"{_count(len(card.nodes), 'node')} with {card.d} common dimensions, trained by {card.method or 'ratemesh'} "
        f"(ratemesh {card.version}, {card.created}).",
        "",
        f"- Classes: {names}",
        f"- A sample: {shape} numbers, prepared by intake `{card.intake.get('name')}` (see mesh.json)",
        f"- All nodes together judge by `{card.fusion}`, one node by `{card.alone}`"
        + (", chosen on validation samples" if any(key.startswith(VALIDATION) for key in card.metrics) else ""),
        "",
    ]


def _numbers(card: Card) -> list[str]:
    """Return the table of accuracies; without held-out samples there is none."""
    rows = []
    for key in NUMBERS:
        cells = [card.metrics.get(prefix + key) for prefix in ("", VALIDATION)]
        if any(cell is not None for cell in cells):
            rows.append(f"| {METRICS[key].meaning} | {' | '.join(_percent(cell) for cell in cells)} |")
    return ["| accuracy | test | validation |", "|---|--:|--:|", *rows, ""] if rows else []


def _percent(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{100 * value:.1f} %"


def _nodes(card: Card) -> list[str]:
    rows = [
        f"| {node.name} | {_network(node.encoder)} | {node.parameters:,} | {node.samples:,} |" for node in card.nodes
    ]
    return ["| node | network | parameters | training samples |", "|---|---|--:|--:|", *rows, ""]


def _network(encoder: Mapping[str, Any]) -> str:
    return str(encoder.get("type", encoder.get("name")))


def _use(card: Card) -> list[str]:
    objects = [node.name for node in card.nodes if "structure" in node.encoder and node.recipe is None]
    needed = ", networks=[…]" if objects else ""
    lines = [
        "```python",
        "import ratemesh as rm",
        "",
        f'mesh = rm.load("this folder"{needed})',
        "labels = mesh.predict(X)                # all nodes; node=0: one of them",
        "Z = mesh.encode(X, node=0)              # in the common space",
        "```",
    ]
    if objects:
        lines += [
            "",
            f"Networks of {', '.join(objects)} were given as objects that cannot be made again from settings.",
        ]
    return [*lines, "", "`ratemesh predict FOLDER new.csv -o labels.csv` does it from the command line."]


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"

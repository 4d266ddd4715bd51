"""The parts below the results: figures, cost, settings, environment, and what could not be shown."""

import base64
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ratemesh.report.cost import Cost
from ratemesh.report.figures import Drawn
from ratemesh.report.figures.style import DPI
from ratemesh.report.page.marks import named
from ratemesh.report.page.markup import Html, bullets, fold, joined, paragraph, section, symbols, table, tag
from ratemesh.report.runs import Run
from ratemesh.report.wording import in_bytes, in_digits

PIXELS = 1.15
"""Pixels a point of a figure on a phone: letters of 9 points are 10 pixels high."""

TYPES = {".svg": "image/svg+xml", ".png": "image/png"}

COSTS: dict[str, tuple[str, str]] = {
    "measured": ("Measured", "payload bytes of all messages, mean over rounds"),
    "packed": ("Formula, one triangle", "Σ_i |N_i| · K · d(d+1)/2 numbers: V is symmetric"),
    "full": ("Formula of Remark 2", "Σ_i |N_i| · K · d² numbers"),
    "held": ("Formula of Remark 4", "Σ_i |N_i| · |K_i| · d² numbers, K_i the classes at node i"),
    "dsgd": ("D-SGD, same encoders", "every node's parameters to all its neighbours"),
    "dsgd_alike": ("D-SGD, own kind only", "to neighbours of the same architecture, as in the paper"),
}


def notes_box(notes: Sequence[str]) -> Html:
    """Return what is missing and how to get it; nothing when nothing is."""
    if not notes:
        return Html()
    return tag("aside", tag("h2", "Not everything could be shown"), bullets(notes), class_="card notes", id="missing")


def figures_section(figures: Mapping[str, Drawn]) -> Html:
    """Return the figures, each a button that opens it large."""
    return section("figures", "Figures", *(_figure(name, drawn) for name, drawn in figures.items()))


def _figure(name: str, drawn: Drawn) -> Html:
    heading = tag("h3", drawn.title)
    left_out = bullets(drawn.notes)
    if not drawn.files:
        return tag("figure", heading, paragraph("Not drawn."), left_out, class_="card", id=f"figure-{name}")
    source = embedded(drawn.files[0])
    picture = tag("img", src=source, alt=f"{drawn.title}. {drawn.alt}", data_file=drawn.files[0].name)
    wide = f"--wide: {readable_width(drawn.files[0])}px"
    button = tag("button", picture, type="button", class_="zoom", style=wide, aria_label=f"{drawn.title}: show large")
    caption = tag("figcaption", symbols(drawn.caption), left_out)
    board = tag("div", button, class_="board")
    return tag("figure", heading, board, caption, class_="card", id=f"figure-{name}")


def readable_width(file: Path) -> int:
    """Return the width in a small window, which then scrolls, at which the letters of a figure can be read."""
    content = file.read_bytes()
    if file.suffix == ".png":
        points = int.from_bytes(content[16:20]) / DPI * 72
    else:
        found = re.search(rb'width="([\d.]+)pt"', content)
        points = float(found[1]) if found else 0
    return round(PIXELS * points)


def embedded(file: Path) -> str:
    """Return a picture as a data URL."""
    return f"data:{TYPES[file.suffix]};base64,{base64.b64encode(file.read_bytes()).decode()}"


def cost_section(runs: Sequence[Run], costs: Sequence[Cost]) -> Html:
    """Return bytes and seconds a round: measured, by formula, and what D-SGD would send."""
    rows: list[list[object]] = []
    for key, (name, meaning) in COSTS.items():
        rows.append([joined([name, tag("small", symbols(meaning))]), *(_cost_cell(cost, key) for cost in costs)])
    seconds = [f"{in_digits(cost.seconds)} s" if math.isfinite(cost.seconds) else "not known" for cost in costs]
    rows.append([joined(["Time", tag("small", "wall clock, mean over rounds; this machine only")]), *seconds])
    head = ["All nodes, one round", *(named(index, run.name) for index, run in enumerate(runs))]
    left_out = [f"{run.name}: {note}" for run, cost in zip(runs, costs, strict=True) for note in cost.notes]
    about = (
        "Four bytes a number. Beyond one triangle Algorithm 1 sends counts and, for the gauge, class means and hops. "
        "Statistics cost the same whatever the network; parameters grow with it."
    )
    return section(
        "cost",
        "Cost of a round",
        table("Cost of a round", head, rows),
        paragraph(about, class_="quiet"),
        bullets(left_out),
    )


def _cost_cell(cost: Cost, key: str) -> Html:
    value = float(getattr(cost, key))
    if not math.isfinite(value):
        return tag("td", "not known")
    ratio = value / cost.measured if cost.measured and key != "measured" else math.nan
    aside = tag("small", f"{ratio:.3g} × measured") if math.isfinite(ratio) else ""
    return tag("td", in_bytes(value), aside)


def settings_section(runs: Sequence[Run]) -> Html:
    """Return what differs between the runs, then every resolved configuration, folded."""
    folds = [
        fold(named(index, run.name), tag("pre", tag("code", run.config_text or "config.toml could not be read")))
        for index, run in enumerate(runs)
    ]
    return section("settings", "Settings", _differences(runs), *folds)


def _differences(runs: Sequence[Run]) -> Html:
    if len(runs) < 2:
        return Html()
    flat = [flattened(run.config) for run in runs]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    rows = [
        [key, *(settings.get(key, "–") for settings in flat)]
        for key in keys
        if len({str(settings.get(key)) for settings in flat}) > 1
    ]
    if not rows:
        return paragraph("All settings are equal.")
    head = ["What differs", *(named(index, run.name) for index, run in enumerate(runs))]
    return table("Settings that differ between the runs", head, rows)


def flattened(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested table with keys "a.b"; lists stay whole.

    >>> flattened({"a": {"b": 1}, "c": [2]})
    {'a.b': 1, 'c': [2]}
    """
    out: dict[str, Any] = {}
    for key, value in content.items():
        out.update(flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return out


def environment_section(runs: Sequence[Run]) -> Html:
    """Return versions and machine of every run; equal ones are shown once."""
    flat = [flattened({k: v for k, v in run.environment.items() if k != "schema"}) for run in runs]
    if not any(flat):
        return section("environment", "Environment", paragraph("No environment is recorded."))
    keys = list(dict.fromkeys(key for entry in flat for key in entry))
    rows = [[key.removeprefix("packages."), *(entry.get(key, "–") for entry in flat)] for key in keys]
    head = ["", *(named(index, run.name) for index, run in enumerate(runs))]
    inner = fold("Versions and machine", table("Environment of the runs", head, rows))
    return section("environment", "Environment", inner)

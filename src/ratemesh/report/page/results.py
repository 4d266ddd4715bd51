"""Final numbers: tiles, and all metrics side by side; of trials means with intervals, and the single ones beneath."""

import math
from collections.abc import Sequence

from ratemesh.metrics.table import LABEL_AWARE, METRICS, Metric
from ratemesh.report.page.marks import named
from ratemesh.report.page.markup import Html, bullets, fold, joined, paragraph, section, symbols, table, tag, text
from ratemesh.report.page.words import same_data
from ratemesh.report.runs import Run, number
from ratemesh.report.wording import in_digits, judged, shown

HIDDEN = {"schema", "method", "undefined"}
ASIDES = ("_floor", "_n", "_n_k")
"""Ends of keys that belong to another number: its expectation without structure, and its samples."""


def tiles(runs: Sequence[Run]) -> Html:
    """Return a card a run: who it is, how far it came, and its first numbers."""
    return tag("div", *(_tile(index, run) for index, run in enumerate(runs)), class_="tiles")


def _tile(index: int, run: Run) -> Html:
    tile = {METRICS[key].short: key for key in (*judged(run).beside, "disagreement", "overlap", "bytes_total")}
    whole = len(run.complete) == run.planned if run.planned else bool(run.metrics)
    return tag(
        "article",
        tag("h3", named(index, run.name)),
        paragraph(run.metrics.get("method") or run.setting("method.name", "method not known"), class_="method"),
        paragraph(*_headline(run), class_="big"),
        tag("dl", *(tag("div", tag("dt", name), tag("dd", shown(run, key))) for name, key in tile.items())),
        paragraph(run.state, class_="state" if whole else "state warn"),
        class_="card tile",
    )


def _headline(run: Run) -> list[Html]:
    """Return the first number large, and its interval smaller beside it."""
    how = judged(run)
    mean, plus, half = shown(run, how.metric).partition(" ± ")
    spread = tag("span", f" ± {half}", class_="spread") if plus else Html()
    return [text(mean), spread, tag("small", how.caption)]


def metrics_section(runs: Sequence[Run]) -> Html:
    """Return every number of metrics.json, runs side by side; known ones first, the rest under their own keys."""
    known = [(index, run) for index, run in enumerate(runs) if run.metrics]
    if not known:
        return section("metrics", "Final numbers", paragraph("No run is complete, so there are no final numbers."))
    heads = [named(index, run.name) for index, run in known]
    numbers = metrics_table("Final numbers of all runs", heads, [run for _, run in known])
    undefined = [f"{run.name}: {why}" for _, run in known for why in _undefined(run)]
    reasons = fold("Why some numbers are not defined", bullets(undefined)) if undefined else ""
    several = len(known) > 1 and len(same_data([run for _, run in known])) == 1
    notes = ["Bold: best of the runs, where one way is better."] if several else []
    if any(len(run.complete) > 1 for run in runs):
        notes.append("± is the half-width of a 95 % t-interval over trials.")
    note = paragraph(" ".join(notes), class_="quiet") if notes else ""
    return section("metrics", "Final numbers", numbers, note, *_single_trials(runs), reasons)


def metrics_table(label: str, heads: Sequence[object], runs: Sequence[Run]) -> Html:
    """Return every number of some runs, a column a run."""
    rows = [[_metric_name(key), *_metric_cells(key, runs)] for key in _keys(runs)]
    return table(label, ["", *heads], rows)


def _single_trials(runs: Sequence[Run]) -> list[Html]:
    """Return the numbers of every trial, folded, and how far the others came."""
    out = []
    for index, run in enumerate(runs):
        heads = [joined([trial.name, tag("small", f"seed {trial.setting('seed', '?')}")]) for trial in run.complete]
        others = [f"{trial.name}: {trial.state}" for trial in run.trials if not trial.metrics]
        if run.complete:
            numbers = metrics_table(f"Final numbers of every trial of {run.name}", heads, run.complete)
            out.append(fold(joined([named(index, run.name), ": trial by trial"]), numbers, bullets(others)))
    return out


def _keys(runs: Sequence[Run]) -> list[str]:
    there = dict.fromkeys(key for run in runs for key in run.metrics if key not in HIDDEN)
    own = [key for key in there if not any(key.removesuffix(end) in there for end in ASIDES if key.endswith(end))]
    return [key for key in METRICS if key in there] + [key for key in own if key not in METRICS]


def _undefined(run: Run) -> list[str]:
    reasons = run.metrics.get("undefined")
    return [str(reason) for reason in reasons] if isinstance(reasons, list) else []


def _metric_name(key: str) -> Html:
    metric = METRICS.get(key, Metric(key))
    return joined([symbols(metric.label) if key in METRICS else key, tag("small", symbols(metric.meaning))])


def _metric_cells(key: str, runs: Sequence[Run]) -> list[Html]:
    comparable = len(same_data(runs)) == 1
    best = _best(key, [number(run.metrics.get(key)) for run in runs]) if comparable else set()
    out = []
    for place, run in enumerate(runs):
        if key == LABEL_AWARE and not run.partial:
            out.append(tag("td", shown(run, "acc_energy"), tag("small", "nodes hold all labels: the fused one")))
            continue
        value = text(shown(run, key))
        wraps = "list" if isinstance(run.metrics.get(key), list) else None
        out.append(tag("td", tag("strong", value) if place in best else value, _aside(key, run), class_=wraps))
    return out


def _best(key: str, values: Sequence[float]) -> set[int]:
    """Return the places of the best values; none unless one way is better and the runs differ."""
    better = METRICS[key].better if key in METRICS else ""
    known = [value for value in values if math.isfinite(value)]
    if not better or len(set(known)) < 2:
        return set()
    goal = max(known) if better == "high" else min(known)
    return {place for place, value in enumerate(values) if value == goal}


def _aside(key: str, run: Run) -> Html:
    """Return what belongs to a number: its expectation without structure, and how many samples it is of."""
    floor, n = number(run.metrics.get(f"{key}_floor")), number(run.metrics.get(f"{key}_n"))
    parts = [f"without structure {in_digits(floor)}"] if math.isfinite(floor) else []
    parts += [f"n = {n:,.1f}".removesuffix(".0")] if math.isfinite(n) else []
    lacking = len(run.complete) - len(run.intervals[key].values) if key in run.intervals else 0
    parts += [f"not defined in {lacking} of {len(run.complete)} trials"] if lacking else []
    return tag("small", "; ".join(parts)) if parts else Html()

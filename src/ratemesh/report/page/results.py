"""Final numbers: tiles, all metrics side by side, and ours beside the paper's."""

import math
from collections.abc import Sequence
from typing import Any

from ratemesh.report.cited import COLUMNS, DOUBT, SOURCE, TABLE, Cited, CitedRow, table_for
from ratemesh.report.numbers import DASH, HIDDEN, METRICS, Metric, in_bytes, in_digits, in_percent, is_aside, written
from ratemesh.report.page.marks import named
from ratemesh.report.page.markup import Html, bullets, fold, joined, paragraph, section, symbols, table, tag, text
from ratemesh.report.page.words import same_data
from ratemesh.report.runs import Run, number


def tiles(runs: Sequence[Run]) -> Html:
    """Return a card a run: who it is, how far it came, and its first numbers."""
    return tag("div", *(_tile(index, run) for index, run in enumerate(runs)), class_="tiles")


def _tile(index: int, run: Run) -> Html:
    metrics = run.metrics
    rounds = f"{len(run.records)} of {run.setting('rounds', '?')} rounds"
    state = "complete" if metrics else f"final numbers unreadable, {rounds}" if run.ended else f"incomplete: {rounds}"
    figures = [
        ("fused", in_percent(number(metrics.get("acc_energy")))),
        ("one node", in_percent(number(metrics.get("acc_node")))),
        ("disagreement", in_digits(number(metrics.get("disagreement")))),
        ("overlap", in_digits(number(metrics.get("overlap")))),
        ("sent", in_bytes(number(metrics.get("bytes_total")))),
    ]
    return tag(
        "article",
        tag("h3", named(index, run.name)),
        paragraph(metrics.get("method") or run.setting("method.name", "method not known"), class_="method"),
        paragraph(
            in_percent(number(metrics.get("acc_average"))), tag("small", "accuracy, features averaged"), class_="big"
        ),
        tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in figures)),
        paragraph(state, class_="state" if metrics else "state warn"),
        class_="card tile",
    )


def metrics_section(runs: Sequence[Run]) -> Html:
    """Return every number of metrics.json, runs side by side; known ones first, the rest under their own keys."""
    known = [(index, run) for index, run in enumerate(runs) if run.metrics]
    if not known:
        return section("metrics", "Final numbers", paragraph("No run is complete, so there are no final numbers."))
    keys = _keys([run for _, run in known])
    rows = [[_metric_name(key), *_metric_cells(key, [run for _, run in known])] for key in keys]
    head = ["", *(named(index, run.name) for index, run in known)]
    undefined = [f"{run.name}: {why}" for _, run in known for why in _undefined(run)]
    reasons = fold("Why some numbers are not defined", bullets(undefined)) if undefined else ""
    several = len(known) > 1 and len(same_data([run for _, run in known])) == 1
    note = paragraph("Bold: best of the runs, where one way is better.", class_="quiet") if several else ""
    return section("metrics", "Final numbers", table("Final numbers of all runs", head, rows), note, reasons)


def _keys(runs: Sequence[Run]) -> list[str]:
    there = dict.fromkeys(key for run in runs for key in run.metrics if key not in HIDDEN)
    shown = [key for key in there if not is_aside(key, set(there))]
    return [key for key in METRICS if key in there] + [key for key in shown if key not in METRICS]


def _undefined(run: Run) -> list[str]:
    reasons = run.metrics.get("undefined")
    return [str(reason) for reason in reasons] if isinstance(reasons, list) else []


def _metric_name(key: str) -> Html:
    metric = METRICS.get(key, Metric(key, ""))
    return joined([symbols(metric.name) if key in METRICS else key, tag("small", symbols(metric.meaning))])


def _metric_cells(key: str, runs: Sequence[Run]) -> list[Html]:
    comparable = len(same_data(runs)) == 1
    best = _best(key, [number(run.metrics.get(key)) for run in runs]) if comparable else set()
    out = []
    for place, run in enumerate(runs):
        value = text(written(key, run.metrics.get(key)))
        out.append(joined([tag("strong", value) if place in best else value, _aside(key, run.metrics)]))
    return out


def _best(key: str, values: Sequence[float]) -> set[int]:
    """Return the places of the best values; none unless one way is better and the runs differ."""
    better = METRICS[key].better if key in METRICS else ""
    known = [value for value in values if math.isfinite(value)]
    if not better or len(set(known)) < 2:
        return set()
    goal = max(known) if better == "high" else min(known)
    return {place for place, value in enumerate(values) if value == goal}


def _aside(key: str, metrics: dict[str, Any]) -> Html:
    """Return what belongs to a number: its expectation without structure, and how many samples it is of."""
    floor, n = number(metrics.get(f"{key}_floor")), number(metrics.get(f"{key}_n"))
    parts = [f"without structure {in_digits(floor)}"] if math.isfinite(floor) else []
    parts += [f"n = {in_digits(n)}"] if math.isfinite(n) else []
    return tag("small", "; ".join(parts)) if parts else Html()


def paper_section(runs: Sequence[Run]) -> Html:
    """Return our numbers beside Table I of the paper, for the data sets that it has."""
    by_data: dict[str, list[tuple[int, Run]]] = {}
    for index, run in enumerate(runs):
        if key := table_for(str(run.setting("data.name", ""))):
            by_data.setdefault(key, []).append((index, run))
    if not by_data:
        data = sorted({str(run.setting("data.name", "not known")) for run in runs})
        theirs, ours = ", ".join(TABLE), ", ".join(data)
        words = f"The paper's Table I is on {theirs}. The runs here are on {ours}, so nothing is set beside it."
        return section("paper", "Beside the paper", paragraph(words))
    others = [run.name for run in runs if not table_for(str(run.setting("data.name", "")))]
    left_out = paragraph(f"Not in the paper's table: {', '.join(others)}.", class_="quiet") if others else ""
    tables = [_paper_table(key, ours) for key, ours in by_data.items()]
    return section("paper", "Beside the paper", *tables, left_out, _footnotes("cifar100" in by_data))


def _paper_table(key: str, ours: Sequence[tuple[int, Run]]) -> Html:
    rows = [[joined([row.method, tag("small", "paper")]), *_cited_cells(row)] for row in TABLE[key]]
    rows += [[joined([named(index, run.name), tag("small", _budget(run))]), *_own_cells(run)] for index, run in ours]
    return joined([tag("h3", key), table(f"Ours beside the paper's on {key}", ["", *COLUMNS.values()], rows)])


def _cited_cells(row: CitedRow) -> list[Html]:
    return [_cited(row.cells[column]) for column in COLUMNS]


def _cited(cell: Cited) -> Html:
    """Return a cell that says where it is from, and whether it can be right."""
    if cell.text == DASH:
        return tag("td", DASH, class_="cited")
    notes = [tag("a", "[1]", href="#cited", title="cited from the paper")]
    notes += [tag("a", "[2]", href="#doubt", title="contradicts its row")] if cell.doubtful else []
    return tag("td", cell.text, tag("sup", *notes), class_="cited doubtful" if cell.doubtful else "cited")


def _own_cells(run: Run) -> list[Html]:
    values = {key: number(run.metrics.get(key)) for key in (*METRICS,)}
    pair = (values["class_mean_cosine_mean"], values["class_mean_cosine_std"])
    cosine = " / ".join(f"{value:.2f}".replace("-", "−") for value in pair) if all(map(math.isfinite, pair)) else DASH
    four = [f"{v:.4f}" if math.isfinite(v := values[key]) else DASH for key in ("wccr", "iidr", "cka_unpaired")]
    accuracy = f"{100 * v:.2f} %" if math.isfinite(v := values["acc_average"]) else DASH
    return [tag("td", tag("strong", value)) for value in (accuracy, cosine, *four)]


def _budget(run: Run) -> str:
    return f"ours: {run.setting('rounds', '?')} rounds of {run.setting('local.epochs', '?')} local epochs"


def _footnotes(doubt: bool) -> Html:
    notes = [tag("p", tag("b", "[1] "), "Cited, not measured here: ", SOURCE, id="cited")]
    notes += [tag("p", tag("b", "[2] "), DOUBT, id="doubt")] if doubt else []
    how = (
        "Ours: WCCR and IIDR of all nodes' training features as one set, CKA of unpaired samples: the definitions that "
        "fit the paper's numbers. Differences mean something only at equal rounds, encoders and sample sizes."
    )
    return tag("div", *notes, paragraph(how), class_="footnotes")

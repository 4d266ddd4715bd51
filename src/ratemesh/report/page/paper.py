"""Ours beside Table I of the paper."""

from collections.abc import Sequence

from ratemesh.metrics.table import COLUMNS
from ratemesh.report.cited import DOUBT, SOURCE, TABLE, Cited, CitedRow, table_for
from ratemesh.report.page.marks import named
from ratemesh.report.page.markup import Html, fold, joined, paragraph, section, table, tag
from ratemesh.report.runs import Run
from ratemesh.report.wording import DASH, own_cells

HEAD = ["", *(column.heading for column in COLUMNS.values())]


def paper_section(runs: Sequence[Run]) -> Html:
    """Return our numbers beside Table I of the paper, for the data sets that it has."""
    by_data: dict[str, list[tuple[int, Run]]] = {}
    for index, run in enumerate(runs):
        if key := _table_of(run):
            by_data.setdefault(key, []).append((index, run))
    if not by_data:
        data = sorted({_data(run) for run in runs})
        theirs, ours = ", ".join(TABLE), ", ".join(data)
        words = f"The paper's Table I is on {theirs}. The runs here are on {ours}, so nothing is set beside it."
        return section("paper", "Beside the paper", paragraph(words))
    others = [run.name for run in runs if not _table_of(run)]
    some = any(run.partial for ours in by_data.values() for _, run in ours)
    left_out = paragraph(f"Not in the paper's table: {', '.join(others)}.", class_="quiet") if others else ""
    tables = [_paper_table(key, ours) for key, ours in by_data.items()]
    return section("paper", "Beside the paper", *tables, left_out, _footnotes("cifar100" in by_data, some=some))


def _table_of(run: Run) -> str | None:
    """Return the part of the table that is on the run's data: the data set itself, not a file in its place."""
    return None if _instead(run) else table_for(str(run.setting("data.name", "")))


def _instead(run: Run) -> str:
    """Return what a run has in place of the data set that it names; nothing if it has that."""
    if table_for(str(run.setting("data.name", ""))) is None:
        return ""
    if run.setting("data.path"):
        return "a file in place of "
    return "superclasses of " if run.setting("data.coarse") else ""


def _data(run: Run) -> str:
    return _instead(run) + str(run.setting("data.name", "not known"))


def _paper_table(key: str, ours: Sequence[tuple[int, Run]]) -> Html:
    rows = [[joined([row.method, tag("small", "paper")]), *_cited_cells(row)] for row in TABLE[key]]
    rows += [[joined([named(index, run.name), tag("small", _budget(run))]), *_own_cells(run)] for index, run in ours]
    beneath = [_single_trials(index, run) for index, run in ours if run.complete]
    return joined(
        [
            tag("h3", key),
            table(f"Ours beside the paper's on {key}", HEAD, rows),
            *beneath,
        ]
    )


def _single_trials(index: int, run: Run) -> Html:
    """Return a folded row a trial, in the paper's columns."""
    rows = [
        [joined([trial.name, tag("small", f"seed {trial.setting('seed', '?')}")]), *_own_cells(trial)]
        for trial in run.complete
    ]
    inner = table(f"Trials of {run.name} in the paper's columns", HEAD, rows)
    return fold(joined([named(index, run.name), ": trial by trial"]), inner)


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
    """Return our numbers in the paper's columns; says so where the accuracy is not the paper's."""
    cells = own_cells(run)
    asides = {"accuracy": tag("small", "label-aware, not averaged")} if run.partial else {}
    return [tag("td", tag("strong", cell), asides.get(column, "")) for column, cell in cells.items()]


def _budget(run: Run) -> str:
    """Return what ours is: trained for how long, and how often."""
    rounds = f"{run.setting('rounds', '?')} rounds of {run.setting('local.epochs', '?')} local epochs"
    if before := run.setting("method.warm_start.epochs", 0):
        rounds += f" after {before} of cross-entropy"
    done = len(run.complete)
    often = f", {done} trials" if done == run.planned else f", {done} of {run.planned} trials"
    who = "ours, some labels a node" if run.partial else "ours"
    return f"{who}: {rounds}" + (often if run.trials else "")


def _footnotes(doubt: bool, *, some: bool) -> Html:
    notes = [tag("p", tag("b", "[1] "), "Cited, not measured here: ", SOURCE, id="cited")]
    notes += [tag("p", tag("b", "[2] "), DOUBT, id="doubt")] if doubt else []
    how = (
        "Ours: WCCR and IIDR of all nodes' training features as one set, CKA of unpaired samples: the definitions that "
        "fit the paper's numbers. Differences mean something only at equal rounds, encoders and sample sizes."
    )
    if some:
        how += (
            " Table I is of i.i.d. data. Runs whose nodes hold some labels each stand beside it with the label-aware "
            "accuracy, which asks of a class the nodes that hold it; their other columns are as for all."
        )
    return tag("div", *notes, paragraph(how), class_="footnotes")

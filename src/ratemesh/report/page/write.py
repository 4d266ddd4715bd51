"""Run folders in, one HTML file out."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from ratemesh._version import __version__
from ratemesh.errors import InputError
from ratemesh.experiment.storage import write_text
from ratemesh.report.cost import Cost, cost_of
from ratemesh.report.figures import FIGURES, Drawn
from ratemesh.report.figures.style import FORMATS
from ratemesh.report.folders import open_runs
from ratemesh.report.page import paper, parts, results, words
from ratemesh.report.page.markup import Html, bullets, joined, tag, text
from ratemesh.report.runs import Run

EMBEDDED = {"cosine": "png"}
"""Format of a figure in the page, where it is not svg: a matrix of pixels gains nothing from vectors."""

SECTIONS = {
    "figures": "Figures",
    "metrics": "Numbers",
    "paper": "Paper",
    "cost": "Cost",
    "settings": "Settings",
    "environment": "Environment",
}


@dataclass(frozen=True)
class Written:
    """What a report left: the page, the names of its runs, and what it had to leave out."""

    page: Path
    runs: tuple[str, ...]
    notes: tuple[str, ...]


def write_report(folders: Sequence[Path], out: Path, figures: Path | None = None) -> Written:
    """Write one page about all runs in the folders; the same folders give the same bytes.

    Args:
        folders: run folders, or folders that hold some (trials, comparisons, the demonstration).
        out: the HTML file; one that exists is replaced.
        figures: where to keep the figures as PNG, SVG and PDF; None keeps none.
    """
    if out.suffix.lower() not in {".html", ".htm"} or out.is_dir():
        raise InputError(f"output must be an HTML file; got '{out}'. Give a name that ends in .html.")
    runs, notes = open_runs(folders)
    notes += [f"{run.name}: {note}" for run in runs for note in run.notes]
    with tempfile.TemporaryDirectory() as scratch:
        drawn = _draw(runs, figures or Path(scratch), keep=figures is not None)
        page = render(runs, notes, drawn)
    _make_parent(out)
    write_text(out, page)
    return Written(out, tuple(run.name for run in runs), tuple(notes))


def _draw(runs: Sequence[Run], folder: Path, *, keep: bool) -> dict[str, Drawn]:
    """Draw every figure; the format that the page embeds comes first, the others only to be kept."""
    out = {}
    for name, draw in FIGURES.items():
        shown = EMBEDDED.get(name, "svg")
        others = [suffix for suffix in FORMATS if suffix != shown] if keep else []
        out[name] = draw(runs, folder / name, formats=[shown, *others])
    return out


def _make_parent(out: Path) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"output must be in a folder that can be made; got '{out}' ({error}).") from None


def render(runs: Sequence[Run], notes: Sequence[str], figures: Mapping[str, Drawn]) -> str:
    """Return the page."""
    costs = [cost_of(run) for run in runs]
    assets = files("ratemesh.report.page")
    read = {name: assets.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "style.css", "script.js")}
    return Template(read["page.html"]).substitute(
        title=text(words.title(runs)),
        style=read["style.css"],
        script=read["script.js"],
        version=text(__version__),
        navigation=joined(tag("a", name, href=f"#{anchor}") for anchor, name in SECTIONS.items()),
        summary=bullets(words.summary(runs, costs)),
        notes=parts.notes_box(notes),
        body=_body(runs, costs, figures),
    )


def _body(runs: Sequence[Run], costs: Sequence[Cost], figures: Mapping[str, Drawn]) -> Html:
    return joined(
        [
            results.tiles(runs),
            parts.figures_section(figures),
            results.metrics_section(runs),
            paper.paper_section(runs),
            parts.cost_section(runs, costs),
            parts.settings_section(runs),
            parts.environment_section(runs),
        ],
        "\n",
    )

"""`ratemesh bench`: what a finished run can bear."""

import math
from pathlib import Path
from typing import Annotated

import typer

from ratemesh.cli import screen
from ratemesh.cli.options import group
from ratemesh.report.wording import DASH

app = group("bench", "Measure what a finished run can bear.\n\nExample: `ratemesh bench link runs/mine`")

LEGEND = (
    "Means over ordered pairs of nodes on held-out samples: the receiver judges what arrives by its own statistics "
    "(accuracy) and looks it up in its own features (retrieval, nearest neighbour). Lost: points against float32; "
    "error: squared distance to what was sent, 2 for unrelated features. A class code carries the class that the "
    "sender decided on by pooled statistics, and may find more than the features themselves. All codes are shown and "
    "none is chosen: one picked by these numbers would have been picked on test data."
)


@app.callback()
def _group() -> None:
    """Keep `bench` a group, however many commands it has."""


@app.command()
def link(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run of at least two nodes.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for link.json and the figure. Default: RUN/link.")
    ] = None,
) -> None:
    """Send every node's features to every other, in fewer and fewer bytes and through noise, and see what arrives.

    Example: `ratemesh bench link runs/mine --out runs/link`
    """
    from ratemesh.studies.link import run_link

    found = run_link(run, out or run / "link")
    names = {"accuracy": "accuracy", "retrieval": "retrieval", "retrieval_fine": "fine retrieval"}
    shown = {key: name for key, name in names.items() if math.isfinite(getattr(found.codes[0], key))}
    table = screen.grid()
    table.add_column("link")
    table.add_column("bytes\na sample", justify="right")
    table.add_column("error", justify="right", vertical="bottom")
    for name in shown.values():
        table.add_column(name.replace(" ", "\n"), justify="right", vertical="bottom")
        table.add_column("lost", justify="right", vertical="bottom")
    for heard in [*found.codes, *found.noise]:
        cells = [heard.link, f"{heard.bytes:g}"]
        if math.isnan(heard.bytes):
            cells = [f"noise, {heard.snr:g} dB" if math.isfinite(heard.snr) else "no noise", DASH]
        cells.append(f"{heard.distortion:.3f}")
        for key in shown:
            value, plain = (100 * getattr(one, key) for one in (heard, found.codes[0]))
            cells += [f"{value:.1f} %", f"{round(plain - value, 1) + 0.0:.1f}"]  # no −0.0
        table.add_row(*cells)
    screen.console.print(table)
    screen.console.print(LEGEND, style="dim")
    screen.say(f"Measured on {found.samples} samples and {found.pairs} pairs of nodes.")
    screen.say("\n".join([f"Summary: {found.summary}", *(f"Figure:  {path}" for path in found.figures)]))

"""`ratemesh bench`: what faults cost, measured on this machine."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ratemesh.cli import screen
from ratemesh.cli.groups import group

bench_app = group("bench", "Measure on this machine.\n\nExample: `ratemesh bench faults`")


@bench_app.callback()
def _group() -> None:
    """Keep `faults` a command of its own: there will be others."""


@bench_app.command("faults")
def faults(
    rounds: Annotated[
        int, typer.Option("--rounds", min=40, help="Rounds of every mesh; a site takes some 25 to start.")
    ] = 80,
    out: Annotated[
        Path | None, typer.Option("--out", help="Keep the meshes in this folder, new or empty. Default: nowhere.")
    ] = None,
) -> None:
    """Break a mesh of four real sites, one fault after the other, and print what each costs in time and accuracy.

    Every mesh is four `ratemesh node` processes over mutual TLS on the loopback interface, with the embedded digits.
    The fault strikes after the third round. Needs `ratemesh[zenoh]`.

    Example: `ratemesh bench faults --rounds 80`
    """
    from ratemesh.experiment import faults as bench

    costs = []
    with tempfile.TemporaryDirectory(prefix="ratemesh-faults-") as scratch:
        folder = out or Path(scratch)
        for number, fault in enumerate(bench.FAULTS):
            screen.say(f"{number + 1} of {len(bench.FAULTS)}: {fault}")
            costs.append(bench.measure(fault, folder / f"mesh-{number}", rounds))
            screen.say(bench.table(costs)[-1])
    screen.say("\n".join(bench.table(costs)))
    screen.say(f"Results: {out}" if out else "Keep the sites' records and logs with --out DIR.")

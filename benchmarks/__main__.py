"""Run all benchmarks: `python -m benchmarks [--quick] [--write] [loss branches …]`."""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks import augment, branches, encoders, engines, factor, loss, rounds, sketch, subspace, workers
from benchmarks.machine import Neighbours, describe
from benchmarks.tables import Table

SECTIONS: dict[str, Callable[..., list[Table]]] = {
    "loss": loss.run,
    "branches": branches.run,
    "factor": factor.run,
    "subspace": subspace.run,
    "encoders": encoders.run,
    "augment": augment.run,
    "rounds": rounds.run,
    "sketch": sketch.run,
    "workers": workers.run,
    "engines": engines.run,
}
RESULTS = Path(__file__).with_name("RESULTS.md")
FAULTS = "## Faults of real sites"


def main() -> None:
    """Measure, print, and write RESULTS.md if asked to."""
    arguments = _arguments()
    console = Console(width=max(Console().width, 150))
    began, neighbours = time.perf_counter(), Neighbours()
    tables: list[Table] = []
    for name in arguments.sections or SECTIONS:
        console.print(f"[bold]{name}[/bold] …")
        section = SECTIONS[name](quick=arguments.quick)
        for table in section:
            console.print(table.screen())
        tables += section
    minutes = (time.perf_counter() - began) / 60
    cost = f"{minutes:.1f} minutes; other work took {neighbours.cores():.1f} cores meanwhile"
    console.print(cost)
    if arguments.write:
        RESULTS.write_text(_report(tables, cost) + _faults(), encoding="utf-8")
        console.print(f"wrote {RESULTS.name}")


def _faults() -> str:
    """Return what `python -m benchmarks.faults` measured, which is kept in the same file and not repeated here."""
    _, begin, rest = RESULTS.read_text(encoding="utf-8").partition(FAULTS)
    return f"\n{begin}{rest}" if begin else ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure ratios side by side in one run.")
    parser.add_argument("sections", nargs="*", metavar="section", help=f"any of {', '.join(SECTIONS)}; default all")
    parser.add_argument("--quick", action="store_true", help="few repeats: does it work, roughly how fast")
    parser.add_argument("--write", action="store_true", help="rewrite benchmarks/RESULTS.md")
    arguments = parser.parse_args()
    if unknown := set(arguments.sections) - set(SECTIONS):
        parser.error(f"unknown section {', '.join(sorted(unknown))}; known: {', '.join(SECTIONS)}")
    return arguments


def _report(tables: Sequence[Table], cost: str) -> str:
    head = [
        "# Benchmark results",
        "",
        f"- Date: {time.strftime('%Y-%m-%d', time.gmtime())}",
        f"- Machine: {describe()}",
        f"- Command: `{shlex.join(['python', '-m', 'benchmarks', *sys.argv[1:]])}` ({cost})",
        "",
        "The machine is shared, so only ratios count. Competitors were called in turn (A, B, C, A, B, C, …) in one "
        "run; ratios are of lower quartiles, and the median beside a time shows how noisy it was.",
        "",
    ]
    return "\n".join([*head, *(table.markdown() for table in tables)])


if __name__ == "__main__":
    main()

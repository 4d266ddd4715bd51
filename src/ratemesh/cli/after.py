"""`ratemesh predict`, `embed` and `export`: what a trained mesh is good for."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from ratemesh.cli import screen

Run = Annotated[Path, typer.Argument(help="Folder of a finished run, or a saved mesh.", show_default=False)]
Data = Annotated[
    Path,
    typer.Argument(help="New samples, like those trained on: .csv, .parquet, .npz, pictures.", show_default=False),
]
NodeOf = Annotated[
    str | None, typer.Option("--node", help="Number or name of the node whose features to take. Default: all nodes'.")
]
Batch = Annotated[int, typer.Option("--batch", min=1, help="Samples computed at a time; more on a GPU.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1 or mps.")]
Code = Annotated[
    Path | None,
    typer.Option("--code", help="Folder with the modules of own networks. Default: the run's, else the current one."),
]


def node_of(word: str | None) -> int | str | None:
    """Return a node as the mesh looks it up: a word of digits is a number."""
    return int(word) if word is not None and word.removeprefix("-").isdecimal() else word


@contextmanager
def _bar(what: str, rows: int) -> Iterator[Callable[[int], None]]:
    """Yield what is told of rows that are done; shown beside what may go through a pipe."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn(what), BarColumn(bar_width=28), MofNCompleteColumn(), TimeRemainingColumn(compact=True)
    with Progress(*columns, console=screen.errors, disable=not screen.errors.is_terminal) as progress:
        task = progress.add_task(what, total=rows)
        yield lambda done: progress.advance(task, done)


def predict(
    run: Run,
    data: Data,
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Table to write, .csv or .parquet. Default: CSV to the terminal.")
    ] = None,
    node: NodeOf = None,
    judge: Annotated[
        str | None,
        typer.Option("--judge", help="Node whose statistics judge. Default: the same node, or all together."),
    ] = None,
    fusion: Annotated[
        Literal["energy", "average", "gaussian"] | None,
        typer.Option("--fusion", help="How to judge. Default: what was best on validation samples."),
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Also write a score a class, higher if likelier.")] = False,
    batch: Batch = 128,
    device: Device = "auto",
    code: Code = None,
) -> None:
    """Label the samples of a file: one row a sample, in order, with the names of the classes.

    If the file itself has labels, how many agree is told.

    Example: `ratemesh predict runs/mine new.csv -o labels.csv --scores`
    """
    from ratemesh.mesh.loading import load
    from ratemesh.mesh.tables import agreement, as_csv, check_form, label_table, predicted, write_table

    check_form(out, (".csv", ".parquet"), data)
    mesh = load(run, folder=code).to(device)
    given = mesh.read(data)
    with _bar("predicting", len(given.X)) as done:
        found = predicted(mesh, given, node=node_of(node), judge=node_of(judge), fusion=fusion, batch=batch, done=done)
    table = label_table(mesh, given, found, scores)
    if out is None:
        sys.stdout.write(as_csv(table).decode())
    else:
        write_table(out, table)
    words = [agreement(mesh, given, found), f"Labels of {len(found):,} samples: {out}" if out else ""]
    for line in filter(None, words):
        (screen.say if out else screen.remark)(line)


def embed(
    run: Run,
    data: Data,
    *,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="File to write: .parquet, .npz, .csv or .safetensors.")
    ] = Path("z.parquet"),
    node: NodeOf = None,
    batch: Batch = 128,
    device: Device = "auto",
    code: Code = None,
) -> None:
    """Write the features of the samples of a file, in the space that all nodes have in common.

    Of one node, or averaged over all as in the paper. Names and labels that the file has are kept beside them.

    Example: `ratemesh embed runs/mine new.csv -o z.parquet --node 0`
    """
    from ratemesh.mesh.loading import load
    from ratemesh.mesh.tables import FORMS, check_form, embedded, feature_table, write_table

    check_form(out, tuple(FORMS), data)
    mesh = load(run, folder=code).to(device)
    given = mesh.read(data)
    with _bar("embedding", len(given.X)) as done:
        Z = embedded(mesh, given, node=node_of(node), batch=batch, done=done)
    write_table(out, feature_table(mesh, given, Z))
    screen.say(f"Features of {len(Z):,} samples in {Z.shape[1]} dimensions: {out}")


def export(
    run: Run,
    node: Annotated[str, typer.Option("--node", help="Number or name of the node.")] = "0",
    form: Annotated[
        Literal["onnx", "torch", "safetensors"],
        typer.Option("--format", help="onnx (extra 'onnx'), torch: a .pt2 file, or safetensors: weights alone."),
    ] = "onnx",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file. Default: node-N.onnx, .pt2 or .safetensors.")
    ] = None,
    classifier: Annotated[
        bool, typer.Option("--classifier", help="Also give scores and classes, by the node's own statistics.")
    ] = False,
    opset: Annotated[int | None, typer.Option("--opset", min=18, help="Version of ONNX's operators.")] = None,
    code: Code = None,
) -> None:
    """Write one node as one file for other programs: samples in, unit vectors of the common space out.

    Preparation of table rows, unit length and gauge are inside. The file is compared with the original on random
    samples, and put in place only if both say the same; its metadata say what goes in and what classes are called.

    Example: `ratemesh export runs/mine --node 0 --format onnx --classifier -o node.onnx`
    """
    from ratemesh.mesh.export import export as write
    from ratemesh.mesh.loading import load

    mesh = load(run, folder=code)
    found = write(mesh, node_of(node) or 0, form, out, classifier=classifier, opset=opset)
    into, outputs = found.metadata["input"], ", ".join(found.metadata["outputs"])
    shape = " × ".join(map(str, into["shape"]))
    screen.say(f"In: {shape} {into['dtype']}, {into['is']}. Out: {outputs}. Gauge: {found.metadata['gauge']}.")
    screen.say(f"Largest difference from the original on random samples: {found.difference:.2g}\nExport: {found.path}")

"""`ratemesh stats` and `ratemesh connect`: encoders that were trained elsewhere, in one space."""

from pathlib import Path
from typing import Annotated

import typer

from ratemesh.cli import screen

Sketch = Annotated[
    str | None,
    typer.Option("--sketch", help="auto, convolutions, fourier, ngrams or off; the same at all sites. Default: auto."),
]
Numbers = Annotated[
    int | None, typer.Option("--p", min=1, max=4096, help="Numbers of a sketch, the same at all sites. Default: 24.")
]
Seed = Annotated[
    int | None, typer.Option("--seed", min=0, help="Seed of the sketch, the same at all sites. Default: 0.")
]


def stats(
    file: Annotated[
        Path, typer.Argument(help="Features: .npz with z_train, y_train, x_train; or .parquet with z, y, x.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to send; one that exists is replaced.")] = Path(
        "site.safetensors"
    ),
    name: Annotated[str | None, typer.Option("--name", help="The site's name. Default: the file's.")] = None,
    codec: Annotated[
        str, typer.Option("--codec", help="packed, half, int8 or small: ten classes at d = 128 in 25 kB, p = 12.")
    ] = "packed",
    sketch: Sketch = None,
    p: Numbers = None,
    seed: Seed = None,
) -> None:
    """Write what a site sends of its encoder: class statistics, and no sample, feature or weight.

    FILE holds features z (m, d) of any encoder and labels y, numbers or words; with the samples x (images, vectors or
    texts) also what varies inside classes is told, by sketch moments. In a parquet table a column split may say "test".

    Example: `ratemesh stats clinic.npz -o clinic.safetensors --codec small`
    """
    from ratemesh.report.wording import in_bytes
    from ratemesh.studies.connect import Sketching, write_statistics

    written, size = write_statistics(file, out, name=name, sketching=Sketching(sketch, p, seed), form=codec)
    screen.say(f"Statistics: {written} ({in_bytes(size)}). Connect with: ratemesh connect {written} … --out mesh")


def connect(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="One a site: features (.npz, .parquet) or statistics; first perhaps a finished mesh to join."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder, new or empty.")] = Path("mesh"),
    sketch: Sketch = None,
    p: Numbers = None,
    seed: Seed = None,
) -> None:
    """Bring encoders that were trained apart into one space, and say how well their sites understand each other.

    Classes are matched by name; no samples need to be common. Leaves maps.safetensors (a map and an offset a site),
    classifier.safetensors, connection.json and index.html. What is not said of the sketch is as in statistics files.

    Example: `ratemesh connect a.npz b.parquet clinic.safetensors --out mesh`, later `ratemesh connect mesh new.npz
    --out mesh2`: the new site joins, and nobody else changes.
    """
    from ratemesh.report.connection import in_words
    from ratemesh.studies.connect import Sketching, connect_files

    numbers = connect_files(files, out, Sketching(sketch, p, seed), screen.say)
    screen.say(" ".join(in_words(numbers["summary"])))
    screen.say(f"Results: {out} (page: {out / 'index.html'})")

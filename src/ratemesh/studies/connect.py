"""`ratemesh stats` and `ratemesh connect`: from files of features and statistics to a folder that connects sites."""

import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratemesh.connection.connection import Connection, connect
from ratemesh.connection.files import SMALL, read_site, write_site
from ratemesh.connection.site import SiteStatistics
from ratemesh.connection.understood import understanding
from ratemesh.data.features import FeatureFile, Labelled, read_features
from ratemesh.data.sketches import SKETCHES, SketchSpec
from ratemesh.errors import InputError, RatemeshError
from ratemesh.experiment.storage import write_text
from ratemesh.messages.codecs import CODECS
from ratemesh.report.connection import render
from ratemesh.specs import nearest

P, P_SMALL = 24, 12
"""Numbers of a sketch, and where a file must be small; experiments/connect.py measures what that costs."""

FORMS = ("packed", "half", "int8", "small")
"""How statistics are written; small: four directions of every class in eight bits (see `SMALL`)."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Sketching:
    """What a command says of the sketch: None is left to the usual, or to what other sites did."""

    name: str | None = None
    p: int | None = None
    seed: int | None = None

    def spec(self, usual: int = P) -> SketchSpec | None:
        """Return the sketch, None for "off"."""
        name = self.name or "auto"
        if name == "off":
            return None
        if name not in SKETCHES:
            raise InputError(f"--sketch must be known; got '{name}'. {nearest(name, [*SKETCHES, 'off'])}")
        return SKETCHES[name](name=name, p=self.p or usual)


def write_statistics(file: Path, out: Path, *, name: str | None, sketching: Sketching, form: str) -> tuple[Path, int]:
    """Write what a site sends of a file of features; return the file and its bytes."""
    if out.suffix != ".safetensors":
        raise InputError(f"--out must end in .safetensors; got '{out}'.")
    if form not in FORMS:
        raise InputError(f"--codec must be one of {', '.join(FORMS)}; got '{form}'. {nearest(form, FORMS)}")
    spec = sketching.spec(P_SMALL if form == "small" else P)
    codec = SMALL if form == "small" else CODECS[form](name=form)
    site = _site(read_features(file), name or file.stem, spec, sketching.seed or 0)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out must be in a folder that can be made; got '{out}' ({error}).") from None
    return out, write_site(out, site, codec)


def connect_files(files: Sequence[Path], out: Path, sketching: Sketching, say: Say) -> dict[str, Any]:
    """Connect the sites of these files and write the folder; return the numbers that connection.json has.

    Args:
        files: features (.npz, .parquet) and statistics (.safetensors), one a site; the first may be the folder of a
            finished connection, which the others then join.
        out: the folder, new or empty.
        sketching: of files of features; what is left open is as in the files of statistics.
        say: is told what happens.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--out must be a new or empty folder; '{out}' exists. Choose another, or delete it.")
    base = [file for file in files if file.is_dir()]
    if base and (len(base) > 1 or base[0] != files[0]):
        raise InputError(
            f"only the first argument may be a folder, that of a connection; got {[str(b) for b in base]}."
        )
    mesh = Connection.load(base[0]) if base else None
    sent = [read_site(file) if file.suffix == ".safetensors" else read_features(file) for file in files[len(base) :]]
    names = _names(files[len(base) :], sent)
    known = [*(mesh.sites if mesh else ()), *(site for site in sent if isinstance(site, SiteStatistics))]
    spec, seed = _agreed(known, sketching)
    sites, held_out = [], []
    for name, part in zip(names, sent, strict=True):
        site = part if isinstance(part, SiteStatistics) else _site(part, name, spec, seed)
        say(f"{site.name}: {site.samples:,} samples, {len(site.classes)} classes, d = {site.d}")
        sites.append(site)
        held_out.append(part.test if isinstance(part, FeatureFile) else None)
    mesh, held_out = _connected(mesh, sites, held_out)
    say(f"Connected {len(mesh.sites)} sites in {mesh.dimensions} dimensions; asking what they understand of each other")
    numbers = understanding(mesh, held_out)
    _write(mesh, numbers, out)
    return numbers


def _site(file: FeatureFile, name: str, spec: SketchSpec | None, seed: int) -> SiteStatistics:
    return SiteStatistics.of(file.train.Z, file.train.words, X=file.X, name=name, sketch=spec, seed=seed)


def _agreed(known: Sequence[SiteStatistics], sketching: Sketching) -> tuple[SketchSpec | None, int]:
    """Return the sketch for files of features: as told, else as sites that sent statistics took it."""
    use = next((site.sketch for site in known if site.sketch), None)
    if use is None or sketching.name == "off":
        return sketching.spec(), sketching.seed or 0
    wanted = sketching.name not in (None, "auto") or sketching.p is not None
    return sketching.spec() if wanted else use.spec, use.seed if sketching.seed is None else sketching.seed


def _connected(
    mesh: Connection | None, sites: Sequence[SiteStatistics], held_out: list[Labelled | None]
) -> tuple[Connection, list[Labelled | None]]:
    """Return a new connection, or the finished one with the sites joined to it; and held-out features of all sites."""
    if mesh is None:
        return connect(sites), held_out
    before: list[Labelled | None] = [None] * len(mesh.sites)
    for site in sites:
        mesh = mesh.join(site)
    return mesh, [*before, *held_out]


def _names(files: Sequence[Path], sent: Sequence[SiteStatistics | FeatureFile]) -> list[str]:
    """Return the names of the sites: as sent, or files' own, with their folder where two are alike."""
    stems = [file.stem for file in files]
    return [
        part.name
        if isinstance(part, SiteStatistics)
        else stem
        if stems.count(stem) == 1
        else f"{file.parent.name}/{stem}"
        for file, stem, part in zip(files, stems, sent, strict=True)
    ]


def _write(mesh: Connection, numbers: dict[str, Any], out: Path) -> None:
    """Make the folder appear whole or not at all."""
    temporary = out.with_name(f".{out.name}.{uuid.uuid4().hex[:8]}")
    try:
        mesh.save(temporary, **numbers)
        write_text(temporary / "index.html", render(mesh, numbers))
        if out.exists():
            out.rmdir()
        temporary.rename(out)
    except OSError as error:
        raise RatemeshError(f"cannot write '{out}': {error}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)

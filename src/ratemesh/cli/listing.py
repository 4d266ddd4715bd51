"""`ratemesh list`: what a configuration can name, and every setting with its default and meaning."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args

import typer
from pydantic.fields import FieldInfo
from rich.markup import escape

from ratemesh.cli import screen
from ratemesh.data import DATASETS, PARTITIONS
from ratemesh.data.sketches import SKETCHES
from ratemesh.encoders import ENCODERS
from ratemesh.engines import ENGINES
from ratemesh.errors import InputError
from ratemesh.experiment.config import Config
from ratemesh.experiment.named import experiments, first_words
from ratemesh.experiment.presets import PRESETS
from ratemesh.graph import TOPOLOGIES
from ratemesh.messages.codecs import CODECS
from ratemesh.methods import METHODS
from ratemesh.specs import NamedSpec, Spec, nearest

CATALOGUES: dict[str, Mapping[str, type[NamedSpec]]] = {
    "codecs": CODECS,
    "datasets": DATASETS,
    "encoders": ENCODERS,
    "engines": ENGINES,
    "methods": METHODS,
    "partitions": PARTITIONS,
    "sketches": SKETCHES,
    "topologies": TOPOLOGIES,
}

KINDS = ("settings", "experiments", "presets", *CATALOGUES)


def list_(what: Annotated[str, typer.Argument(help=", ".join(KINDS) + ".")]) -> None:
    """Show every setting with its default and meaning, or what a configuration can name.

    Example: `ratemesh list settings`
    """
    if what not in KINDS:
        raise InputError(f"list takes a kind of thing; got '{what}'. {nearest(what, KINDS)}")
    if what == "settings":
        _show(Config)
    elif what == "presets":
        screen.say("\n".join(PRESETS))
    elif what == "experiments":
        for name, file in experiments().items():
            _head(name, first_words(file))
    else:
        for name, cls in CATALOGUES[what].items():
            _head(name, _first_line(cls))
            _show(cls, "  ")


def _head(name: str, words: str) -> None:
    screen.console.print(f"[bold]{escape(name)}[/bold]  {escape(words)}", soft_wrap=True)


def _show(cls: type[Spec], indent: str = "") -> None:
    """Print the settings of a spec with their defaults, those of specs inside it below it."""
    for name, field in cls.model_fields.items():
        if name == "name":
            continue
        inner = table_of(field)
        if inner is None:
            screen.say(f"{indent}{name} {_default(field)}  {meaning(field)}{_see(field)}")
        else:
            screen.say(f"{indent}{name}.  {meaning(field)}")
            _show(inner, indent + "  ")


def _default(field: FieldInfo) -> str:
    return "required" if field.is_required() else f"= {_in_toml(field.get_default(call_default_factory=True))}"


def table_of(field: FieldInfo) -> type[Spec] | None:
    """Return the spec whose settings are a table of their own; None for plain values and for what a name selects."""
    return next((cls for cls in _specs(field.annotation) if not issubclass(cls, NamedSpec)), None)


def meaning(field: FieldInfo) -> str:
    """Return what a setting means; a table without a description has its spec's first line."""
    inner = table_of(field)
    return field.description or (_first_line(inner) if inner else "")


def _see(field: FieldInfo) -> str:
    """Return where the names that a setting may have are listed with their settings."""
    for cls in _specs(field.annotation):
        for kind, catalogue in CATALOGUES.items():
            if all(issubclass(known, cls) for known in catalogue.values()):
                return f" (ratemesh list {kind})"
    return ""


def _specs(annotation: Any) -> Iterator[type[Spec]]:
    """Yield the specs that an annotation speaks of, also inside lists and alternatives."""
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        yield annotation
    for part in get_args(annotation):
        yield from _specs(part)


def _first_line(cls: type[Spec]) -> str:
    return (cls.__doc__ or "").splitlines()[0]


def _in_toml(value: Any) -> str:
    """Return a default as a configuration would have it; a word without its quotes, as --set takes it."""
    if isinstance(value, Mapping | NamedSpec):
        return str(value["name"] if isinstance(value, Mapping) else value.name)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_in_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return "not set" if value is None else str(value)

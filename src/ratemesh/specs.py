"""Named, validated settings: the one mechanism behind every table of a configuration file.

A `Spec` is a frozen pydantic model whose fields are the settings of one named thing (a data set, a
topology, an encoder, a method, an engine). Each package keeps a literal dict `name -> Spec class`;
`resolve` turns a TOML table such as `{name = "ring", nodes = 8}` into a validated instance. A name of
the form `package.module:Class` loads a user's own class, so plug-ins change nothing in here. Relative paths and the
modules of such classes are looked for beside the file that names them, see `named_in`.
"""

import difflib
import importlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from ratemesh.errors import InputError


@dataclass
class Home:
    """The folder of the file whose settings are read, and whether a class was found in a module there."""

    folder: Path
    used: bool = False


_HOME: ContextVar[Home | None] = ContextVar("home", default=None)


@contextmanager
def named_in(folder: Path) -> Iterator[Home]:
    """Have settings that are made inside take relative paths, and modules of own classes, from this folder."""
    token = _HOME.set(home := Home(folder.resolve()))
    try:
        yield home
    finally:
        _HOME.reset(token)


class FromHere(str):
    """A word that was given to a command, not in a file: as a path it is relative to the current folder."""

    __slots__ = ()


def from_here(value: Any) -> Any:
    """Return a value, at any depth, with all words in it marked as given to a command."""
    if isinstance(value, Mapping):
        return {key: from_here(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_here(item) for item in value]
    return FromHere(value) if isinstance(value, str) else value


class Spec(BaseModel):
    """Base of all settings: frozen, unknown keys refused, numbers finite, defaults validated."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _beside_the_file(cls, value: Any, info: ValidationInfo) -> Any:
        """Make a path absolute: it is relative to the file that names it."""
        home, kind = _HOME.get(), cls.model_fields[str(info.field_name)].annotation
        if home is None or not isinstance(value, str | Path) or (kind is not Path and Path not in get_args(kind)):
            return str(value) if isinstance(value, FromHere) else value  # a choice of words takes plain words only
        return (Path.cwd() if isinstance(value, FromHere) else home.folder) / Path(value).expanduser()


class NamedSpec(Spec):
    """Settings that a table's `name` selects; `kind` is the word used in messages."""

    kind: ClassVar[str] = "thing"
    name: str = ""


SpecT = TypeVar("SpecT", bound=NamedSpec)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a remedy sentence: the nearest known word if there is one, and all that are known."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return f"{hint}Known: {', '.join(known)}."


def resolve(table: object, registry: Mapping[str, type[SpecT]], base: type[SpecT], where: str) -> SpecT:
    """Turn a table with a `name` into the Spec that the name stands for.

    Args:
        table: mapping of settings, or a bare name, or an instance, which needs no name: it gets that of its class.
        registry: literal dict of the built-in names.
        base: class that a plug-in must derive from.
        where: the key path of the table, for messages.
    """
    if isinstance(table, base):
        return table if table.name else table.model_copy(update={"name": _name_of(type(table), registry)})
    if isinstance(table, str):
        table = {"name": table}
    if not isinstance(table, Mapping):
        raise InputError(f"{where} must be a table or a name; got {table!r}. Write `[{where}]`.")
    name = table.get("name")
    if not isinstance(name, str) or not name:
        article = "an" if base.kind[0] in "aeiou" else "a"
        raise InputError(f"{where}.name must name {article} {base.kind}; got {name!r}. {nearest('', registry)}")
    cls = _import(name, base, where) if ":" in name else registry.get(name)
    if cls is None:
        own = name.rpartition(".")
        hint = f"Did you mean '{own[0]}:{own[2]}'? Own classes are 'module:Class'. " if _is_dotted(name) else ""
        raise InputError(f"{where}.name must be a known {base.kind}; got '{name}'. {hint}{nearest(name, registry)}")
    return build(cls, dict(table), where)


def _name_of(cls: type[NamedSpec], registry: Mapping[str, type[NamedSpec]]) -> str:
    """Return what a table would call a class."""
    known = {held: name for name, held in registry.items()}
    return known.get(cls, f"{cls.__module__}:{cls.__qualname__}")


def _is_dotted(name: str) -> bool:
    """Whether a name looks like module.Class."""
    return re.fullmatch(r"\w+(\.\w+)+", name) is not None


def _import(name: str, base: type[SpecT], where: str) -> type[SpecT]:
    module, _, attribute = name.partition(":")
    try:
        cls = getattr(import_beside(module, where), attribute)
    except (
        ImportError,
        AttributeError,
        TypeError,
        ValueError,
        SyntaxError,
    ) as error:  # "", and names that begin with a dot
        raise InputError(
            f"{where}.name must be importable as 'module:Class'; got '{name}' ({error}). "
            "Check the spelling, and that the module is beside the configuration file or on PYTHONPATH."
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise InputError(f"{where}.name must be a subclass of {base.__name__}; got '{name}'. Derive from it.")
    return cls


def import_beside(name: str, where: str) -> Any:
    """Import a module, from the folder of the file that names it if it is there.

    That folder then stays at the end of `sys.path`, where it shadows nothing: modules in it may import each other at
    any time, and processes that are started from here find them.
    """
    home, place = _HOME.get(), name.replace(".", "/")
    beside = home and next(
        (p for end in (".py", "/__init__.py") if (p := home.folder / f"{place}{end}").is_file()), None
    )
    if not home or not beside:
        return importlib.import_module(name)
    home.used = True
    if str(home.folder) not in sys.path:
        sys.path.append(str(home.folder))
        importlib.invalidate_caches()
    module = importlib.import_module(name)
    if Path(module.__file__ or "").resolve() != beside.resolve():
        raise InputError(
            f"{where}.name must name one module; '{name}' is '{beside}', but '{module.__file__}' was found first. "
            "Rename the file."
        )
    return module


def build(cls: type["AnySpec"], table: Mapping[str, Any], where: str) -> "AnySpec":
    """Validate `table` as `cls`; on failure raise one InputError that names key, value and remedy."""
    try:
        return cls.model_validate(dict(table))
    except ValidationError as error:
        raise InputError(explain(error, cls, where)) from None


AnySpec = TypeVar("AnySpec", bound=Spec)


def explain(error: ValidationError, cls: type[Spec], where: str) -> str:
    """Say in one line per fault what pydantic found, in the words of the configuration file."""
    lines = []
    for fault in error.errors():
        path = ".".join([where, *map(str, fault["loc"])]).lstrip(".")
        if fault["type"] == "extra_forbidden":
            known = _fields_at(cls, fault["loc"][:-1])
            lines.append(f"{path} is not a setting. {nearest(str(fault['loc'][-1]), known)}")
        elif isinstance(cause := fault.get("ctx", {}).get("error"), InputError):
            lines.append(str(cause))
        else:
            lines.append(f"{path}: {fault['msg']}; got {fault['input']!r}.")
    return "\n".join(lines)


def _fields_at(cls: type[Spec], path: tuple[int | str, ...]) -> Iterable[str]:
    """Return the field names of the nested Spec at `path` below `cls`."""
    for key in path:
        field = cls.model_fields.get(str(key))
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, Spec)):
            break
        cls = inner
    return cls.model_fields

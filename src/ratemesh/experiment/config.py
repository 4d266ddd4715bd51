"""One TOML file on top of a preset, strict: what it says is what runs, and what it misspells is an error."""

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BeforeValidator, Field, SerializeAsAny, model_validator

from ratemesh.core.subspace import SubspaceRule
from ratemesh.data import DATASETS, PARTITIONS, DatasetSpec, PartitionSpec
from ratemesh.devices import Devices, Precision
from ratemesh.encoders import ENCODERS, EncoderSpec
from ratemesh.engines import ENGINES, EngineSpec
from ratemesh.errors import InputError
from ratemesh.experiment.named import find_experiment
from ratemesh.experiment.presets import PRESETS, preset_for
from ratemesh.experiment.stopping import StoppingSpec
from ratemesh.graph import TOPOLOGIES, TopologySpec
from ratemesh.methods import METHODS, MethodSpec
from ratemesh.specs import NamedSpec, Spec, build, from_here, named_in, nearest, resolve
from ratemesh.training.local import LocalSpec

NAMES: dict[str, Any] = {
    "partition": {"name": "stratified"},
    "data": {"name": "digits"},
    "graph": {"name": "erdos_renyi"},
    "method": {"name": "alg1"},
    "engine": {"name": "inprocess"},
}
"""What a table without a name stands for, so that `--set method.gamma=2` needs no `method.name`."""


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `over` on `base`, table by table; naming another thing drops the base's settings for the old one."""
    return {**base, **{key: _laid(base.get(key), value) for key, value in over.items()}}


def _laid(below: Any, value: Any) -> Any:
    """Lay one setting on what is below it."""
    if not isinstance(below, Mapping):
        return value
    above = {"name": value} if isinstance(value, str) else value
    if not isinstance(above, Mapping) or above.get("name", below.get("name")) != below.get("name"):
        return above
    return merged(below, above)


def _named(registry: Mapping[str, type[Any]], base: type[NamedSpec], where: str) -> Any:
    """Return a validator that turns a table with a name into the Spec it stands for."""
    return BeforeValidator(lambda table: resolve(table, registry, base, where))


class EvaluationSpec(Spec):
    """How the learned features are judged at the end."""

    energy: float = Field(0.95, gt=0, le=1, description="part of a class's variance that its subspace keeps")
    rank: Annotated[int, Field(ge=0)] | Literal["d/K"] | None = Field(
        None, description='instead: number r_k of directions, the same for every class; "d/K" is the ideal of Theorem 1'
    )

    def rule(self, d: int, num_classes: int) -> SubspaceRule:
        """Return the rule for K classes in d dimensions: K orthogonal subspaces have room for d/K directions each."""
        return SubspaceRule(self.energy, max(1, d // num_classes) if self.rank == "d/K" else self.rank)


EVALUATIONS = 10
"""About how often a run is evaluated on its way where nothing is said."""


class OutputSpec(Spec):
    """What a run leaves behind, beside its records."""

    checkpoint_every: int = Field(1, ge=1, description="rounds between checkpoints")
    evaluate_every: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        "auto",
        description='rounds between held-out numbers in the records; "auto" is ten times a run, 0 only at the end',
    )
    evaluate: Literal["validation", "both"] = Field(
        "validation",
        description="samples those are of; both: test samples too, which are looked at where there are no others",
    )
    evaluate_samples: int = Field(2000, ge=2, description="most samples of each part that are looked at for those")
    features: int = Field(2000, ge=0, description="samples whose features are kept for figures; 0 keeps none")

    def evaluates(self, t: int, rounds: int) -> bool:
        """Whether round t of so many records held-out numbers."""
        if self.evaluate_every == "auto":
            return t == rounds or t % -(-rounds // EVALUATIONS) == 0
        return self.evaluate_every > 0 and t % self.evaluate_every == 0

    def evaluates_any(self, rounds: int) -> bool:
        """Whether any round of so many does."""
        return self.evaluate_every == "auto" or 0 < self.evaluate_every <= rounds


class Config(Spec):
    """A whole experiment."""

    preset: str = Field(
        "plain", description=f"settings to start from: {', '.join(PRESETS)}; a file that names none has the first"
    )
    seed: int = Field(0, ge=0, description="root of every random draw")
    rounds: int = Field(40, ge=1, description="communication rounds T")
    d: int = Field(128, ge=2, description="dimension of the representation space")
    names: list[str] = Field([], description="of the nodes, in order; left out: their numbers")
    same_init: bool = Field(False, description="whether nodes of one architecture start from equal weights")
    device: Devices = Field(
        "auto", description="where nodes compute: auto, cpu, cuda, cuda:1 or mps; a list is dealt out in turn"
    )
    precision: Precision = Field("float32", description="of encoders; bf16 is by autocast, all else stays float32")
    compile: bool = Field(False, description="compile encoders for training with torch.compile")
    partition: Annotated[SerializeAsAny[PartitionSpec], _named(PARTITIONS, PartitionSpec, "partition")] = Field(
        NAMES["partition"], description="how training samples are dealt out to the nodes"
    )
    data: Annotated[SerializeAsAny[DatasetSpec], _named(DATASETS, DatasetSpec, "data")] = Field(
        NAMES["data"], description="what is learned from: samples, labels, and those held out"
    )
    graph: Annotated[SerializeAsAny[TopologySpec], _named(TOPOLOGIES, TopologySpec, "graph")] = Field(
        NAMES["graph"], description="how many nodes there are, and who talks to whom"
    )
    encoders: list[Annotated[SerializeAsAny[EncoderSpec], _named(ENCODERS, EncoderSpec, "encoders")]] = Field(
        ["mlp"],  # type: ignore[list-item]
        min_length=1,
        description="architectures, dealt out to the nodes in turn",
    )
    local: LocalSpec = Field(LocalSpec(), description="training of a node between two exchanges, for every method")
    method: Annotated[SerializeAsAny[MethodSpec], _named(METHODS, MethodSpec, "method")] = Field(
        NAMES["method"], description="the algorithm that brings the nodes together"
    )
    engine: Annotated[SerializeAsAny[EngineSpec], _named(ENGINES, EngineSpec, "engine")] = Field(
        NAMES["engine"], description="where nodes run and how messages travel; the results are the same"
    )
    evaluation: EvaluationSpec = Field(EvaluationSpec(), description="how the learned features are judged")
    stopping: StoppingSpec = Field(StoppingSpec(), description="which round is the best, and when to stop waiting")
    output: OutputSpec = Field(OutputSpec(), description="what a run leaves behind, beside its records")
    folder: Path | None = Field(
        None, description="where modules of own classes are; left out: beside the configuration file"
    )

    @model_validator(mode="after")
    def _named_apart(self) -> "Config":
        if self.names and (len(set(self.names)), len(self.names)) != (self.graph.nodes,) * 2:
            raise InputError(f"names must be one a node, all different, {self.graph.nodes} in all; got {self.names}.")
        return self

    def encoder_of(self, node: int) -> EncoderSpec:
        """Return a node's architecture: the list is dealt out in turn."""
        return self.encoders[node % len(self.encoders)]

    def name_of(self, node: int) -> str:
        """Return what people call a node."""
        return self.names[node] if self.names else str(node)

    def device_of(self, node: int) -> str:
        """Return the word for where a node computes: a list is dealt out in turn."""
        return self.device if isinstance(self.device, str) else self.device[node % len(self.device)]

    def to_toml(self) -> str:
        """Return the resolved configuration, every default written out."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    def digest(self) -> str:
        """Return a fingerprint of all that decides the results; where data or nodes are, and what is saved, does not.

        Of a path only the last name counts: folders may be moved, and be elsewhere on another machine.
        """
        where: Any = {"engine": set(self.engine.placement), "data": {"dir"}}
        where |= dict.fromkeys(("device", "output", "stopping", "folder", "names"), True)
        decides = self.model_dump(exclude=where)
        if self.stopping.on:  # then what is evaluated decides as well
            seen = self.output.model_dump(include={"evaluate_every", "evaluate", "evaluate_samples"})
            decides |= {"stopping": self.stopping.model_dump(), "evaluated": seen}
        return hashlib.sha256(json.dumps(decides, sort_keys=True, default=_last_name).encode()).hexdigest()


def _last_name(path: Path) -> str:
    return path.name


def make_config(table: Mapping[str, Any], overrides: Sequence[str] = (), folder: Path | None = None) -> Config:
    """Validate a table of settings on top of its preset; overrides are "a.b=value" and win.

    Args:
        folder: where relative paths in the table begin, and modules of own classes are; default the current folder.
            The table's own `folder` wins.
    """
    own = table.get("folder")
    with named_in(Path(own) if isinstance(own, str | Path) else folder or Path.cwd()) as home:
        config = _validated(table, overrides)
    return config.model_copy(update={"folder": home.folder if home.used else None})


def _validated(table: Mapping[str, Any], overrides: Sequence[str]) -> Config:
    given = dict(table)
    for override in overrides:
        _override(given, override)
    preset = given.get("preset", "default")
    if not isinstance(preset, str) or preset not in PRESETS:
        raise InputError(f"preset must be a known name; got {preset!r}. {nearest(str(preset), PRESETS)}")
    below = merged(NAMES, preset_for(preset, given.get("method")))
    return build(Config, merged(below, {**given, "preset": preset}), "")


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read and validate a TOML file; relative paths in it, and modules of own classes, are beside it.

    The name of an experiment that comes with ratemesh will do; paths are then relative to the working directory.
    """
    return make_config(read_toml(find_experiment(path), "config"), overrides, path.absolute().parent)


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """Read a TOML file; `what` names it in messages."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{what} must be a readable TOML file; got '{path}' ({error}).") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{what} must be valid TOML; '{path}' is not: {error}.") from None


def _override(table: dict[str, Any], override: str) -> None:
    """Apply "a.b=value"; the value is TOML, or a plain word; paths in it are relative to the current folder."""
    key, equals, text = override.partition("=")
    keys = key.strip().split(".")
    if not equals or not all(keys):
        raise InputError(f"--set must look like a.b=value; got '{override}'. Example: --set method.rho=0.05")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    for step in keys[:-1]:
        inner = table.get(step, {})
        # `data = "digits"` is short for a table with a name
        table[step] = {"name": inner} if isinstance(inner, str) else dict(inner) if isinstance(inner, Mapping) else {}
        table = table[step]
    table[keys[-1]] = from_here(value)

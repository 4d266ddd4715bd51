"""Named sets of settings that a configuration starts from."""

from collections.abc import Mapping
from typing import Any

from ratemesh.methods import METHODS, MethodSpec
from ratemesh.specs import NamedSpec, resolve
from ratemesh.training.coupled import CoupledSpec

_AS_PRINTED: dict[str, Any] = {
    "method": {
        "name": "alg1",
        "objective_scale": "paper",
        "rho": 0.1,
        "gamma": 1.0,
        "coupling": {"schedule": "constant", "balance": 0},
        "running": {"beta": 1.0},
        "gauge": {"enabled": False},
        "warm_start": {"epochs": 0},
    },
    "local": {"epochs": 5, "batch_size": 1000, "lr": 0.1, "weight_decay": 1e-5, "schedule": "constant"},
}

NAMES: dict[str, Any] = {
    "partition": {"name": "stratified"},
    "data": {"name": "digits"},
    "graph": {"name": "erdos_renyi"},
    "method": {"name": "alg1"},
    "engine": {"name": "inprocess"},
}
"""What a table without a name stands for, so that `--set method.gamma=2` needs no `method.name`."""

PRESETS: dict[str, Mapping[str, Any]] = {
    "default": {},
    "paper": _AS_PRINTED,
    "paper-stable": {**_AS_PRINTED, "local": {**_AS_PRINTED["local"], "lr": 1e-3}},
}
"""default: the fields' own defaults, what pays. paper: Algorithm 1 as printed, and what shares its settings, Adam at
0.1 as for MNIST. paper-stable: the same with Adam at 0.001, a rate that trains on every set we tried."""


def preset_for(name: str, method: Any) -> Mapping[str, Any]:
    """Return a preset's settings for the method that a configuration names (a table or a bare name).

    What is printed of Algorithm 1 holds for every method that has its settings, plug-ins too; a method with other
    settings takes local training only.
    """
    preset = PRESETS[name]
    base: type[NamedSpec] = MethodSpec
    named = method.get("name") if isinstance(method, Mapping) else method
    if not preset or not named or not isinstance(resolve(method, METHODS, base, "method"), CoupledSpec):
        return preset
    return {**preset, "method": {**preset["method"], "name": named}}


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

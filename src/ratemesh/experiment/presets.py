"""Settings to start from: what was chosen on validation samples, the fields' own defaults, the paper's."""

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

_HYBRID: dict[str, Any] = {
    "rounds": 24,
    "local": {"optimizer": "muon"},
    "method": {"name": "alg1", "cross_entropy": 30.0, "running": {"refresh": 4}, "warm_start": {"epochs": 0}},
}

RECIPES: dict[str, Mapping[str, Any]] = {"default": _HYBRID, "table": _HYBRID, "images": _HYBRID}
"""What was chosen on validation samples of tables and images (experiments/RESULTS.md, "Recipes"): cross-entropy beside
−ΔR, a hybrid, by Muon. One recipe turned out to do for both; the names say what it was tried on."""

PRESETS: dict[str, Mapping[str, Any]] = {
    **RECIPES,
    "plain": {},
    "paper": _AS_PRINTED,
    "paper-stable": {**_AS_PRINTED, "local": {**_AS_PRINTED["local"], "lr": 1e-3}},
}
"""plain: the fields' own defaults, Adam and −ΔR alone after a warm start. paper: Algorithm 1 as printed, and what
shares its settings, Adam at 0.1 as for MNIST. paper-stable: the same with Adam at 0.001, a rate that trains on every
set we tried."""


def preset_for(name: str, method: Any) -> Mapping[str, Any]:
    """Return a preset's settings for the method that a configuration names (a table, a bare name or an object).

    What is set for Algorithm 1 holds for every method that has its settings, plug-ins too. A method with other settings
    takes local training only of what is printed, and nothing of a recipe, which was not tried with it.
    """
    preset = PRESETS[name]
    base: type[NamedSpec] = MethodSpec
    named = method.get("name") if isinstance(method, Mapping) else method
    if not preset or not named:
        return preset
    if not isinstance(resolve(method, METHODS, base, "method"), CoupledSpec):
        return {} if name in RECIPES else preset
    return {**preset, "method": {**preset["method"], "name": named}} if isinstance(named, str) else preset

"""The paper's experiments by name: one TOML file a panel and scale, shipped with the package."""

from collections.abc import Sequence
from pathlib import Path

from ratemesh.errors import InputError
from ratemesh.experiment.config import Config, load_config
from ratemesh.specs import nearest

PANELS = ("mnist-iid", "mnist-4x5", "mnist-5x4", "cifar10-iid", "cifar10-4x5", "cifar10-5x4", "cifar100-iid")
"""Data set, and who has what: the same distribution everywhere, or so many nodes with so many labels each."""
SCALES = ("small", "paper")


def panel_file(name: str, scale: str) -> Path:
    """Return the TOML file of a panel: in an installed package beside this module, in a checkout in experiments/."""
    if name not in PANELS:
        raise InputError(f"panel must be a known name; got '{name}'. {nearest(name, PANELS)}")
    if scale not in SCALES:
        raise InputError(f"scale must be a known name; got '{scale}'. {nearest(scale, SCALES)}")
    places = [Path(__file__).parent / "tables", Path(__file__).parents[3] / "experiments"]
    found = [file for place in places if (file := place / f"{name}-{scale}.toml").is_file()]
    if not found:
        raise InputError(f"panel '{name}' must be installed as {name}-{scale}.toml; it is not. Reinstall ratemesh.")
    return found[0]


def load_panel(name: str, scale: str, overrides: Sequence[str] = ()) -> Config:
    """Read a panel's configuration; overrides win."""
    return load_config(panel_file(name, scale), overrides)

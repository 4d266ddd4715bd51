"""`load`: meshes that were trained before, from their folders."""

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from ratemesh.errors import InputError
from ratemesh.experiment.config import read_toml
from ratemesh.experiment.records import RunFolder
from ratemesh.experiment.saved import CARD, read_saved
from ratemesh.experiment.trials import is_trials
from ratemesh.mesh.mesh import Mesh
from ratemesh.specs import named_in


def load(path: str | Path, networks: Sequence[nn.Module] | None = None, *, folder: str | Path | None = None) -> Mesh:
    """Read a mesh that `Mesh.save` or any finished run has left.

    Args:
        path: a saved mesh, or the folder of a run.
        networks: a network a node, where they were given as objects whose classes cannot be made again.
        folder: where the modules of own networks are; unless given, where the run's configuration had them, else the
            current folder.
    """
    run = RunFolder(Path(path))
    if is_trials(run.path):
        first = run.path / "trial-1"
        raise InputError(f"path must be one run; '{run.path}' holds trials. Load one of them, e.g. {first}.")
    for place in (run.path, run.mesh):
        if (place / CARD).is_file():
            with named_in(_code(run, folder)):
                return Mesh.of(read_saved(place, networks))
    if run.config.is_file():
        raise InputError(
            f"'{run.path}' must be a finished run; it has no mesh yet. Go on with it: ratemesh resume {run.path}"
        )
    raise InputError(
        f"path must be a saved mesh or the folder of a run; '{run.path}' has neither {CARD} nor config.toml."
    )


def _code(run: RunFolder, given: str | Path | None) -> Path:
    """Return where modules of own networks are: never in the folder that is read, whose sender may be anybody."""
    if given is not None:
        if not Path(given).is_dir():
            raise InputError(f"folder must hold the modules of own networks; '{given}' is no folder.")
        return Path(given)
    told = read_toml(run.config, "config").get("folder") if run.config.is_file() else None
    found = Path(told).resolve() if isinstance(told, str) else Path.cwd()
    return found if found.is_dir() and run.path.resolve() not in (found, *found.parents) else Path.cwd()

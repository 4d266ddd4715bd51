"""Several settings on the same ground: data, partition, graph size, seeds and budget must agree."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ratemesh.errors import InputError
from ratemesh.experiment.config import Config
from ratemesh.experiment.experiment import Progress
from ratemesh.experiment.records import RunFolder
from ratemesh.experiment.trials import TrialsResult, more_trials, resume_trials, run_trials

SAME = ("data", "partition", "seed", "d")
"""Settings that must be equal for a comparison to mean anything."""


@dataclass(frozen=True)
class Entry:
    """One side of a comparison."""

    name: str
    config: Config


def budget(config: Config) -> int:
    """Return passes over the training data: rounds × local epochs, and those before the first round."""
    return config.rounds * config.local.epochs + config.method.epochs_before


def check_comparable(entries: Sequence[Entry]) -> None:
    """Refuse a comparison that would compare apples with oranges, naming what differs."""
    if len({entry.name for entry in entries}) < len(entries):
        raise InputError(f"configs must have different file names; got {[entry.name for entry in entries]}.")
    first = entries[0]
    for other in entries[1:]:
        differing = [key for key in SAME if getattr(first.config, key) != getattr(other.config, key)]
        sizes = {first.config.graph.nodes, other.config.graph.nodes} - {
            1
        }  # one node is centralised: all data, no graph
        if len(sizes) > 1:
            differing.append("graph.nodes")
        if budget(first.config) != budget(other.config):
            differing.append(
                f"rounds × local.epochs and warm start ({budget(first.config)} against {budget(other.config)})"
            )
        if differing:
            raise InputError(
                f"configs must share data, seed and budget; '{first.name}' and '{other.name}' differ in "
                f"{', '.join(differing)}. Make them equal, e.g. with --set, which applies to all."
            )


def run_comparison(
    entries: Sequence[Entry], out: Path, trials: int, progress: Callable[[str, int], Progress] | None = None
) -> list[TrialsResult]:
    """Run every entry for all trials into out/NAME, each on the same seeds.

    An interrupted comparison goes on where it stopped, and one that had fewer trials gets the missing ones.
    """
    check_comparable(entries)
    results = []
    for entry in entries:
        folder = out / entry.name
        track = _named(entry.name, progress) if progress else None
        if not folder.exists():
            results.append(run_trials(entry.config, folder, trials, track))
            continue
        if RunFolder.existing(folder).load_config() != entry.config:
            raise InputError(f"'{folder}' belongs to another configuration. Choose another --out, or delete it.")
        more_trials(folder, trials)
        results.append(resume_trials(folder, track))
    return results


def _named(name: str, progress: Callable[[str, int], Progress]) -> Callable[[str, int], Progress]:
    return lambda trial, rounds: progress(f"{name} {trial.removeprefix('trial-')}", rounds)

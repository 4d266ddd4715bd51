"""Several settings on the same ground: data, partition, graph size, seeds and budget must agree."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ratemesh.errors import InputError
from ratemesh.experiment.config import Config
from ratemesh.experiment.plan import Plan
from ratemesh.experiment.records import RunFolder
from ratemesh.experiment.trials import TrialsResult, is_complete, more_trials, plan_trials, resume_trials, run_trials
from ratemesh.studies.beside import Track, on_one_core, resume_beside

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
    entries: Sequence[Entry], out: Path, trials: int, progress: Track | None = None, *, jobs: int = 1
) -> list[TrialsResult]:
    """Run every entry for all trials into out/NAME, each on the same seeds.

    An interrupted comparison goes on where it stopped, and one that had fewer trials gets the missing ones.

    Args:
        jobs: entries that are run side by side, each on one core; 1 runs one after the other on all cores.
    """
    check_comparable(entries)
    if jobs > 1:
        _run_beside(entries, out, trials, progress, jobs)
        progress = None  # everything is there and was shown; what follows only adds it up
    results = []
    for entry in entries:
        folder = out / entry.name
        track = _named(entry.name, progress) if progress else None
        if not folder.exists():
            results.append(run_trials(entry.config, folder, trials, track))
            continue
        _go_on_with(folder, entry.config, trials)
        results.append(resume_trials(folder, track))
    return results


def _run_beside(entries: Sequence[Entry], out: Path, trials: int, progress: Track | None, jobs: int) -> None:
    """Train what is missing of all entries, side by side; what cannot work is found out before any is started."""
    folders = {out / entry.name: entry for entry in entries}
    for folder, entry in folders.items():
        if folder.exists():
            _go_on_with(folder, entry.config, trials)
    missing = {folder: entry for folder, entry in folders.items() if not (folder.exists() and is_complete(folder))}
    for entry in missing.values():
        Plan(entry.config).check()
    for folder, entry in missing.items():
        if not folder.exists():
            plan_trials(on_one_core(entry.config), folder, trials)
    resume_beside(list(missing), jobs, {f: _named(e.name, progress) for f, e in missing.items()} if progress else {})


def _go_on_with(folder: Path, config: Config, trials: int) -> None:
    """Refuse a folder of another experiment; plan the trials that it lacks."""
    if RunFolder.existing(folder).load_config().digest() != config.digest():
        raise InputError(f"'{folder}' belongs to another configuration. Choose another --out, or delete it.")
    more_trials(folder, trials)


def _named(name: str, progress: Track) -> Track:
    return lambda trial, rounds: progress(f"{name} {trial.removeprefix('trial-')}", rounds)

"""Several experiments on the same ground: data, partition, graph size, seeds and budget must agree.

They run one after the other on all cores, or side by side, each in a process of its own on one core.
"""

import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from ratemesh.errors import InputError, RatemeshError
from ratemesh.experiment.config import Config, load_config
from ratemesh.experiment.experiment import Progress
from ratemesh.experiment.launch import last_words, start, stop
from ratemesh.experiment.plan import Plan
from ratemesh.experiment.records import RunFolder
from ratemesh.experiment.trials import TrialsResult, is_complete, more_trials, plan_trials, resume_trials, run_trials

SAME = ("data", "partition", "seed", "d")
"""Settings that must be equal for a comparison to mean anything."""

LOOK_SECONDS = 0.5

Track = Callable[[str, int], Progress]
"""Given a trial's name and its rounds, returns what is called every round."""


def load_configs(paths: Sequence[Path], overrides: Sequence[str] = ()) -> dict[str, Config]:
    """Read several experiments, each named by its file; overrides win in all of them."""
    names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        raise InputError(f"configs must have different file names; got {names}.")
    return {path.stem: load_config(path, overrides) for path in paths}


def budget(config: Config) -> int:
    """Return passes over the training data: rounds × local epochs, and those before the first round."""
    return config.rounds * config.local.epochs + config.method.epochs_before


def check_comparable(configs: Mapping[str, Config]) -> None:
    """Refuse a comparison that would compare apples with oranges, naming what differs."""
    (name, first), *others = configs.items()
    for other_name, other in others:
        differing = [key for key in SAME if getattr(first, key) != getattr(other, key)]
        if len({first.graph.nodes, other.graph.nodes} - {1}) > 1:  # one node is centralised: all data, no graph
            differing.append("graph.nodes")
        if budget(first) != budget(other):
            differing.append(f"rounds × local.epochs and warm start ({budget(first)} against {budget(other)})")
        if differing:
            raise InputError(
                f"configs must share data, seed and budget; '{name}' and '{other_name}' differ in "
                f"{', '.join(differing)}. Make them equal, e.g. with --set, which applies to all."
            )


def run_comparison(
    configs: Mapping[str, Config], out: Path, trials: int, progress: Track | None = None, *, jobs: int = 1
) -> list[TrialsResult]:
    """Run every experiment for all trials into out/NAME, each on the same seeds.

    An interrupted comparison goes on where it stopped, and one that had fewer trials gets the missing ones.

    Args:
        jobs: experiments that are run side by side, each on one core; 1 runs one after the other on all cores.
    """
    check_comparable(configs)
    if jobs > 1:
        _run_beside(configs, out, trials, progress, jobs)
        progress = None  # everything is there and was shown; what follows only adds it up
    results = []
    for name, config in configs.items():
        folder, track = out / name, _named(name, progress) if progress else None
        if folder.exists():
            _go_on_with(folder, config, trials)
            results.append(resume_trials(folder, track))
        else:
            results.append(run_trials(config, folder, trials, track))
    return results


def _go_on_with(folder: Path, config: Config, trials: int) -> None:
    """Refuse a folder of another experiment; plan the trials that it lacks."""
    if RunFolder.existing(folder).load_config().digest() != config.digest():
        raise InputError(f"'{folder}' belongs to another configuration. Choose another --out, or delete it.")
    more_trials(folder, trials)


def _named(name: str, progress: Track) -> Track:
    """Return what follows the trials of one experiment among several."""
    return lambda trial, rounds: progress(f"{name} {trial.removeprefix('trial-')}", rounds)


def _run_beside(configs: Mapping[str, Config], out: Path, trials: int, progress: Track | None, jobs: int) -> None:
    """Train what is missing, `jobs` experiments at a time; what cannot work is found out before any is started."""
    for name, config in configs.items():
        if (out / name).exists():
            _go_on_with(out / name, config, trials)
    missing = [name for name in configs if not ((out / name).exists() and is_complete(out / name))]
    for name in missing:
        Plan(configs[name]).check()
    for name in missing:
        if not (out / name).exists():
            plan_trials(_on_one_core(configs[name]), out / name, trials)
    followers = {out / name: Follower(out / name, _named(name, progress)) for name in missing} if progress else {}
    resume_beside([out / name for name in missing], jobs, followers)


def _on_one_core(config: Config) -> Config:
    """Return the experiment with all nodes in one process: as many experiments run side by side as there are cores."""
    if config.engine.name != "inprocess":
        return config
    return config.model_copy(update={"engine": config.engine.model_copy(update={"workers": 1})})


class Follower:
    """Reads the records of a folder's trials as they come, and passes them on."""

    def __init__(self, folder: Path, progress: Track) -> None:
        self._folder = folder
        self._rounds = RunFolder.existing(folder).load_config().rounds
        self._track = cache(lambda trial: progress(trial, self._rounds))
        self._seen: Counter[str] = Counter()

    def look(self) -> None:
        """Pass on what is new."""
        for trial in sorted(self._folder.glob("trial-*")):
            seen = self._seen[trial.name]
            for record in RunFolder(trial).records() if seen < self._rounds else ():
                if record["round"] > seen:
                    self._track(trial.name)(record)
                    self._seen[trial.name] = record["round"]


def resume_beside(folders: Sequence[Path], jobs: int, followers: Mapping[Path, Follower]) -> None:
    """Go on with the trials in all folders, `jobs` at a time; what each says goes to NAME.log beside its folder.

    Raises:
        RatemeshError: names the first that failed and its last words, after all others have ended.
    """
    waiting, failed = deque(folders), []
    logs = {folder: folder.with_name(f"{folder.name}.log") for folder in folders}
    running: dict[Path, subprocess.Popen[str]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                folder = waiting.popleft()
                running[folder] = start(["resume", str(folder)], logs[folder])
            time.sleep(LOOK_SECONDS)
            for folder, process in list(running.items()):
                ended = process.poll() is not None  # asked first, so that its last records are looked at
                if folder in followers:
                    followers[folder].look()
                if ended:
                    del running[folder]
                    if process.returncode:
                        failed.append(folder)
    finally:
        stop(list(running.values()))
    if failed:
        raise RatemeshError(
            f"'{failed[0]}' ended with an error: {last_words(logs[failed[0]])}\n"
            f"All it said is in '{logs[failed[0]]}'. The same command goes on where it stopped."
        )

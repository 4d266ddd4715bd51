"""From the paths that a user names to the entries of a report; trials of one setting are one entry."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ratemesh.errors import InputError
from ratemesh.experiment.records import RunFolder
from ratemesh.experiment.trials import Interval, is_trials
from ratemesh.report.runs import INCOMPLETE, Run, number, open_run, read_config, read_object

DEEPEST = 3
"""Levels of folders that are searched for runs: a comparison holds trials, and a folder may hold comparisons."""

DIFFERS = "differs by trial"
"""What stands for a text or a list that is not the same in all trials."""


def open_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Open run folders, and folders that hold them; return the runs, and what to say of the rest.

    Trials of one setting are one entry.

    Raises:
        InputError: when none of the paths leads to a run.
    """
    found: dict[Path, Path] = {}
    notes = []
    for path in paths:
        members = list(_members(path, DEEPEST))
        if not members:
            lack = "has no config.toml, nor has a folder inside it" if path.is_dir() else "is not a folder"
            notes.append(f"'{path}' must be a run folder; it {lack}. Give the --out of a run.")
        found.update({member.resolve(): member for member in members})
    if not found:
        raise InputError(
            "\n".join(notes) or "runs must name at least one run folder; got none. Give the --out of a run."
        )
    names = _short_names(list(found))
    opened = zip(found.values(), names, strict=True)
    return [open_trials(path, name) if is_trials(path) else open_run(path, name) for path, name in opened], notes


def _members(path: Path, depth: int) -> Iterator[Path]:
    """Yield the folder if it is a run or its trials, else those inside: comparisons and demonstrations hold several."""
    if (path / "config.toml").is_file() or is_trials(path):
        yield path
    elif depth and path.is_dir():
        for inner in sorted(p for p in path.iterdir() if p.is_dir()):
            yield from _members(inner, depth - 1)


def _short_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that tell them all apart."""
    for depth in range(1, max(len(path.parts) for path in paths)):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def open_trials(path: Path, name: str) -> Run:
    """Read the trials in a folder; one that was planned alone is a single run."""
    run = Run(name, path)
    planned = number(read_object(run, path / "trials.json").get("trials"))
    places = {int(end): p for p in path.glob("trial-*") if (end := p.name.removeprefix("trial-")).isdecimal()}
    found = [places[k] for k in sorted(places) if (places[k] / "config.toml").is_file()]
    run.planned = int(planned) if math.isfinite(planned) else len(found)
    if not math.isfinite(planned):
        run.notes.append(f"trials.json does not say how many trials there should be; {len(found)} are there.")
    if run.planned == 1 and len(found) == 1:
        alone = open_run(found[0], name)
        alone.notes += run.notes
        return alone
    read_config(run, RunFolder(path))
    run.trials = [open_run(folder) for folder in found]
    _merge(run)
    run.notes += [*_unfinished(run), *_shared_notes(run.trials)]
    return run


def _merge(run: Run) -> None:
    """Fill the entry from its trials; without a complete one, curves are of what there is."""
    known = run.complete or run.trials
    run.metrics, run.intervals = _metrics(run.complete)
    run.records = _records([trial.records for trial in known if trial.records])
    run.seconds = [seconds for trial in known for seconds in trial.seconds]
    run.cpu_seconds = [seconds for trial in known for seconds in trial.cpu_seconds]
    for trial in known[:1]:
        run.features, run.initial, run.network = trial.features, trial.initial, trial.network
        run.environment = trial.environment


def _metrics(complete: Sequence[Run]) -> tuple[dict[str, Any], dict[str, Interval]]:
    """Return means with intervals; what is not a number is kept if all trials have the same."""
    metrics: dict[str, Any] = {}
    intervals = {}
    for key in dict.fromkeys(key for trial in complete for key in trial.metrics):
        values = [trial.metrics.get(key) for trial in complete]
        known = [v for value in values if math.isfinite(v := number(value))]
        if key == "undefined":
            metrics[key] = [f"{t.name}: {why}" for t in complete for why in t.metrics.get(key) or []]
        elif all(value == values[0] for value in values) and not isinstance(values[0], float):
            metrics[key] = values[0]  # settings and counts: nothing was estimated
        elif known:
            intervals[key] = Interval.of(known)
            metrics[key] = intervals[key].mean
        else:
            metrics[key] = DIFFERS
    return metrics, intervals


def _records(trials: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return means over the trials of the rounds that all of them have."""
    by_round = [{int(record["round"]): record for record in records} for records in trials]
    shared = sorted(set.intersection(*map(set, by_round))) if by_round else []
    return [_record(t, [records[t] for records in by_round]) for t in shared]


def _record(t: int, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    found = [record.get("evaluation") for record in records]
    tables = [table for table in found if isinstance(table, Mapping)]
    evaluation = {"evaluation": _means(tables)} if len(tables) == len(records) else {}
    return {**_means(records), "round": t, **evaluation, "nodes": list(records)}


def _means(tables: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean of every number that all tables have."""
    keys = [key for key in tables[0] if all(math.isfinite(number(table.get(key))) for table in tables)]
    return {key: sum(number(table[key]) for table in tables) / len(tables) for key in keys}


def _unfinished(run: Run) -> list[str]:
    """Say which trials are lacking, what the numbers are of, and how to get the rest."""
    there = {trial.name: trial for trial in run.trials}
    names = [f"trial-{k + 1}" for k in range(run.planned)]
    lacking = [f"{name} ({there[name].state})" for name in names if name in there and not there[name].metrics]
    lacking += [f"{name} (not started)" for name in names if name not in there]
    if not lacking:
        return []
    done = len(run.complete)
    what = (
        "there are no means yet"
        if not done
        else "the numbers are of that one, without an interval"
        if done == 1
        else f"means and intervals are over those {done}"
    )
    return [f"{run.state}, so {what}; lacking: {', '.join(lacking)}. Go on with them: ratemesh resume {run.path}"]


def _shared_notes(trials: Sequence[Run]) -> list[str]:
    """Return what the trials lack, once for all that lack the same; that one is incomplete is said already."""
    by_note: dict[str, list[str]] = {}
    for trial in trials:
        for note in trial.notes:
            if not note.startswith(INCOMPLETE):
                by_note.setdefault(note, []).append(trial.name)
    return [note if len(names) == len(trials) else f"{', '.join(names)}: {note}" for note, names in by_note.items()]

"""Configuration in, run folder out: the only module that knows all the others."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratemesh.engines.protocol import Engine, Site
from ratemesh.errors import StopTraining
from ratemesh.experiment.config import Config, load_config, make_config
from ratemesh.experiment.health import Health
from ratemesh.experiment.outcome import finish, glance, keep_initial, network
from ratemesh.experiment.plan import Plan
from ratemesh.experiment.records import RunFolder, round_record
from ratemesh.experiment.stopping import Course
from ratemesh.experiment.storage import read_json, write_json

Progress = Callable[[Mapping[str, Any]], None]
"""Called with every round's record as soon as it is safe on disk; may raise StopTraining to end the run after it."""

Callbacks = Progress | Sequence[Progress] | None


@dataclass(frozen=True)
class RunResult:
    """Where a run is, and how it ended."""

    folder: Path
    metrics: dict[str, Any]


def run(
    config: Config | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    overrides: Sequence[str] = (),
    progress: Callbacks = None,
) -> RunResult:
    """Run an experiment and leave everything in a new folder.

    Args:
        config: a Config, a table of settings, the path of a TOML file, or the name of an experiment, e.g. "digits".
        out: the run folder, new or empty; default the next free `runs/run-NNN`.
        overrides: settings "a.b=value" that win over the file.
        progress: called after every round, one or several in turn. One that raises `ratemesh.StopTraining` makes this
            round the last: the run is judged and finished, and `resume` does not go on beyond it.

    >>> result = run({"rounds": 2}, "runs/try")  # doctest: +SKIP
    >>> result.metrics["acc_energy"]  # doctest: +SKIP
    0.92
    """
    if isinstance(config, str | Path):
        config = load_config(Path(config), overrides)
    elif not isinstance(config, Config):
        config = make_config(config, overrides)
    return play(Plan(config), out if out is not None else next_free(), progress)


def resume(path: str | Path, *, progress: Callbacks = None) -> RunResult:
    """Go on with a run that was interrupted, from its last good round; the records come out the same."""
    folder = RunFolder.existing(Path(path))
    if folder.metrics.exists():
        return RunResult(folder.path, read_json(folder.metrics))
    return _go_on(Plan(folder.load_config()), folder, progress)


def play(plan: Plan, out: str | Path, progress: Callbacks = None, *, go_on: bool = False) -> RunResult:
    """Train what is planned and leave everything in a folder.

    Args:
        out: the run folder.
        go_on: whether it may be one of an earlier start, which then goes on; else it must be new or empty.
    """
    if go_on and RunFolder(Path(out)).config.is_file():
        folder = RunFolder(Path(out))
        return _go_on(plan, folder, progress)
    plan.check()
    folder = RunFolder.create(Path(out), plan.config)
    write_json(folder.network, network(plan))
    return _go_on(plan, folder, progress)


def next_free() -> Path:
    """Return the first of runs/run-001, runs/run-002, … that is not there yet."""
    return next(p for n in itertools.count(1) if not (p := Path("runs") / f"run-{n:03d}").exists())


def _go_on(plan: Plan, folder: RunFolder, progress: Callbacks) -> RunResult:
    """Play what is left of the rounds, or as many as it takes, then evaluate."""
    config = plan.config
    with folder.locked():
        data = plan.data.digest()
        done = folder.last_good_round(config, data)
        with config.engine.open(plan, plan.topology.nodes) as engine:
            folder.keep_rounds(done)
            if done:
                engine.ask(Site.load, str(folder.states(done)))
            else:
                keep_initial(engine, plan, folder)
            course, health = Course(config.stopping, folder.records(), folder.stopped()), Health(folder.records())
            while course.played < config.rounds and not course.reason:
                record = _play(engine, plan, folder, course.played + 1, health)
                _save_and_tell(engine, plan, folder, course, record, data, progress)
            return RunResult(folder.path, finish(engine, plan, folder, course, health))


def _save_and_tell(
    engine: Engine,
    plan: Plan,
    folder: RunFolder,
    course: Course,
    record: Mapping[str, Any],
    data: str,
    progress: Callbacks,
) -> None:
    """Save what it takes to go on after a round, and tell whoever follows the run."""
    config, t = plan.config, record["round"]
    best = course.see(record)  # the states of a best round are saved, whenever it comes
    saved = best or t % config.output.checkpoint_every == 0 or t == config.rounds or bool(course.reason)
    if saved:
        _checkpoint(engine, folder, course, config, data)
    asked = _tell(progress, record)
    if asked and not course.reason:
        course.reason = asked
        _checkpoint(engine, folder, course, config, data, stopped=asked)


def _tell(progress: Callbacks, record: Mapping[str, Any]) -> str:
    """Call all callbacks; return why one of them wants no more rounds, if one does."""
    callbacks = [progress] if callable(progress) else progress or ()
    reasons = []
    for callback in callbacks:
        try:
            callback(record)
        except StopTraining as stop:
            reasons.append(stop.reason)
    return reasons[0] if reasons else ""


def _play(engine: Engine, plan: Plan, folder: RunFolder, t: int, health: Health) -> dict[str, Any]:
    """Play round t and record it, with accuracies where these are asked for, and a collapse."""
    began, cpu = time.perf_counter(), _cpu_seconds(engine)
    played = engine.play(t)
    sent = {"bytes": played.traffic.bytes.total()}
    if played.traffic.wire:
        sent["wire_bytes"] = played.traffic.wire.total()  # headers included, where messages left their process
    record = round_record(t, played.logs, sent)
    spent = {"seconds": time.perf_counter() - began, "cpu_seconds": _cpu_seconds(engine) - cpu}
    if plan.config.output.evaluates(t, plan.config.rounds):
        began = time.perf_counter()
        record["evaluation"] = glance(engine, plan)
        spent["evaluation_seconds"] = time.perf_counter() - began
    if collapsed := health.see(record):
        record["collapse"] = [finding.record() for finding in collapsed]
    folder.append(folder.rounds, record)
    folder.append(folder.timing, {"round": t, **{key: round(value, 4) for key, value in spent.items()}})
    return record


def _cpu_seconds(engine: Engine) -> float:
    """Return the processor's time that all nodes have taken for their rounds since they were made."""
    return sum(float(answer["seconds"]) for answer in engine.ask(Site.cpu_seconds))


def _checkpoint(
    engine: Engine, folder: RunFolder, course: Course, config: Config, data: str, *, stopped: str = ""
) -> None:
    """Save every node's state, then say that this round is the one to resume from, and the last if it was stopped."""
    t = course.played
    folder.states(t).mkdir(parents=True, exist_ok=True)
    engine.ask(Site.save, str(folder.states(t)))
    folder.commit(t, config, data, best=course.best, stopped=stopped)

"""Configuration in, run folder out: the only module that knows all the others."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ratemesh.core.stats import ClassStats
from ratemesh.engines.protocol import Engine, Played
from ratemesh.experiment.config import Config, load_config, make_config
from ratemesh.experiment.files import read_json, write_json, write_tensors
from ratemesh.experiment.records import SCHEMA, RunFolder
from ratemesh.experiment.site import Plan, factory
from ratemesh.metrics.evaluate import Learned, evaluate

Progress = Callable[[Mapping[str, Any]], None]
"""Called with every round's record as soon as it is safe on disk."""


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
    progress: Progress | None = None,
) -> RunResult:
    """Run an experiment and leave everything in a new folder.

    Args:
        config: a Config, a table of settings, or the path of a TOML file.
        out: the run folder, new or empty; default the next free `runs/run-NNN`.
        overrides: settings "a.b=value" that win over the file.
        progress: called after every round.

    >>> result = run({"rounds": 2}, "runs/try")  # doctest: +SKIP
    >>> result.metrics["acc_energy"]  # doctest: +SKIP
    0.92
    """
    if isinstance(config, str | Path):
        config = load_config(Path(config), overrides)
    elif not isinstance(config, Config):
        config = make_config(config, overrides)
    plan = Plan(config)
    plan.check()
    folder = RunFolder.create(Path(out) if out is not None else _next_free(), config)
    return _go_on(plan, folder, progress)


def resume(path: str | Path, *, progress: Progress | None = None) -> RunResult:
    """Go on with a run that was interrupted, from its last good round; the records come out the same."""
    folder = RunFolder.existing(Path(path))
    if folder.metrics.exists():
        return RunResult(folder.path, read_json(folder.metrics))
    plan = Plan(folder.load_config())
    return _go_on(plan, folder, progress)


def _next_free() -> Path:
    return next(p for n in itertools.count(1) if not (p := Path("runs") / f"run-{n:03d}").exists())


def _go_on(plan: Plan, folder: RunFolder, progress: Progress | None) -> RunResult:
    """Play what is left of the rounds, then evaluate."""
    config = plan.config
    with folder.locked():
        done = folder.last_good_round(config)
        with config.engine.open(factory(config), plan.topology.nodes) as engine:
            folder.keep_rounds(done)
            if done:
                engine.ask("load", str(folder.states(done)))
            else:
                _save_features(engine, plan, folder.initial_features)
            for t in range(done + 1, config.rounds + 1):
                record = _play(engine, folder, t)
                if t % config.output.checkpoint_every == 0 or t == config.rounds:
                    _checkpoint(engine, folder, t, config)
                if progress is not None:
                    progress(record)
            return RunResult(folder.path, _finish(engine, plan, folder))


def _play(engine: Engine, folder: RunFolder, t: int) -> dict[str, Any]:
    """Play round t and record it."""
    began = time.perf_counter()
    record = _record(t, engine.play(t))
    folder.append(folder.rounds, record)
    folder.append(folder.timing, {"round": t, "seconds": round(time.perf_counter() - began, 4)})
    return record


def _record(t: int, played: Played) -> dict[str, Any]:
    """Return a round's record: means over the nodes, then every node's own log."""
    logs = [dict(log) for log in played.logs]
    means = {key: sum(log[key] for log in logs) / len(logs) for key in logs[0]}
    return {"round": t, **means, "bytes": played.traffic.total_bytes, "nodes": logs}


def _checkpoint(engine: Engine, folder: RunFolder, t: int, config: Config) -> None:
    """Save every node's state, then say that round t is the one to resume from."""
    folder.states(t).mkdir(parents=True, exist_ok=True)
    engine.ask("save", str(folder.states(t)))
    folder.commit(t, config.digest())


def _save_features(engine: Engine, plan: Plan, path: Path) -> torch.Tensor:
    """Keep features for figures, a subsample of them; return the held-out ones (N, m, d) whole.

    The file holds Z_test (N, n, d) with y_test (n,): every node's view of the same held-out samples; and Z_train
    (n, d) with y_train and node_train (n,): the paper's Z, every node's view of its own training samples.
    """
    most = plan.config.output.features
    Z_test = torch.stack([answer["Z"] for answer in engine.ask("features", "test")])
    if most:
        kept = spaced(Z_test.shape[1], most)
        tensors = {"Z_test": Z_test[:, kept], "y_test": plan.data.y_test[kept]}
        own = [(a["Z"], a["y"], spaced(len(a["y"]), -(-most // len(Z_test)))) for a in engine.ask("features", "train")]
        tensors["Z_train"] = torch.cat([Z[rows] for Z, _, rows in own])
        tensors["y_train"] = torch.cat([y[rows] for _, y, rows in own])
        tensors["node_train"] = torch.cat([torch.full_like(rows, node) for node, (_, _, rows) in enumerate(own)])
        write_tensors(path, tensors)
    return Z_test


def spaced(total: int, most: int) -> torch.Tensor:
    """Return at most `most` positions in 0..total-1, evenly spaced."""
    return torch.linspace(0, total - 1, min(total, most)).round().long()


def _finish(engine: Engine, plan: Plan, folder: RunFolder) -> dict[str, Any]:
    """Evaluate, write the final numbers, and drop the checkpoint's claim to be needed."""
    config = plan.config
    answers = engine.ask("stats")
    stats = [ClassStats(a["V"], a["mu"], a["m"]) for a in answers]
    Z_test = _save_features(engine, plan, folder.features)
    learned = Learned(stats, Z_test, plan.data.y_test, plan.topology.edges)
    metrics = {
        "schema": SCHEMA,
        "method": config.method.label(plan.topology),
        **evaluate(learned, eps2=config.method.eps2, energy=config.evaluation.energy, rank=config.evaluation.rank),
        "bytes_total": sum(record["bytes"] for record in folder.records()),
        "sample_passes": int(sum(int(a["sample_passes"]) for a in answers)),
        "rounds": config.rounds,
        "nodes": plan.topology.nodes,
        "test_samples": len(plan.data.y_test),
    }
    write_json(folder.metrics, metrics)
    return metrics

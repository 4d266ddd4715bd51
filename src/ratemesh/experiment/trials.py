"""The same experiment over several seeds: mean and 95 % interval, as the paper reports its table."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratemesh.errors import InputError
from ratemesh.experiment.config import Config
from ratemesh.experiment.experiment import Progress, resume, run
from ratemesh.experiment.records import SCHEMA, RunFolder
from ratemesh.experiment.storage import read_json, write_json, write_text

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and the half-width of its confidence interval; infinite from a single value."""

    mean: float
    half_width: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval":
        """Return mean ± t_{0.975, n−1} s/√n of at least one value."""
        n = len(values)
        if n < 2:
            return cls(values[0], float("inf"), tuple(values))
        from scipy.stats import t as student  # slow to import, and every command would wait for it

        quantile = float(student.ppf((1 + CONFIDENCE) / 2, n - 1))
        return cls(statistics.fmean(values), quantile * statistics.stdev(values) / n**0.5, tuple(values))


@dataclass(frozen=True)
class TrialsResult:
    """Where the trials are, and what they came to."""

    folder: Path
    method: str
    metrics: dict[str, Interval]


def run_trials(
    config: Config, out: Path, trials: int, progress: Callable[[str, int], Progress] | None = None
) -> TrialsResult:
    """Run seeds seed, seed+1, … into out/trial-1, …; write out/trials.json.

    Args:
        config: the experiment; its seed is the first.
        out: new or empty folder.
        trials: how many, at least 1.
        progress: given a trial's name and its rounds, returns what is called every round.
    """
    plan_trials(config, out, trials)
    try:
        return resume_trials(out, progress)
    except InputError:
        if not (out / "trial-1").exists():  # it could not even start: leave nothing that is in the way of a better try
            (out / "config.toml").unlink()
            (out / "trials.json").unlink()
            out.rmdir()
        raise


def plan_trials(config: Config, out: Path, trials: int) -> None:
    """Write down what is to be run into a new or empty folder; `resume_trials` runs it."""
    if trials < 1:
        raise InputError(f"trials must be at least 1; got {trials}. The paper uses 5.")
    RunFolder.refuse_occupied(out)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "config.toml", config.to_toml())
    write_json(out / "trials.json", {"schema": SCHEMA, "trials": trials, "complete": False})


def is_trials(folder: Path) -> bool:
    """Whether a folder holds trials rather than one run."""
    return (folder / "trials.json").is_file()


def is_complete(folder: Path) -> bool:
    """Whether all planned trials in a folder are done and added up."""
    return bool(read_json(folder / "trials.json")["complete"])


def more_trials(folder: Path, trials: int) -> None:
    """Plan `trials` of them where there were fewer: the next seeds are run when the trials are resumed."""
    planned = int(read_json(folder / "trials.json")["trials"])
    if trials < planned:
        raise InputError(
            f"trials must be at least what '{folder}' holds, {planned}; got {trials}. Give --trials {planned}, or "
            "another --out."
        )
    if trials > planned:
        write_json(folder / "trials.json", {"schema": SCHEMA, "trials": trials, "complete": False})


def resume_trials(folder: Path, progress: Callable[[str, int], Progress] | None = None) -> TrialsResult:
    """Go on with trials: finished ones are read, an interrupted one is resumed, missing ones are run."""
    config = RunFolder.existing(folder).load_config()
    count = int(read_json(folder / "trials.json")["trials"])
    results = []
    for k in range(count):
        name = f"trial-{k + 1}"
        track = progress(name, config.rounds) if progress else None
        seeded = config.model_copy(update={"seed": config.seed + k})
        started = (folder / name / "config.toml").exists()
        result = resume(folder / name, progress=track) if started else run(seeded, folder / name, progress=track)
        results.append(result.metrics)
    metrics = {key: Interval.of([result[key] for result in results]) for key in numbers(results)}
    method = str(results[0]["method"])
    seeds = [config.seed + k for k in range(count)]
    summary = {"schema": SCHEMA, "trials": count, "complete": True, "method": method, "seeds": seeds}
    plain = {key: {"mean": i.mean, "half_width": i.half_width, "values": i.values} for key, i in metrics.items()}
    write_json(folder / "trials.json", {**summary, "confidence": CONFIDENCE, "metrics": plain})
    return TrialsResult(folder, method, metrics)


def numbers(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys that are a number in every result; what a run cannot have, as one node disagreement, is not."""
    return [key for key in results[0] if all(_is_number(result.get(key)) for result in results) and key != "schema"]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

"""When a run has learned enough: the best evaluated round, and when to stop waiting for a better one.

Everything follows from the records of the rounds. A run that was killed reads them again, so it stops where it would
have stopped, and ends with the same states.
"""

import math
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field, field_validator

from ratemesh.errors import InputError, RatemeshWarning
from ratemesh.metrics.table import GLIMPSED, VALIDATION
from ratemesh.specs import Spec, nearest

METRIC = "val_acc_cross"
INSTEAD = ("val_acc_own", "val_acc_average")
"""What a run goes by that has no pairs of nodes to compare."""

METRICS = tuple(VALIDATION + key for key in GLIMPSED)


class StoppingSpec(Spec):
    """Which round is the best by validation samples, and whether to stop when no better one comes.

    The schedules of rates and coupling go by `rounds`, not by where a run stops: a cosine that was to fall to 0 over 40
    rounds has not fallen when the run stops after 20. With patience, take local.schedule = "constant", or mind that the
    last rounds of a cosine often are the best.
    """

    metric: str = Field(METRIC, description="number of the validation samples that says which round is the best")
    patience: int = Field(0, ge=0, description="evaluations without a better one after which the run stops; 0: never")
    least: float = Field(0.0, ge=0, description="how much more than the best so far counts as better")
    best: bool = Field(False, description="keep the best evaluated round also without patience")
    restore: bool = Field(True, description="whether nodes end with the states of the best round, not of the last")

    @field_validator("metric")
    @classmethod
    def _of_validation_samples(cls, metric: str) -> str:
        """Refuse what rounds do not tell, and test samples, which nothing may be chosen by."""
        if metric not in METRICS:
            raise InputError(
                f"stopping.metric must be a number of the validation samples that rounds record; got '{metric}'. "
                f"{nearest(metric, METRICS)}"
            )
        return metric

    @property
    def on(self) -> bool:
        """Whether the best round is kept."""
        return self.best or self.patience > 0

    def check(self, *, validation: int, evaluates: bool) -> None:
        """Refuse to choose among rounds without numbers to choose by.

        Args:
            validation: how many validation samples there are.
            evaluates: whether any round is evaluated.
        """
        if self.on and not evaluates:
            raise InputError(
                "stopping must have evaluated rounds to choose among; output.evaluate_every is 0. Leave it out, or set "
                "the rounds between evaluations."
            )
        if self.on and not validation:
            raise InputError(
                "stopping must have validation samples to go by, and these data hold none out. Set "
                "data.validation = 0.1, or turn stopping.patience and stopping.best off."
            )

    def refuse_apart(self) -> None:
        """Refuse sites that nobody drives: what all of them come to, none knows alone."""
        if self.on:
            raise InputError(
                "stopping must be off for sites of their own: no site knows alone how well all understand each other, "
                "and one that stopped would leave the others waiting. Set stopping.patience = 0 and stopping.best = "
                "false, or use `ratemesh run`."
            )


class Course:
    """How a run has gone so far, by its records.

    Attributes:
        played: the last round that was seen.
        best: the best evaluated round; None before there is one.
        value: its number.
        metric: what goes by; settled by the first evaluation that has it or a stand-in.
        reason: why the run is to end after this round; empty while it goes on.
    """

    def __init__(self, spec: StoppingSpec, records: Iterable[Mapping[str, Any]] = (), reason: str = "") -> None:
        self.spec = spec
        self.played = 0
        self.best: int | None = None
        self.value = math.nan
        self.metric = ""
        self.reason = ""
        self._waited = 0
        self._warned: set[str] = set()
        for record in records:
            self.see(record)
        self.reason = reason or self.reason

    def see(self, record: Mapping[str, Any]) -> bool:
        """Take in the next round; return whether its states are to be kept as the best."""
        self.played = int(record["round"])
        found = record.get("evaluation")
        if not self.spec.on or not isinstance(found, Mapping):
            return False
        self.metric = self.metric or self._settled(found)
        value = _number(found.get(self.metric))
        if (self.best is None and math.isfinite(value)) or value > self.value + self.spec.least:
            self.best, self.value, self._waited = self.played, value, 0
            return True
        self._wait()
        return False

    def _wait(self) -> None:
        """Count an evaluation that was no better; one of a run that has no number at all counts for nothing."""
        if self.best is None:
            return
        self._waited += 1
        if self.spec.patience and self._waited >= self.spec.patience:
            self.reason = (
                f"{self.metric} has not been better than {self.value:.4g} of round {self.best} in "
                f"{self._waited} evaluation{'s' if self._waited > 1 else ''}"
            )

    def _settled(self, found: Mapping[str, Any]) -> str:
        """Return the metric to go by for the whole run: the one asked for, or the first stand-in that is a number."""
        asked = self.spec.metric
        known = next((key for key in (asked, *INSTEAD) if math.isfinite(_number(found.get(key)))), "")
        if known != asked and known not in self._warned:
            self._warned.add(known)
            goes_by = f"'{known}' is gone by instead" if known else "so far there is nothing to choose rounds by"
            warnings.warn(
                f"stopping.metric '{asked}' is no number in round {self.played} of this run; {goes_by}.",
                RatemeshWarning,
                stacklevel=2,
            )
        return known

    @property
    def restored(self) -> int | None:
        """The round whose states the nodes are to end with, where that is not the last."""
        return self.best if self.spec.restore and self.best != self.played else None

    def numbers(self, rounds: int) -> dict[str, Any]:
        """Return what metrics.json says of a run that was to have `rounds` rounds."""
        best = {"best_metric": self.metric, "best_value": self.value} if self.best is not None else {}
        early = self.played < rounds
        return {
            "rounds_played": self.played,
            "best_round": self.best,
            **best,
            "judged_round": self.restored or self.played,
            "stopped_early": early,
            **({"stop_reason": self.reason} if early else {}),
        }


def _number(value: object) -> float:
    """Return a recorded number; NaN for null, which stands for one in files, and for what is not there."""
    return float(value) if isinstance(value, int | float) else math.nan

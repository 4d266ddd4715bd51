"""Trials of several experiments side by side, each experiment in a process of its own on one core."""

import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ratemesh.errors import RatemeshError
from ratemesh.experiment.config import Config
from ratemesh.experiment.experiment import Progress
from ratemesh.experiment.launch import last_words, start, stop
from ratemesh.experiment.records import RunFolder

LOOK_SECONDS = 0.5

Track = Callable[[str, int], Progress]


def on_one_core(config: Config) -> Config:
    """Return the experiment with all nodes in one process: as many experiments run side by side as there are cores."""
    if config.engine.name != "inprocess":
        return config
    return config.model_copy(update={"engine": config.engine.model_copy(update={"workers": 1})})


def resume_beside(folders: Sequence[Path], jobs: int, progress: Mapping[Path, Track]) -> None:
    """Go on with the trials in all folders, `jobs` at a time; what each says goes to NAME.log beside its folder.

    Args:
        progress: by folder, given a trial's name and its rounds, returns what is called every round.

    Raises:
        RatemeshError: names the first that failed and its last words, after all others have ended.
    """
    waiting = deque(folders)
    watches = {folder: _Watch(folder, progress.get(folder)) for folder in waiting}
    running: dict[Path, subprocess.Popen[str]] = {}
    failed: list[Path] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                folder = waiting.popleft()
                running[folder] = start(["resume", str(folder)], _log(folder))
            time.sleep(LOOK_SECONDS)
            for folder, process in list(running.items()):
                ended = process.poll() is not None  # asked first, so that its last records are looked at
                watches[folder].look()
                if ended:
                    failed += [folder] if process.returncode else []
                    del running[folder]
    finally:
        stop(list(running.values()))
    if failed:
        raise RatemeshError(
            f"'{failed[0]}' ended with an error: {last_words(_log(failed[0]))}\n"
            f"All it said is in '{_log(failed[0])}'. The same command goes on where it stopped."
        )


def _log(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.log")


class _Watch:
    """Reads the records of a folder's trials as they come, and passes them on."""

    def __init__(self, folder: Path, progress: Track | None) -> None:
        self._folder, self._progress = folder, progress
        self._rounds = RunFolder.existing(folder).load_config().rounds
        self._tracks: dict[str, Progress] = {}
        self._seen: dict[str, int] = {}

    def look(self) -> None:
        """Pass on what is new."""
        if self._progress is None:
            return
        for trial in sorted(self._folder.glob("trial-*")):
            seen = self._seen.get(trial.name, 0)
            if seen >= self._rounds:
                continue
            for record in _after(trial, seen):
                if trial.name not in self._tracks:
                    self._tracks[trial.name] = self._progress(trial.name, self._rounds)
                self._tracks[trial.name](record)
                self._seen[trial.name] = record["round"]


def _after(trial: Path, t: int) -> list[dict[str, Any]]:
    return [record for record in RunFolder(trial).records() if record["round"] > t]

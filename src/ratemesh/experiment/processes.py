"""Commands of ours in processes of their own: start them, end them, and read what they said last."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

STOP_SECONDS = 10.0


def start(words: Sequence[str], log: Path, wrapper: Sequence[str] = ()) -> "subprocess.Popen[str]":
    """Start `ratemesh WORDS` on one thread; what it says is added to `log`.

    Args:
        wrapper: a command to start it with, such as `nice` or `ip netns exec NAME`.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    command = [*wrapper, sys.executable, "-m", "ratemesh.cli.main", *words]
    with log.open("a") as file:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, text=True, env=environment)


def stop(processes: Sequence["subprocess.Popen[str]"]) -> None:
    """End what still runs."""
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def last_words(log: Path) -> str:
    """Return the last line of what a process said."""
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return said[-1] if said else "it said nothing"

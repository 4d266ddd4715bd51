"""What sketch moments cost: rounds of the same training with and without them, and bytes."""

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count

from benchmarks.tables import Table, aim
from benchmarks.timing import interleave, ratio
from ratemesh.errors import RatemeshWarning
from ratemesh.experiment.config import make_config
from ratemesh.experiment.plan import Plan
from ratemesh.messages.codecs import PACKED
from ratemesh.messages.statistics import message_bytes

NODES, SAMPLES = 2, 2500
CLASSES, WIDTH, P = 10, 128, 48


def run(*, quick: bool) -> list[Table]:
    """Return all tables of this file."""
    repeats = 4 if quick else 12
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore", RatemeshWarning)
        timings = interleave({name: _rounds(stack, weight) for name, weight in (("with", 10), ("without", 0))}, repeats)
    more = ratio(timings["with"], timings["without"]) - 1
    plain, sketched = (message_bytes(PACKED, CLASSES, CLASSES, WIDTH, means=True, frame=True, p=p) for p in (0, P))
    added = sketched / plain - 1
    rows = [
        ["seconds of a round", f"{100 * more:.1f} %", aim(100 * more, at_most=2)],
        [
            f"bytes of a packed message, K = {CLASSES}, d = {WIDTH}, p = {P}",
            f"{100 * added:.1f} %",
            aim(100 * added, at_most=10),
        ],
    ]
    meaning = (
        f"What sketch moments add: {NODES} nodes of {SAMPLES} images 28×28, conv4, one epoch a round, rounds in turn."
    )
    return [Table("Sketch moments", meaning, ["", "added", "aim"], rows)]


def _rounds(stack: ExitStack, weight: float) -> Callable[[], object]:
    """Return what plays the next round of a run with sketch moments of this weight."""
    config = make_config(
        {
            "preset": "plain",
            "data": {"name": "benchmarks.images:Images", "train": NODES * SAMPLES, "validation": 0},
            "graph": {"name": "complete", "nodes": NODES},
            "encoders": [{"name": "conv4", "width": 0.25}],
            "method": {"gauge": {"sketch": weight}, "warm_start": {"epochs": 0}},
            "engine": {"name": "inprocess", "workers": 1, "threads": 1},
            "rounds": 1000,
        }
    )
    engine = stack.enter_context(config.engine.open(Plan(config), NODES))
    rounds = count(1)
    return lambda: engine.play(next(rounds))

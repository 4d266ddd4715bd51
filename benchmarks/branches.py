"""The branches of the fused loss: Gram or d×d statistics of the batch, running statistics."""

from collections.abc import Mapping

from torch import Tensor

from benchmarks.loss import SETTING, draw_problems
from benchmarks.reference import Problem
from benchmarks.tables import Table
from benchmarks.timing import Competitor, Timing, interleave, milliseconds, per_call, ratio
from ratemesh import ClassStats
from ratemesh.core.lagrangian import Coupling, RunningStats, lagrangian, value_and_gradient
from ratemesh.core.stats import group_by_class
from ratemesh.threads import pinned

STEPS = 4
"""Steps per sample: a multiple of every refresh interval."""


def run(*, quick: bool) -> list[Table]:
    """Return all tables of this file."""
    with pinned(1):
        branches = {key: _time_branches(problem, 3 if quick else 25) for key, problem in draw_problems().items()}
        return [_branch_table(branches)]


def _time_branches(problem: Problem, repeats: int) -> dict[str, Timing]:
    """Time the branches of the evaluation, without autograd around it."""
    coupling, K = problem.coupling(), problem.num_classes

    def steps(step: Competitor) -> Competitor:
        return lambda: [step() for _ in range(STEPS)]

    def running(refresh: int) -> Competitor:
        state = RunningStats(problem.own, beta=0.1, refresh=refresh)
        return lambda: value_and_gradient(problem.Z, problem.y, K, coupling, problem.eps2, 1.0, state)

    competitors = {
        "in batch, Gram": steps(lambda: value_and_gradient(problem.Z, problem.y, K, coupling, problem.eps2, 1.0, None)),
        "in batch, d×d": steps(lambda: _square_branch(problem, coupling)),
        "running, refresh 1": steps(running(1)),
        "running, refresh 4": steps(running(4)),
    }
    return per_call(interleave(competitors, repeats), STEPS)


def _square_branch(problem: Problem, coupling: Coupling) -> Tensor:
    """Evaluate the in-batch loss from d×d statistics, whatever branch `value_and_gradient` would take."""
    groups = group_by_class(problem.y, problem.num_classes)
    unit = groups.m.clamp(min=1).to(problem.Z.dtype).rsqrt()
    P = groups.pad(problem.Z * unit[problem.y, None])
    batch = ClassStats.without_means(groups.sum_by_class(P.mT @ P), groups.m.to(P.dtype))
    _, H = lagrangian(batch, coupling, problem.eps2, 1.0)
    return groups.unpad(P @ groups.of_class(H)).mul_(2 * unit[problem.y, None])


def _branch_table(branches: Mapping[tuple[str, int], Mapping[str, Timing]]) -> Table:
    rows = []
    for (labels, K), of in branches.items():
        gram = of["in batch, Gram"]
        for name, timing in of.items():
            rows.append([f"K = {K}, {labels}: {name}", *milliseconds(timing), f"{ratio(timing, gram):.2f}×"])
    return Table(
        "Branches of the fused loss",
        "What the two in-batch routes and running statistics cost a step; refresh 4 factorises every fourth step only.",
        ("", "lower quartile, ms", "median, ms", "relative to Gram"),
        rows,
        f"{SETTING} Value and gradient without autograd around them, mean of {STEPS} steps in a row.",
    )

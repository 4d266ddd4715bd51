"""The fused loss and gradient against autograd, and against its two unavoidable products."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.reference import Problem, draw_problem, folded, per_edge
from benchmarks.tables import Table, aim
from benchmarks.timing import Competitor, Timing, interleave, milliseconds, ratio
from ratemesh import ClassStats, consensus_loss
from ratemesh.core.consensus import coupled_loss
from ratemesh.threads import pinned

CLASSES = (10, 100)
LABELS = ("random", "balanced")
SETTING = "n = 1000, d = 128, 5 neighbours, float32, one thread; loss and gradient of Z together."


def run(*, quick: bool) -> list[Table]:
    """Return all tables of this file."""
    with pinned(1):
        problems = draw_problems()
        timings = {labels: _time_losses(problems, labels, 5 if quick else 40) for labels in LABELS}
        return [
            _ratio_table(timings),
            _raw_table(timings),
            _growth_table(timings),
            _agreement_table(problems),
        ]


def draw_problems() -> dict[tuple[str, int], Problem]:
    """Return the problems by kind of labels and number of classes."""
    return {(labels, K): draw_problem(K, balanced=labels == "balanced") for labels in LABELS for K in CLASSES}


def _losses(problem: Problem) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return the competitors as functions of Z."""
    T_edge, coupling, y = problem.midpoints(), problem.coupling(), problem.y
    n = coupling.weight / problem.gamma

    def public(Z: Tensor) -> Tensor:
        return consensus_loss(Z, y, Y=coupling.Y, T_bar=coupling.T_bar, n=n, gamma=problem.gamma).total

    def prebuilt(Z: Tensor) -> Tensor:
        return coupled_loss(Z, y, coupling, eps2=problem.eps2, scale=1.0).total

    return {
        "consensus_loss": public,
        "coupled_loss": prebuilt,
        "loop": lambda Z: per_edge(Z, problem, T_edge),
        "folded loop": lambda Z: folded(Z, problem, coupling),
    }


def _time_losses(problems: Mapping[tuple[str, int], Problem], labels: str, repeats: int) -> dict[str, Timing]:
    competitors: dict[str, Competitor] = {}
    for K in CLASSES:
        problem = problems[labels, K]
        leaf = problem.Z.clone().requires_grad_()
        competitors |= {f"{name}, K={K}": _backward(loss, leaf) for name, loss in _losses(problem).items()}
        competitors[f"products, K={K}"] = _products(problem.Z)
    return interleave(competitors, repeats)


def _backward(loss: Callable[[Tensor], Tensor], leaf: Tensor) -> Competitor:
    def call() -> None:
        leaf.grad = None
        loss(leaf).backward()

    return call


def _products(Z: Tensor) -> Competitor:
    """ZᵀZ and Z·H with one H: no loss of this kind can do less arithmetic on a batch."""
    H = Z.mT @ Z
    return lambda: (Z.mT @ Z, Z @ H)


def _ratio_table(timings: Mapping[str, Mapping[str, Timing]]) -> Table:
    rows = []
    for K in CLASSES:
        wanted = 3 if K == 10 else 30
        for labels, of in timings.items():
            loop, prebuilt = of[f"loop, K={K}"], of[f"coupled_loss, K={K}"]
            gains = ratio(loop, prebuilt), ratio(loop, of[f"consensus_loss, K={K}"])
            rows.append(
                [
                    f"K = {K}, {labels} labels",
                    *(f"{gain:.1f}× ({aim(gain, at_least=wanted)})" for gain in gains),
                    f"{ratio(of[f'folded loop, K={K}'], prebuilt):.1f}×",
                    f"{ratio(prebuilt, of[f'products, K={K}']):.1f}×",
                ]
            )
    return Table(
        "Fused loss against autograd",
        "How many times as fast loss and gradient of a step are as the paper's per-edge formula under autograd.",
        (
            "",
            "loop / coupled_loss",
            "loop / consensus_loss",
            "folded loop / coupled_loss",
            "coupled_loss / products",
        ),
        rows,
        f"{SETTING} `coupled_loss` is what training calls (neighbours folded once a round), `consensus_loss` checks "
        "its input and folds at every call. *loop*: classes and neighbours; *folded loop*: autograd over classes, "
        "neighbours summed beforehand. *products*: ZᵀZ and Z·H, a plain product each, the least any version does.",
    )


def _raw_table(timings: Mapping[str, Mapping[str, Timing]]) -> Table:
    rows = [
        [f"{name}, {labels}", *milliseconds(timing)] for labels, of in timings.items() for name, timing in of.items()
    ]
    meaning = "The times behind the ratios; they hold for this machine and this hour only."
    return Table("Times of the losses", meaning, ("", "lower quartile, ms", "median, ms"), rows, SETTING)


def _growth_table(timings: Mapping[str, Mapping[str, Timing]]) -> Table:
    rows = []
    for name in ("coupled_loss", "consensus_loss", "loop", "folded loop"):
        values = [ratio(of[f"{name}, K=100"], of[f"{name}, K=10"]) for of in timings.values()]
        wanted = aim(max(values), at_most=1.5) if name.endswith("_loss") else ""
        rows.append([name, *(f"{value:.2f}×" for value in values), wanted])
    meaning = "What ten times as many classes cost, for the same number of rows."
    return Table(
        "K = 100 against K = 10", meaning, ("", *(f"{labels} labels" for labels in timings), "aim"), rows, SETTING
    )


def _agreement_table(problems: Mapping[tuple[str, int], Problem]) -> Table:
    rows = []
    for (labels, K), problem in problems.items():
        single, double = _difference(problem), _difference(_in_double(problem))
        rows.append([f"K = {K}, {labels} labels", *(f"{value:.1e}" for value in (*single, *double))])
    return Table(
        "Agreement with the per-edge formula",
        "Fused and autograd versions compute the same number and the same gradient, to rounding.",
        ("", "value, float32", "gradient, float32", "value, float64", "gradient, float64"),
        rows,
        "Relative difference of the value (with the constant that folding leaves out), and largest difference of a "
        "gradient entry relative to the largest entry.",
    )


def _difference(problem: Problem) -> tuple[float, float]:
    results = {}
    for name, loss in _losses(problem).items():
        Z = problem.Z.clone().requires_grad_()
        value = loss(Z)
        (gradient,) = torch.autograd.grad(value, Z)
        results[name] = (value.detach(), gradient)
    (value, gradient), (expected, slope) = results["coupled_loss"], results["loop"]
    off = (value + problem.constant() - expected).abs() / expected.abs()
    return float(off), float((gradient - slope).abs().max() / slope.abs().max())


def _in_double(problem: Problem) -> Problem:
    own = ClassStats.from_tensors({name: part.double() for name, part in problem.own.tensors().items()})
    Z = torch.nn.functional.normalize(problem.Z.double(), dim=1)
    return replace(problem, Z=Z, own=own, Y_edge=problem.Y_edge.double(), V_edge=problem.V_edge.double())

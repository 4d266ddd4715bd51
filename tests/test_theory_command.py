"""`ratemesh theory`: it finds what the theorems promise, says so when they do not hold, and repeats to the byte."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from ratemesh.cli.main import app
from ratemesh.core.rates import rate_reduction
from ratemesh.core.stats import ClassStats
from ratemesh.core.theory import proportion_gap, theorem1_gaps
from ratemesh.errors import InputError, RatemeshWarning
from ratemesh.studies.theory import clustered_problem, engine_of, iid_problem, run_theory, solve
from ratemesh.studies.theory_checks import (
    STEPS,
    Pace,
    Setting,
    isotropic_optimum,
    near,
    numerical_rank,
    structure_checks,
)
from toy_cli import call

KEYS = ["theorem", "property", "predicted", "measured", "tolerance", "holds"]
TINY = Setting(nodes=2, classes=2, rank=1, rounds=80)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("theory") / "out"
    words = ["--nodes", 3, "--classes", 2, "--rank", 2, "--rounds", 200, "--out", out]
    done = call("theory", *words)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return out, done.stdout


def test_all_properties_hold_on_a_small_case(small: tuple[Path, str]) -> None:
    checks = json.loads((small[0] / "theory.json").read_text())
    assert [list(check) for check in checks] == [KEYS] * 24
    assert [check for check in checks if not check["holds"]] == []
    assert {check["theorem"] for check in checks} == {"1", "2", "3"}


def test_the_command_shows_tables_paths_and_a_verdict(small: tuple[Path, str]) -> None:
    out, text = small
    lines = text.splitlines()
    assert sum("predicted" in line and "measured" in line and "holds" in line for line in lines) == 3
    assert lines[-4:] == [
        f"Summary: {out / 'theory.json'}",
        f"Figure:  {out / 'theory.png'}",
        f"Figure:  {out / 'theory.svg'}",
        "All 24 properties hold.",
    ]
    with Image.open(out / "theory.png") as picture:
        assert picture.width > 1000
    assert "<svg" in (out / "theory.svg").read_text()[:500]


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    once, again = (run_theory(tmp_path / name, TINY) for name in ("once", "again"))
    for one, two in zip((once.summary, *once.figures), (again.summary, *again.figures), strict=True):
        assert one.read_bytes() == two.read_bytes(), one.name


def test_another_seed_starts_elsewhere() -> None:
    one, two = (iid_problem(Setting(seed=seed)).solution().Z[0] for seed in (0, 1))
    assert not torch.allclose(one, two)


def test_too_few_dimensions_are_warned_about_and_reported(tmp_path: Path) -> None:
    words = ["--nodes", 2, "--classes", 3, "--rank", 2, "--d", 5, "--rounds", 80, "--out", tmp_path / "out"]
    with pytest.warns(RatemeshWarning, match="d must be at least the sum of the class ranks .* got d = 5 < 6"):
        done = CliRunner().invoke(app, ["theory", *map(str, words)])
    assert done.exit_code == 0
    assert re.fullmatch(r"\d+ of 24 properties do not hold: Theorem 1: .*\.", done.stdout.splitlines()[-1])
    assert not all(check["holds"] for check in json.loads((tmp_path / "out" / "theory.json").read_text()))


def test_theorem_1s_condition_on_eps2_is_not_enough_for_full_rank() -> None:
    """K = 2, d_k = 2, d = 4, ε² = 1.2: ε⁴ = 1.44 < 2 as Theorem 1 asks, and rank one is better than rank two."""
    setting = Setting(nodes=2, classes=2, rank=2, eps2=1.2)
    ranks, pi = torch.full((2,), 2.0), torch.full((2,), 0.5)
    assert theorem1_gaps(4, ranks, pi, 1.2) == []
    one = orthogonal_classes([[1, 0, 0, 0], [0, 1, 0, 0]])
    two = orthogonal_classes([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])
    lower, full = (float(rate_reduction(stats, 1.2).reduction) for stats in (one, two))
    assert lower > full
    assert isotropic_optimum(pi, 4, 2, 1.2) == (pytest.approx(lower), 1)
    (gap,) = setting.gaps()
    assert "eps2 must be smaller for rank 2 to be optimal; got 1.2" in gap
    end = solve(iid_problem(setting), 1).end
    assert [check.property for check in structure_checks("1", end, 2, 1.2) if not check.holds][-1].startswith("rank of")


def test_eps2_too_large_has_both_warnings() -> None:
    printed, needed = Setting(nodes=2, classes=2, rank=2, eps2=3.0).gaps()
    assert "got ε⁴ = 9" in printed
    assert "orthogonal classes of rank 1 reach a larger ΔR" in needed
    assert Setting().gaps() == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--nodes", 1], "nodes must be at least 2; got 1"),
        (["--classes", 1], "classes must be at least 2; got 1"),
        (["--rank", 0], "rank must be at least 1; got 0"),
        (["--rounds", 10], "rounds must be at least 80; got 10"),
        (["--d", 2], "d must be at least rank = 3; got 2. Raise --d or lower --rank."),
        (["--eps2", 0], "eps2 must be positive; got 0"),
        (["--out", Path(__file__).parent], "out must be a new or empty folder"),
        (["--out", Path(__file__)], "out must be a new or empty folder"),
    ],
)
def test_bad_input_names_argument_value_and_remedy(words: list[object], expected: str, tmp_path: Path) -> None:
    place = [] if "--out" in words else ["--out", tmp_path / "new"]
    done = CliRunner().invoke(app, ["theory", *map(str, [*words, *place])])
    assert isinstance(done.exception, InputError)
    assert expected in str(done.exception)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_clusters_cover_all_labels_in_equal_proportions(nodes: int, classes: int) -> None:
    problem = clustered_problem(Setting(nodes=nodes, classes=classes, rank=1))
    found = problem.solution()
    counts = torch.stack([part.m for part in found.parts])
    assert proportion_gap(counts) == pytest.approx(0, abs=1e-15)
    assert bool((counts > 0).all())
    assert bool((torch.stack([stats.m for stats in found.stats]) == 0).any())  # nobody holds all labels
    assert float(counts.sum()) == sum(len(y) for y in found.y)  # Σ_s m^s = m, replicas counted once


def test_clusters_differ_in_size_and_one_node_is_in_two() -> None:
    problem = clustered_problem(Setting(nodes=5))
    assert problem.parts == [(0, 1), (2, 3), (1, 4)]
    sizes = [float(part.m.sum()) for part in problem.solution().parts]
    assert sizes[0] == sizes[2] < sizes[1]


def test_local_objectives_add_up_to_the_problem() -> None:
    """Without coupling, −L_i is (m_i/m)ΔR_i in (opt1) and (m^s/m)ΔR_s in a node's first cluster in (opt2)."""
    for build in (iid_problem, clustered_problem):
        problem = build(Setting(nodes=3, classes=3, rank=2))
        found = problem.solution()
        logs = engine_of(problem.programs(Pace(1, 0, 0, rounds=1), steps=0)).play(1).logs
        m = sum(len(y) for y in found.y)
        for i, log in enumerate(logs):
            mine = next(found.parts[s] for s, part in enumerate(problem.parts) if i in part)
            expected = float(mine.m.sum()) / m * float(rate_reduction(mine, 0.1).reduction)
            assert -log["total"] == pytest.approx(expected)


def test_the_cluster_objective_is_coupled_on_shared_labels_only() -> None:
    problem = clustered_problem(Setting(nodes=4, classes=4, rank=2))
    programs = problem.programs(Pace(eta=1, rho=1.0, gamma=0, rounds=1), steps=0)
    engine_of(programs).play(1)
    for program in programs:
        duals = program.state()["edges.Y"].abs().amax((1, 2))
        assert bool(((duals > 0) == program.stats.held).all())


def test_the_rounds_are_gradient_descent_on_the_printed_objective() -> None:
    """One round of two nodes, step by step: duals, midpoints, T' full gradients of (lagran1_2) by automatic means."""
    setting, pace = Setting(nodes=2, classes=2, rank=2), Pace(eta=0.05, rho=0.3, gamma=0.7, rounds=1)
    problem, plain = iid_problem(setting), iid_problem(setting)
    stats = plain.solution().stats
    engine_of(problem.programs(pace)).play(1)
    for i, node in enumerate(plain.nodes):
        own, other = stats[i], stats[1 - i]
        for _ in range(STEPS):
            V = ClassStats.of(node.encoder(node.X), node.y, 2)
            gain = rate_reduction(V, setting.eps2).reduction
            dual = (pace.rho * (own.V - other.V) * V.V).sum()
            loss = -node.share * gain + dual + pace.gamma * (V.V - (own.V + other.V) / 2).square().sum()
            weights = list(node.encoder.parameters())
            for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight.data -= pace.eta * gradient
        for ours, theirs in zip(node.encoder.parameters(), problem.nodes[i].encoder.parameters(), strict=True):
            torch.testing.assert_close(theirs, ours, rtol=1e-12, atol=1e-14)


def test_the_rank_of_a_class_is_capped_at_every_node_and_not_over_nodes() -> None:
    found = iid_problem(Setting(nodes=3, classes=2, rank=2)).solution()
    first = [Z[y == 0] for Z, y in zip(found.Z, found.y, strict=True)]
    assert [numerical_rank(torch.linalg.svdvals(Z)) for Z in first] == [2, 2, 2]
    assert numerical_rank(torch.linalg.svdvals(torch.cat(first))) == 4  # consensus has to bring it down


def test_the_closed_form_is_the_rate_reduction_of_orthogonal_isotropic_classes() -> None:
    stats = orthogonal_classes([[0.5, 0.5, 0, 0, 0], [0, 0, 0.5, 0.5, 0]], counts=[3.0, 5.0])
    optimum, rank = isotropic_optimum(stats.proportions, 5, 2, 0.1)
    assert optimum == pytest.approx(float(rate_reduction(stats, 0.1).reduction))
    assert rank == 2


def test_what_is_not_a_number_never_holds() -> None:
    assert not near("1", "x", 0, math.nan, 1).holds
    assert near("1", "x", 0, -0.5, 1).holds


def test_settings_made_in_python_are_checked_too() -> None:
    with pytest.raises(InputError, match="nodes must be at least 2; got 1"):
        Setting(nodes=1)


def orthogonal_classes(spectra: list[list[float]], counts: list[float] | None = None) -> ClassStats:
    V = torch.diag_embed(torch.tensor(spectra, dtype=torch.float64))
    return ClassStats.without_means(V, torch.tensor(counts or [1.0] * len(V), dtype=torch.float64))

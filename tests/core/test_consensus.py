"""The local objective of Algorithm 1 against (lagran1_2) written out edge by edge, class by class."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ratemesh.core.consensus import consensus_loss, dual_step, fold_neighbours, mcr2_loss
from ratemesh.core.rates import rate_reduction
from ratemesh.core.stats import ClassStats
from toy_stats import keep

CASES = {
    # rows per class in the batch, d: Gram matrices where every class has fewer than d rows, d×d otherwise
    "gram": ((3, 5, 4), 8),
    "gram, d - 1 rows": ((7, 2), 8),
    "gram, absent classes": ((0, 5, 0, 4), 8),
    "gram, one class": ((7,), 9),
    "gram, very unbalanced": ((1, 30, 2), 32),
    "gram, one row per class": ((1, 1, 1), 4),
    "dense": ((9, 12, 10), 6),
    "dense, d rows": ((8, 8), 8),
    "dense, some classes below d": ((3, 15, 2), 8),
    "dense, absent classes": ((0, 11, 0, 9), 6),
    "dense, one class": ((7,), 4),
    "dense, very unbalanced": ((60, 1, 1), 5),
    "d = 1": ((2, 3), 1),
}
GAMMA, EPS2, SCALE = 0.7, 0.3, 1.7


@dataclass
class Edges:
    """What node i knows in a round: its own last statistics, and V_j and Y_ij for every neighbour."""

    own: ClassStats
    neighbours: list[ClassStats]
    Y: list[Tensor]

    def folded(self):
        T_bar, n = fold_neighbours(self.own, self.neighbours)
        held = [(self.own.held & s.held)[:, None, None] for s in self.neighbours]
        Y = sum(Y_j * h for Y_j, h in zip(self.Y, held, strict=True))
        return {"Y": Y, "T_bar": T_bar, "n": n}


@pytest.fixture(scope="session")
def problem(unit_rows, labels_of):
    """Return a function that draws a batch and a neighbourhood in which one neighbour lacks the last class."""

    def draw(counts, d, seed=0):
        K = len(counts)

        def held(number):
            return ClassStats.of(unit_rows(3 * K, d, seed + number), torch.arange(K).repeat(3), K)

        neighbours = [held(11), held(12), keep(held(13), range(K - 1))]
        Y = [held(21 + j).V - held(31 + j).V for j in range(3)]
        return unit_rows(sum(counts), d, seed), labels_of(counts, seed), Edges(held(10), neighbours, Y)

    return draw


def rate(Z, eps2):
    """½ Σ log(1 + d σ²/(m ε²)) over the singular values of the rows."""
    return 0.5 * torch.log1p(Z.shape[1] / (len(Z) * eps2) * torch.linalg.svdvals(Z).square()).sum()


def moment(Z):
    return sum(torch.outer(z, z) for z in Z) / len(Z)


def per_edge_terms(Z, y, edges, gamma, eps2):
    """R, R^c, Σ_jk tr[Y_ijᵀ(V − V_j)] and γ Σ_jk ‖V − ½(V_i + V_j)‖² of (lagran1_2); absent classes left out."""
    compress, dual, penalty = torch.zeros(3, dtype=Z.dtype)
    for k in set(y.tolist()):
        Z_k = Z[y == k]
        compress = compress + len(Z_k) / len(Z) * rate(Z_k, eps2)
        for V_j, Y_ij in zip(edges.neighbours, edges.Y, strict=True):
            if edges.own.m[k] > 0 and V_j.m[k] > 0:
                dual = dual + torch.trace(Y_ij[k].T @ (moment(Z_k) - V_j.V[k]))
                penalty = penalty + gamma * (moment(Z_k) - (edges.own.V[k] + V_j.V[k]) / 2).square().sum()
    return rate(Z, eps2), compress, dual, penalty


def per_edge_loss(Z, y, edges, gamma=GAMMA, eps2=EPS2, scale=SCALE):
    expand, compress, dual, penalty = per_edge_terms(Z, y, edges, gamma, eps2)
    return scale * (compress - expand) + dual + penalty


def value_and_gradient(loss, Z):
    Z = Z.clone().requires_grad_()
    value = loss(Z)
    return value.detach(), torch.autograd.grad(value, Z)[0]


def folded_loss(Z, y, edges, **options):
    return consensus_loss(Z, y, **{"gamma": GAMMA, "eps2": EPS2, "scale": SCALE, **edges.folded(), **options})


def close(a, b, tol=1e-10):
    torch.testing.assert_close(a, b, rtol=tol, atol=tol)


@pytest.mark.parametrize("case", CASES)
def test_folded_form_is_the_per_edge_form_up_to_a_constant(problem, unit_rows, case):
    Z, y, edges = problem(*CASES[case])
    expected, per_edge = value_and_gradient(lambda X: per_edge_loss(X, y, edges), Z)
    value, gradient = value_and_gradient(lambda X: folded_loss(X, y, edges).total, Z)
    close(gradient, per_edge)
    other = unit_rows(*Z.shape, seed=99)
    close(value - folded_loss(other, y, edges).total, expected - per_edge_loss(other, y, edges))


@pytest.mark.parametrize("case", CASES)
def test_each_term_has_its_value(problem, case):
    Z, y, edges = problem(*CASES[case])
    terms = folded_loss(Z, y, edges)
    dual, penalty = torch.zeros(2, dtype=Z.dtype)
    for k in sorted(set(y.tolist())):
        V = moment(Z[y == k])
        js = [j for j, s in enumerate(edges.neighbours) if s.m[k] > 0]
        T_bar = sum(edges.own.V[k] / 2 + edges.neighbours[j].V[k] / 2 for j in js) / len(js) if js else 0 * V
        dual += sum((edges.Y[j][k] * V).sum() for j in js)
        penalty += GAMMA * len(js) * (V - T_bar).square().sum()
    expand, compress, *_ = per_edge_terms(Z, y, edges, GAMMA, EPS2)
    close((terms.expand, terms.compress, terms.reduction), (expand, compress, expand - compress))
    close((terms.dual, terms.penalty, terms.coupled), (dual, penalty, dual + penalty))
    close(terms.total.detach(), SCALE * (compress - expand) + dual + penalty)
    names = ("expand", "compress", "reduction", "dual", "penalty", "total")
    assert terms.numbers() == {name: getattr(terms, name).item() for name in names}


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(lambda c: sum(c) >= 2),
    st.integers(1, 8),
    st.integers(0, 1000),
    st.sampled_from([0.05, 0.5, 5.0]),
)
def test_any_batch_has_the_per_edge_gradient(problem, counts, d, seed, eps2):
    Z, y, edges = problem(tuple(counts), d, seed)
    _, expected = value_and_gradient(lambda X: per_edge_loss(X, y, edges, eps2=eps2), Z)
    _, gradient = value_and_gradient(lambda X: folded_loss(X, y, edges, eps2=eps2).total, Z)
    close(gradient, expected)


@pytest.mark.parametrize("case", ["gram", "gram, absent classes", "dense", "dense, very unbalanced", "d = 1"])
def test_gradcheck(problem, case):
    Z, y, edges = problem(*CASES[case])
    Z = Z[:12].clone().requires_grad_()
    y = y[:12]
    assert torch.autograd.gradcheck(lambda X: folded_loss(X, y, edges).total, (Z,))
    assert torch.autograd.gradcheck(lambda X: mcr2_loss(X, y, edges.own.num_classes, EPS2), (Z,))


@pytest.mark.parametrize("case", CASES)
def test_float32_agrees_with_float64(problem, case):
    Z, y, edges = problem(*CASES[case])
    folded = {name: tensor.float() for name, tensor in edges.folded().items()}
    value, gradient = value_and_gradient(lambda X: folded_loss(X, y, edges).total, Z)
    value32, gradient32 = value_and_gradient(lambda X: folded_loss(X, y, edges, **folded).total, Z.float())
    assert value32.dtype == gradient32.dtype == torch.float32
    close(value32.double(), value, 1e-4)
    assert (gradient32.double() - gradient).norm() <= 1e-4 * gradient.norm() + 1e-6


def test_half_precision_is_computed_in_single(unit_rows):
    Z, y = unit_rows(40, 64).half(), torch.arange(40) % 4
    value, gradient = value_and_gradient(lambda X: mcr2_loss(X, y, 4), Z)
    expected, wide = value_and_gradient(lambda X: mcr2_loss(X, y, 4), Z.double())
    assert (value.dtype, gradient.dtype) == (torch.float32, torch.float16)
    close(value.double(), expected, 1e-4)
    assert (gradient.double() - wide).norm() < 2e-3 * wide.norm()


def test_bfloat16_rows_of_unit_length_are_accepted(unit_rows):
    Z, y = unit_rows(40, 32).bfloat16(), torch.arange(40) % 4
    assert mcr2_loss(Z, y, 4).dtype == torch.float32


@pytest.mark.parametrize("case", ["gram", "dense, some classes below d", "dense, absent classes"])
def test_mcr2_loss_is_minus_the_rate_reduction(problem, case):
    Z, y, edges = problem(*CASES[case])
    K = edges.own.num_classes
    value = mcr2_loss(Z, y, K, EPS2)
    close(value, -rate_reduction(ClassStats.of(Z, y, K), EPS2).reduction)
    nothing = torch.zeros_like(edges.own.V)
    terms = consensus_loss(Z, y, Y=nothing, T_bar=nothing, n=0, gamma=1.0, eps2=EPS2)
    close(terms.total, value)
    assert (terms.dual.item(), terms.penalty.item()) == (0, 0)


@pytest.mark.parametrize("case", ["gram, absent classes", "dense, absent classes"])
def test_an_absent_class_contributes_nothing(problem, case):
    Z, y, edges = problem(*CASES[case])
    loud = {name: tensor.clone() for name, tensor in edges.folded().items()}
    for k in (0, 2):
        loud["Y"][k], loud["T_bar"][k], loud["n"][k] = 1e3, -1e3, 50
    value, gradient = value_and_gradient(lambda X: folded_loss(X, y, edges).total, Z)
    value_loud, gradient_loud = value_and_gradient(lambda X: folded_loss(X, y, edges, **loud).total, Z)
    close(value_loud, value)
    close(gradient_loud, gradient)


@pytest.mark.parametrize("case", ["gram", "dense"])
def test_one_number_of_neighbours_serves_all_classes(problem, case):
    Z, y, edges = problem(*CASES[case])
    folded = edges.folded() | {"n": torch.full((3,), 2.0, dtype=torch.float64)}
    each = consensus_loss(Z, y, **folded, gamma=GAMMA)
    one = consensus_loss(Z, y, **(folded | {"n": 2}), gamma=GAMMA)
    close(one.total, each.total)
    assert one.penalty > 0


@pytest.mark.parametrize("case", ["gram", "dense"])
def test_only_the_total_carries_a_gradient_and_only_once(problem, case):
    Z, y, edges = problem(*CASES[case])
    Z.requires_grad_()
    terms = folded_loss(Z, y, edges)
    assert [t.requires_grad for t in (terms.expand, terms.compress, terms.coupled, terms.dual)] == [False] * 4
    (once,) = torch.autograd.grad(terms.total, Z, retain_graph=True)
    (thrice,) = torch.autograd.grad(3 * terms.total, Z, retain_graph=True)
    close(thrice, 3 * once)
    (squared,) = torch.autograd.grad(terms.total**2, Z, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        squared.sum().backward()


def test_duals_and_midpoints_follow_the_edges_and_sum_to_zero(unit_rows):
    """Several dual steps on a graph, each edge with its own Y_ij as in (R1_2a); nodes lack some classes."""
    K, d, rho, links = 3, 4, 0.3, [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2)]
    held = [[0, 1, 2], [0, 1], [1, 2], [0, 1, 2]]
    near = {i: [a + b - i for a, b in links if i in (a, b)] for i in range(4)}
    Y_ij = {(i, j): torch.zeros(K, d, d, dtype=torch.float64) for i in near for j in near[i]}
    Y = [torch.zeros(K, d, d, dtype=torch.float64) for _ in near]
    for t in range(5):
        y = torch.arange(K).repeat(5)
        stats = [keep(ClassStats.of(unit_rows(5 * K, d, 10 * t + i), y, K), held[i]) for i in near]
        for (i, j), dual in Y_ij.items():
            for k in set(held[i]) & set(held[j]):
                dual[k] += rho * (stats[i].V[k] - stats[j].V[k])
        Y = [dual_step(Y[i], stats[i], [stats[j] for j in near[i]], rho) for i in near]
    for i, js in near.items():
        close(Y[i], sum(Y_ij[i, j] for j in js))
        assert Y[i].norm() > 0.1
        T_bar, n = fold_neighbours(stats[i], [stats[j] for j in js])
        for k in held[i]:
            sharing = [j for j in js if k in held[j]]
            assert n[k] == len(sharing)
            close(T_bar[k], sum((stats[i].V[k] + stats[j].V[k]) / 2 for j in sharing) / len(sharing))
    assert sum(Y).abs().max() < 1e-13


def test_a_node_without_neighbours_has_no_coupling(problem):
    Z, y, edges = problem(*CASES["dense"])
    T_bar, n = fold_neighbours(edges.own, [])
    Y = edges.folded()["Y"]
    assert torch.equal(dual_step(Y, edges.own, [], 0.5), Y)
    assert consensus_loss(Z, y, Y=0 * Y, T_bar=T_bar, n=n, gamma=5.0).coupled == 0


@pytest.mark.parametrize("case", ["gram", "dense"])
def test_of_duals_only_the_symmetric_part_counts(problem, case):
    """⟨Y, V⟩ cannot see the rest, whose gradient is zero."""
    Z, y, edges = problem(*CASES[case])
    d = Z.shape[1]
    skew = torch.randn(3, d, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tril(-1)
    crooked = edges.folded()["Y"] + 2 * skew
    expected = value_and_gradient(lambda X: folded_loss(X, y, edges, Y=crooked - skew + skew.mT).total, Z)
    close(value_and_gradient(lambda X: folded_loss(X, y, edges, Y=crooked).total, Z), expected)
    assert torch.autograd.gradcheck(lambda X: folded_loss(X, y, edges, Y=crooked).total, (Z.clone().requires_grad_(),))

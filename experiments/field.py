"""What the field does to connect encoders that were trained apart, beside ours, on the same encoders.

    python experiments/language.py mnist-pairs --rows independent --out runs/language
    python experiments/field.py runs/language/mnist-pairs/independent --write

Pairs i → j of nodes of finished runs without edges: features of i are brought to j by what a row may share, then j
judges them by its own statistics and searches them in its own gallery. Common (paired) samples are the validation
samples, which no node trained on; ours need none. Ridge chooses its penalty by leave-one-out on the pairs. Test samples
are only judged.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from statistics import fmean

import torch
from results import write_table
from torch import Tensor
from torch.nn.functional import normalize

from ratemesh.core.gauge import align, polar
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceJudge, SubspaceRule, accuracy
from ratemesh.experiment.plan import Plan
from ratemesh.experiment.records import RunFolder
from ratemesh.metrics.language import gallery_and_queries

MOST_NODES = 4
PAIRED = (10, 100, 300, 1000)

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Seen:
    """A node: statistics, features of its own training samples, of common samples, and of test samples."""

    stats: ClassStats
    Z: Tensor
    y: Tensor
    common: Tensor
    test: Tensor


def identity(Z: Tensor) -> Tensor:
    """Leave features as they are."""
    return Z


def procrustes(i: Seen, j: Seen, m: int) -> tuple[Map, Map]:
    """Turn i's features by the rotation that best matches m common samples."""
    Q = polar(j.common[:m].T @ i.common[:m])
    return lambda Z: Z @ Q.T, identity


def ridge(i: Seen, j: Seen, m: int) -> tuple[Map, Map]:
    """Map i's features linearly to j's by m common samples."""
    from sklearn.linear_model import RidgeCV

    fitted = RidgeCV(alphas=[1e-3, 1e-2, 1e-1, 1.0, 10.0]).fit(i.common[:m].numpy(), j.common[:m].numpy())
    return lambda Z: torch.as_tensor(fitted.predict(Z.numpy()), dtype=Z.dtype), identity


def relative(i: Seen, j: Seen, m: int) -> tuple[Map, Map]:
    """Describe both nodes' features by their cosines to the same m samples (Moschella et al., 2023)."""
    return lambda Z: Z @ normalize(i.common[:m], dim=1).T, lambda Z: Z @ normalize(j.common[:m], dim=1).T


def correlated(i: Seen, j: Seen, m: int) -> tuple[Map, Map]:
    """Project both onto canonical directions of m common samples, weighed by their correlations."""
    A, B = (seen.common[:m] - seen.common[:m].mean(0) for seen in (i, j))
    halves = []
    for X in (A, B):
        values, U = torch.linalg.eigh(X.T @ X / m)
        halves.append(U @ torch.diag((values + 0.1 * values.mean()).rsqrt()) @ U.T)
    U, s, Wh = torch.linalg.svd(halves[0] @ (A.T @ B / m) @ halves[1])
    weight = s.clamp(max=1).sqrt()
    left, right = halves[0] @ U * weight, halves[1] @ Wh.T * weight
    return lambda Z: (Z - i.common[:m].mean(0)) @ left, lambda Z: (Z - j.common[:m].mean(0)) @ right


def class_means(i: Seen, j: Seen, _m: int) -> tuple[Map, Map]:
    """Turn i's features by the rotation that best matches class means."""
    Q = polar(j.stats.mu.T @ i.stats.mu)
    return lambda Z: Z @ Q.T, identity


def aligned(means: float, sketch: float) -> Callable[[Seen, Seen, int], tuple[Map, Map]]:
    """Return our turn, by second moments and class means, and by sketch moments if they have a weight."""

    def turn(i: Seen, j: Seen, _m: int) -> tuple[Map, Map]:
        Q = align(i.stats, j.stats, means=means, sketch=sketch)
        return lambda Z: Z @ Q.T, identity

    return turn


def rows(common: int) -> Iterator[tuple[str, str, Callable[[Seen, Seen, int], tuple[Map, Map]], int]]:
    """Yield label, what is shared, how a pair is connected, and by how many common samples."""
    yield "as they are", "nothing", lambda *_: (identity, identity), 0
    yield "class-mean Procrustes", "μ", class_means, 0
    yield "ratemesh, one exchange, no sketch", "V, μ", aligned(1.0, 0.0), 0
    yield "ratemesh, one exchange", "V, μ, C", aligned(1.0, 10.0), 0
    for label, how in (
        ("paired Procrustes", procrustes),
        ("paired ridge", ridge),
        ("relative representations", relative),
        ("canonical correlation", correlated),
    ):
        for m in (m for m in PAIRED if m <= common):
            yield f"{label}, {m}", f"{m} samples", how, m


def seen_by_nodes(folder: Path) -> tuple[list[Seen], Tensor, Tensor | None, SubspaceRule]:
    """Load a finished run's nodes; return them, test labels, fine ones, and the run's rule."""
    record = RunFolder.existing(folder)
    config = record.load_config()
    plan = Plan(config)
    nodes = []
    for index in range(min(plan.topology.nodes, MOST_NODES)):
        site = plan.site(index)
        site.load(str(record.states(config.rounds)))
        own, common, test = (site.features(part) for part in ("train", "validation", "test"))
        nodes.append(Seen(site.program.stats, own["Z"], own["y"], common["Z"], test["Z"]))
    return nodes, test["y"], test.get("fine"), plan.rule


def judged(i: Seen, j: Seen, maps: tuple[Map, Map], y: Tensor, fine: Tensor | None, rule: SubspaceRule) -> list[float]:
    """Return how j judges what i says: by its statistics, by 1-NN by class, and by 1-NN by fine label."""
    says, hears = maps
    statistics = ClassStats.of(normalize(hears(j.Z), dim=1), j.y, j.stats.num_classes)
    said, heard = normalize(says(i.test), dim=1), normalize(hears(j.test), dim=1)
    found = [accuracy(SubspaceJudge("energy", rule=rule).fit_stats(statistics).predict(said), y)]
    for labels in (y, fine):
        if labels is not None:
            gallery, queries = gallery_and_queries(labels)
            nearest = (said[queries] @ heard[gallery].T).argmax(1)
            found.append(accuracy(labels[gallery][nearest], labels[queries]))
    return found


def table(folder: Path) -> list[str]:
    """Judge all ordered pairs of every seed's nodes by every row; return the lines of the table."""
    seeds = [seen_by_nodes(path) for path in sorted(folder.glob("seed-*"))]
    has_fine = seeds[0][2] is not None
    heads = ["across, by statistics", "1-NN across", *(["fine 1-NN across"] if has_fine else [])]
    lines = [
        f"`{folder.parent.name}`, {len(seeds)} seeds (mean ± half the range), nodes trained apart, test samples:",
        "",
        "| connected by | " + " | ".join(heads) + " | shared |",
        "|---|" + "--:|" * len(heads) + "---|",
    ]
    own = [_mean([judged(i, i, (identity, identity), y, f, rule) for i in nodes]) for nodes, y, f, rule in seeds]
    lines.append(_line("*a node judges itself*", own, ""))
    for label, shared, how, m in rows(min(len(nodes[0].common) for nodes, *_ in seeds)):
        found = [
            _mean([judged(i, j, how(i, j, m), y, f, rule) for i, j in permutations(nodes, 2)])
            for nodes, y, f, rule in seeds
        ]
        lines.append(_line(label, found, shared))
        print(lines[-1], flush=True)
    return lines


def _mean(pairs: list[list[float]]) -> list[float]:
    return [fmean(values) for values in zip(*pairs, strict=True)]


def _line(label: str, seeds: list[list[float]], shared: str) -> str:
    cells = [f"{100 * fmean(v):.1f} ± {50 * (max(v) - min(v)):.1f}" for v in zip(*seeds, strict=True)]
    return "| " + " | ".join([label, *cells, shared]) + " |"


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path, help="of experiments/language.py: SET/independent")
    options.add_argument("--write", action="store_true", help="put the table into RESULTS.md")
    given = options.parse_args()
    found = table(given.folder)
    print("\n".join(found))
    if given.write:
        write_table(f"field {given.folder.parent.name}", found)

"""`ratemesh clusters`: who works with whom when nodes hold different labels."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ratemesh.cli import screen
from ratemesh.cli.options import ConfigFile, DataDir, Set, overrides

if TYPE_CHECKING:
    from ratemesh.experiment.clusters import Clustering

LEGEND = (
    "The members of a cluster hold every label between them; S_i is the number of clusters that a node is in. Hops: "
    "shortest paths added over pairs of members, because each sends its statistics to every other."
)


def clusters(
    config: ConfigFile,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the figure, clusters.png and .svg.")] = None,
    set_: Set = None,
    optimal: Annotated[
        bool, typer.Option("--optimal", help="Instead of Algorithm 2: fewest replicas, then fewest hops.")
    ] = False,
    at_least: Annotated[
        int, typer.Option("--at-least", min=1, help="With --optimal: clusters that there must be.")
    ] = 1,
    data_dir: DataDir = None,
) -> None:
    """Show how the nodes of a configuration cluster, by Algorithm 2 or method.clustering, and what that means.

    Example: `ratemesh clusters experiments/digits.toml --set partition=shards --out runs/clusters`
    """
    from ratemesh.errors import InputError
    from ratemesh.experiment.clusters import Clustering
    from ratemesh.experiment.config import load_config
    from ratemesh.experiment.plan import Plan
    from ratemesh.report.figures import draw_clusters

    if at_least > 1 and not optimal:
        raise InputError(f"--at-least must come with --optimal; got --at-least {at_least} alone. Add --optimal.")
    plan = Plan(load_config(config, overrides(data_dir, set_)))
    found = Clustering.of(plan, optimal=optimal, at_least=at_least)
    screen.console.print(_table(found))
    screen.console.print(LEGEND, style="dim")
    screen.say(summary(found))
    screen.say(assumption4(found))
    screen.say(cost(found))
    if optimal and len(found.clusters) == 1 < len(found.labels) and at_least == 1:
        screen.say("One cluster works in turn only. For more in parallel, at the price of replicas: --at-least 2")
    if out is not None:
        drawn = draw_clusters(found.clusters, found.topology, _names(found), out / "clusters", formats=("png", "svg"))
        screen.say("\n".join([f"Figure: {path}" for path in drawn.files] + list(drawn.notes)))


def _table(found: "Clustering") -> Table:
    """Return a row a member; what belongs to a cluster stands in its first."""
    table = screen.grid()
    for heading in ("cluster", "hops", "node", "samples", "S_i"):
        table.add_column(heading, justify="right")
    table.add_column("labels K_i")
    S, names = found.memberships, _names(found)
    for s, (cluster, hops) in enumerate(zip(found.clusters, found.hops, strict=True)):
        for n, i in enumerate(cluster):
            first = (str(s), _hops(hops)) if n == 0 else ("", "")
            cells = (str(i), str(int(found.counts[i].sum())), str(S[i]), names[i])
            table.add_row(*first, *cells, style="bold" if S[i] > 1 else "", end_section=i == cluster[-1])
    return table


def _names(found: "Clustering") -> list[str]:
    K = found.counts.shape[1]
    return ["all" if len(row) == K > 1 else ", ".join(found.classes[k] for k in row) for row in found.labels]


def _hops(hops: float) -> str:
    return "no path" if math.isinf(hops) else f"{hops:.0f}"


def summary(found: "Clustering") -> str:
    """Return how many clusters, replicas and hops there are."""
    S, nodes = len(found.clusters), len(found.labels)
    several = [
        f"node {i} in {', '.join(str(s) for s, cluster in enumerate(found.clusters) if i in cluster)}"
        for i, count in enumerate(found.memberships)
        if count > 1
    ]
    who = f" ({'; '.join(several)})" if 0 < len(several) <= 12 else ""
    return (
        f"{_count(S, 'cluster')} of {_count(nodes, 'node')}, {_count(found.replicas, 'replica')}{who}, "
        f"hops inside clusters: {_hops(sum(found.hops))}."
    )


def cost(found: "Clustering") -> str:
    """Return what a round sends and the networks take, before anything is trained."""
    from ratemesh.report.wording import in_bytes

    sent, memory = found.bytes_sent, found.memory
    lines = [
        f"A round of Algorithm 3 sends {in_bytes(sum(sent))} in all, {in_bytes(min(sent))} to {in_bytes(max(sent))} a "
        "node: O(d²) numbers for each of its |K_i| classes to every peer (Remark 4).",
        f"Memory: {memory.in_words(len(found.labels))}.",
    ]
    if found.lacking:
        lines.append(
            f"Algorithm 3 refuses this graph: clusters lack the edges {found.lacking}. Use graph.name = 'complete', or "
            "another graph with these edges; the bytes are counted as if they were there."
        )
    return "\n".join(lines)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


def assumption4(found: "Clustering") -> str:
    """Return whether class proportions are equal over clusters, and where they are furthest off."""
    held, gaps = found.proportions, found.proportions.gaps
    s, k = divmod(int(gaps.abs().argmax()), gaps.shape[1])
    overall = float(found.counts[:, k].sum() / found.counts.sum())
    where = f"class {k} is {overall + float(gaps[s, k]):.4f} of cluster {s} and {overall:.4f} of all data"
    if held.exact:
        return "Assumption 4 holds exactly: every cluster has the class proportions of all data."
    if held.holds:
        return f"Assumption 4 holds as nearly as whole samples allow: off by at most {held.gap:.4f} ({where})."
    if found.trained.holds:
        return (
            "Assumption 4 holds in what is optimised: local.balance weighs all classes of a cluster equally. Samples "
            f"alone would be off by up to {held.gap:.4f} ({where})."
        )
    return (
        f"Assumption 4 does not hold: class proportions of clusters are off by up to {held.gap:.4f} ({where}). Theorem "
        "3 does not cover this; local.balance = true weighs all classes of a cluster equally, and settles it."
    )

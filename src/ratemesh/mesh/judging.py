"""How well every class fits features, by class statistics alone: of one node or of all together."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ratemesh.core.gaussian import OwnGaussians
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceJudge, SubspaceRule
from ratemesh.errors import InputError
from ratemesh.experiment.card import Fusion

Judge = Callable[[Tensor], Tensor]
"""Features (N, m, d) of the same samples to (m, K), higher for classes that fit better, −∞ for those nobody holds."""


def judge_of(stats: Sequence[ClassStats], views: int, rule: SubspaceRule, fusion: Fusion) -> Judge:
    """Return what judges features, made ready once for any number of batches.

    Args:
        stats: of one judge, or of every node.
        views: N, how many nodes' features of a sample come together.
        rule: how many directions a class has.
        fusion: "energy" adds the residuals of all views, of a class that only some judges hold those of its holders;
            "average" takes the residual of the mean feature; "gaussian" adds log-likelihoods under Gaussians of each
            judge's own statistics.
    """
    if fusion == "gaussian":
        judges = list(stats) if len(stats) == views else list(stats) * views
        return OwnGaussians().fit(judges).log_likelihoods
    judge = SubspaceJudge("energy", rule=rule).fit_stats(ClassStats.sum(stats))
    if fusion == "average":
        return lambda Z: -judge.residuals(Z.mean(0))
    if fusion != "energy":
        raise InputError(f"fusion must be 'energy', 'average' or 'gaussian'; got {fusion!r}.")
    held = torch.stack([s.held for s in stats])
    if bool(held.all()) or len(stats) != views:
        return lambda Z: -judge.residuals(Z)
    return lambda Z: -judge.residuals(Z, held[:, None, :])

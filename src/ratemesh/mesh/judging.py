"""How well every class fits features, by class statistics alone: of one node or of all together."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ratemesh.core.gaussian import OwnGaussians
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import SubspaceJudge, SubspaceRule
from ratemesh.errors import InputError
from ratemesh.experiment.card import Fusion


def scores(stats: Sequence[ClassStats], Z: Tensor, rule: SubspaceRule, fusion: Fusion) -> Tensor:
    """Return (m, K), higher for classes that fit better, −∞ for those that nobody holds.

    Args:
        stats: of one judge, or of every node.
        Z: (N, m, d) features of the same samples by one node or by all.
        rule: how many directions a class has.
        fusion: "energy" adds the residuals of all views, of a class that only some judges hold those of its holders;
            "average" takes the residual of the mean feature; "gaussian" adds log-likelihoods under Gaussians of each
            judge's own statistics.
    """
    if fusion == "gaussian":
        judges = list(stats) if len(stats) == len(Z) else list(stats) * len(Z)
        return OwnGaussians().fit(judges).log_likelihoods(Z)
    judge = SubspaceJudge("energy", rule=rule).fit_stats(ClassStats.sum(stats))
    if fusion == "average":
        return -judge.residuals(Z.mean(0))
    if fusion != "energy":
        raise InputError(f"fusion must be 'energy', 'average' or 'gaussian'; got {fusion!r}.")
    held = torch.stack([s.held for s in stats])
    whole = bool(held.all()) or len(stats) != len(Z)
    return -judge.residuals(Z) if whole else -judge.residuals(Z, held[:, None, :])

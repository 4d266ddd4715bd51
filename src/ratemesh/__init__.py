"""ratemesh: encoders that never share data, weights or architectures, in one representation space."""

from typing import TYPE_CHECKING, Any

from ratemesh._version import __version__
from ratemesh.core.consensus import consensus_loss, mcr2_loss
from ratemesh.core.gauge import align
from ratemesh.core.gaussian import OwnGaussians
from ratemesh.core.rates import coding_rate, rate_reduction
from ratemesh.core.stats import ClassStats
from ratemesh.core.subspace import NearestSubspace

if TYPE_CHECKING:
    from ratemesh.experiment.experiment import run

__all__ = [
    "ClassStats",
    "NearestSubspace",
    "OwnGaussians",
    "__version__",
    "align",
    "coding_rate",
    "consensus_loss",
    "mcr2_loss",
    "rate_reduction",
    "run",
]


def __getattr__(name: str) -> Any:
    # `run` brings configuration, data and engines along; who wants only the loss does not wait for them.
    if name == "run":
        from ratemesh.experiment.experiment import run

        return run
    raise AttributeError(f"module 'ratemesh' has no attribute '{name}'")

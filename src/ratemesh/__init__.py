"""ratemesh: encoders that never share data, weights or architectures, in one representation space."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ratemesh._version import __version__
from ratemesh.core.consensus import consensus_loss, mcr2_loss
from ratemesh.core.gauge import align
from ratemesh.core.gaussian import OwnGaussians
from ratemesh.core.rates import coding_rate, rate_reduction
from ratemesh.core.stats import ClassStats

if TYPE_CHECKING:
    from ratemesh.connection.connection import Connection, connect
    from ratemesh.connection.site import SiteStatistics
    from ratemesh.errors import StopTraining
    from ratemesh.estimators.mesh import MeshClassifier, MeshEncoder
    from ratemesh.estimators.subspace import NearestSubspace
    from ratemesh.experiment.experiment import resume, run
    from ratemesh.mesh.loading import load
    from ratemesh.mesh.mesh import Mesh
    from ratemesh.mesh.node import Node

__all__ = [
    "ClassStats",
    "Connection",
    "Mesh",
    "MeshClassifier",
    "MeshEncoder",
    "NearestSubspace",
    "Node",
    "OwnGaussians",
    "SiteStatistics",
    "StopTraining",
    "__version__",
    "align",
    "coding_rate",
    "connect",
    "consensus_loss",
    "load",
    "mcr2_loss",
    "rate_reduction",
    "resume",
    "run",
]


LAZY = {
    "Connection": "ratemesh.connection.connection",
    "Mesh": "ratemesh.mesh.mesh",
    "MeshClassifier": "ratemesh.estimators.mesh",
    "MeshEncoder": "ratemesh.estimators.mesh",
    "NearestSubspace": "ratemesh.estimators.subspace",
    "Node": "ratemesh.mesh.node",
    "SiteStatistics": "ratemesh.connection.site",
    "connect": "ratemesh.connection.connection",
    "load": "ratemesh.mesh.loading",
    "StopTraining": "ratemesh.errors",
    "resume": "ratemesh.experiment.experiment",
    "run": "ratemesh.experiment.experiment",
}
"""What brings configuration, data, engines or scikit-learn along; who wants only the loss does not wait for them."""


def __getattr__(name: str) -> Any:
    if name in LAZY:
        return getattr(import_module(LAZY[name]), name)
    raise AttributeError(f"module 'ratemesh' has no attribute '{name}'")

"""The algorithms: one file each, reading like the paper's pseudo-code."""

from ratemesh.methods.alg1 import Alg1
from ratemesh.methods.protocol import MethodSpec

METHODS: dict[str, type[MethodSpec]] = {"alg1": Alg1}

__all__ = ["METHODS", "MethodSpec"]

"""The algorithms: one file each, reading like the paper's pseudo-code."""

from ratemesh.methods.alg1 import Alg1
from ratemesh.methods.alg1_weights import Alg1Weights
from ratemesh.methods.alg3 import Alg3
from ratemesh.methods.dsgd import DSgd
from ratemesh.methods.fedpcl import FedPcl
from ratemesh.methods.fedproto import FedProto
from ratemesh.methods.fedsimclr import FedSimClr
from ratemesh.methods.fedu import FedU
from ratemesh.methods.fedu2 import FedU2
from ratemesh.methods.orchestra import Orchestra
from ratemesh.training.protocol import MethodSpec

METHODS: dict[str, type[MethodSpec]] = {
    "alg1": Alg1,
    "alg1_weights": Alg1Weights,
    "alg3": Alg3,
    "dsgd": DSgd,
    "fedpcl": FedPcl,
    "fedproto": FedProto,
    "fedsimclr": FedSimClr,
    "fedu": FedU,
    "fedu2": FedU2,
    "orchestra": Orchestra,
}

__all__ = ["METHODS", "MethodSpec"]

"""FedProto (Tan et al., AAAI 2022) on a graph without a server, a baseline: class means travel, nothing else.

Every node trains its encoder and a linear head with cross-entropy, and pulls its features towards its neighbourhood's
prototypes. What the messages are, and who computes what a server would, is said in `training.prototypes`.

**How prototypes are compared.** Features have unit length; their means are shorter, and are used as they are: the
squared distance ‖z − C̄‖² = 1 − 2⟨z, C̄⟩ + ‖C̄‖² pulls along C̄ with its length, less towards a class whose samples or
nodes do not agree yet. The paper's regulariser is the distance of a client's prototypes to the global ones; on
mini-batches it becomes the distance of every feature to its class's prototype.

**Choices**, made on 15 % of digits' training rows held out (15 rounds, two seeds, own / another node's subspaces in %):
λ = 0.1, 1, 10 gave 91.5 / 81.0, 91.1 / 91.2, 89.9 / 83.6; prototypes of unit length 91.0 / 91.0, no pull in the first
round, whose prototypes are those of untrained encoders, 90.8 / 90.8. At a learning rate of 0.003 λ = 0.3, 1, 3 gave
91.3 / 91.3, 91.3 / 91.5, 90.9 / 91.2, at 0.01 λ = 1 gave 90.8 / 91.0, with Muon 91.1 / 91.4: equal within half a point.

The paper predicts by the nearest prototype. Here all methods are judged by the run's rule, nearest subspace;
`evaluation.rank = 0` asks for the nearest class mean.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from ratemesh.training.local import Objective
from ratemesh.training.protocol import Node
from ratemesh.training.prototypes import PrototypeProgram, Prototypes, PrototypeSpec, fold


class FedProto(PrototypeSpec):
    """FedProto: cross-entropy, and a pull towards the class means of the neighbourhood."""

    title: ClassVar[str] = "FedProto"
    local_title: ClassVar[str] = "cross-entropy"
    weight: float = Field(1.0, ge=0, description="λ, weight of the distance to the neighbourhood's prototypes")

    def program(self, node: Node) -> "FedProtoProgram":
        """Return node i's part."""
        return FedProtoProgram(self, node)


class FedProtoProgram(PrototypeProgram):
    """Node i's state and rounds."""

    spec: FedProto

    def objective(self, own: Prototypes, heard: Sequence[Prototypes]) -> Objective:
        """Return L = L_S + λ L_R, the paper's local objective."""
        target = targets(own, heard)  # its aggregation of global prototypes, over the neighbourhood

        def loss(X: Tensor, y: Tensor) -> Tensor:
            Z = self.classifier.encoder(X)
            return cross_entropy(self.classifier.logits(Z), y) + self.spec.weight * pull(Z, y, target)

        return loss


def targets(own: Prototypes, heard: Sequence[Prototypes]) -> Prototypes:
    """Return C̄_k over the node and its neighbours, of the classes that some neighbour told of; no others count.

    A mean of the node's own features alone would say nothing new, so a node that hears nothing has cross-entropy only.
    """
    if not heard:
        return Prototypes(torch.zeros_like(own.mu), torch.zeros_like(own.m))
    all_of_them = fold([own, *heard])
    return Prototypes(all_of_them.mu, all_of_them.m * fold(heard).held)


def pull(Z: Tensor, y: Tensor, target: Prototypes) -> Tensor:
    """Return L_R, the mean over a batch of ‖z − C̄_y‖²; 0 for samples of classes without a target."""
    return ((Z - target.mu[y]).square().sum(1) * target.held[y]).mean()

"""FedPCL (Tan et al., NeurIPS 2022) on a graph without a server, a baseline: prototypes and contrast.

FedProto's successor sends the same messages and replaces the pull by a contrast: a feature must be nearer to its own
class's prototype than to those of the other classes, once by the prototypes of the whole neighbourhood (the paper's
global term L_g) and once by those of every neighbour for itself (its local term L_p), so that a node hears of
differences between its neighbours that a mean would hide. The positive stands in the denominator too, as in InfoNCE.
The paper trains a projection on frozen networks; here, as for every method, the whole encoder is trained.

**How prototypes are compared.** By inner products over τ. Features have unit length, prototypes are means of such and
shorter; they are not renormalised, so a class that is spread, or that nodes disagree on, attracts less.

**Choices**, made as for `fedproto` (own / another node's subspaces in %): τ = 0.1, 0.3, 1 without cross-entropy gave
91.4 / 91.2, 91.9 / 91.8, 91.8 / 91.8; with cross-entropy of weight 1, τ = 0.1, 0.3 gave 91.6 / 90.2, 91.1 / 91.3; with
it and τ = 0.1, prototypes of unit length gave 91.4 / 90.0, and no contrast in the first round 91.3 / 87.9. A learning
rate of 0.003 was no better than 0.001 (τ = 0.1, 0.3: 91.4 / 91.4, 91.0 / 91.3), nor was Muon (τ = 0.3: 91.3 / 91.1).

A class that a neighbour does not hold is no alternative in its term, and samples of that class have no such term.
Alone, a node contrasts with its own prototypes.
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


class FedPcl(PrototypeSpec):
    """FedPCL: contrast with the class means of the neighbourhood and of every neighbour."""

    title: ClassVar[str] = "FedPCL"
    local_title: ClassVar[str] = "prototype contrast"
    temperature: float = Field(0.3, gt=0, description="τ of the contrast")
    cross_entropy: float = Field(0.0, ge=0, description="weight of a local cross-entropy beside it; 0 is off (paper)")

    def program(self, node: Node) -> "FedPclProgram":
        """Return node i's part."""
        return FedPclProgram(self, node)


class FedPclProgram(PrototypeProgram):
    """Node i's state and rounds."""

    spec: FedPcl

    def objective(self, own: Prototypes, heard: Sequence[Prototypes]) -> Objective:
        """Return L = L_g + L_p, the paper's local objective, and the weighted cross-entropy."""
        spec, everyone = self.spec, [fold([own, *heard])]

        def loss(X: Tensor, y: Tensor) -> Tensor:
            Z = self.classifier.encoder(X)
            L_g = contrast(Z, y, everyone, spec.temperature)
            L_p = contrast(Z, y, heard, spec.temperature)
            return L_g + L_p + spec.cross_entropy * cross_entropy(self.classifier.logits(Z), y)

        return loss


def contrast(Z: Tensor, y: Tensor, sets: Sequence[Prototypes], temperature: float) -> Tensor:
    """Return the mean over samples of their mean over sets p of −log( exp(⟨z, C_p^y⟩/τ) / Σ_k exp(⟨z, C_p^k⟩/τ) ).

    Of a set only the classes count that it holds; a sample whose class no set holds adds 0.

    Args:
        Z: (n, d) features, y: (n,) labels.
        sets: J sets of prototypes; none cost nothing.
    """
    if not sets:
        return Z.new_zeros(())
    held = torch.stack([part.held for part in sets])  # (J, K)
    told = held[:, y]  # (J, n) whether a set holds a sample's class
    similar = torch.einsum("nd,jkd->jnk", Z, torch.stack([part.mu for part in sets])) / temperature
    lowest = torch.finfo(similar.dtype).min  # not −∞: of a set that holds no class at all the softmax would be NaN
    logits = similar.masked_fill(~held[:, None], lowest).flatten(0, 1)
    costs = cross_entropy(logits, y.repeat(len(sets)), reduction="none").view(told.shape) / held.sum(0)[y].clamp(min=1)
    # A host that picks these pairs out has to wait for a GPU to say how many there are.
    counted = costs[told] if Z.device.type == "cpu" else costs.masked_fill(~told, 0)
    return counted.sum() / len(y)

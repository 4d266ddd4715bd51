"""FedU²: contrastive learning whose projections are kept uniform, and a server that follows what serves every node.

Liao et al. 2024, as far as their abstract, openings and published code tell; its formulas are not confirmed against the
full text. The base is FedSimCLR (the published entry script's default; the BYOL base is left out). Two things are new.

At the node, L = L_contrastive + λ [U(u₁) + U(u₂)], U the distance of a view's projections from uniform on the sphere.
`uniformity = "sliced"` is what the published code computes, a sliced Wasserstein distance in tangent spaces, here over
6 points and 6 directions as a true mean, whose faithful weight is λ = 0.2 (the code sums over a batch of points,
divides by 6 and takes 0.01). "transport" is what the paper describes, unbalanced optimal transport, with divergences of
Kullback–Leibler and a price relative to the distances (the code's constants would move no mass in 512 dimensions). It
tells less and less as dimensions grow, because all distances on the sphere come close to √2; the sliced one does not.

At the server, with δ_k = θ − θ_k over all weights and v_k = δ_k/‖δ_k‖, α is the point of smallest ‖Σ α_k v_k‖ on the
simplex, whose direction no node objects to. The published step has an absolute length, whatever the nodes did; here the
server goes to a mean of the nodes' models, θ ← Σ β_k θ_k, β_k ∝ α_k/‖δ_k‖: the same direction, never beyond the nodes,
and the plain mean when nodes are alike, as with i.i.d. data they nearly are. Running statistics of batch normalisation
are averaged by samples. The rotation head of the published run is no part of the method and left out.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from ratemesh.devices import moved, precise
from ratemesh.errors import RatemeshError
from ratemesh.methods.fedsimclr import FedSimClr, FedSimClrProgram
from ratemesh.seeds import generator
from ratemesh.training.averaging import WeightsMessage, min_norm_weights, weighted_mean, weights_of
from ratemesh.training.protocol import Node, RoundLog
from ratemesh.training.star import nt_xent, sphere

LEAST_MASS = 0.1
"""Part of the mass that a plan must move; below it a regulariser is off without saying so."""


class FedU2(FedSimClr):
    """FedU²: FedSimCLR with projections kept uniform, and averages that no node objects to."""

    title: ClassVar[str] = "FedU²"
    local_title: ClassVar[str] = "SimCLR with uniformity"
    uniformity: Literal["sliced", "transport"] = Field("sliced", description="how distance from uniform is measured")
    weight: float = Field(0.2, ge=0, description="λ of the distance from uniform")
    price: float = Field(1.0, gt=0, description="transport: τ of mass that stays, in mean distances")

    def program(self, node: Node) -> "FedU2Program":
        """Return node i's part."""
        return FedU2Program(self, node)


class FedU2Program(FedSimClrProgram):
    """Node i's state and rounds."""

    spec: FedU2

    def train(self, t: int) -> float:
        """Train from the global model, which `combine` needs again, with uniform points drawn anew."""
        self.start = weights_of(self.model)
        self.draw = generator(self.node.seed, "uniform", self.node.index, t)
        self.distances: list[Tensor] = []
        self.masses: list[Tensor] = []
        loss = super().train(t)
        check_masses(self.masses, self.spec.price)
        return loss

    def objective(self, X: Tensor, y: Tensor) -> Tensor:  # noqa: ARG002 - learns without labels
        """Return the contrastive loss of two views, and how far each is from uniform."""
        u = self.model(X)
        apart = sum((self._distance(view) for view in u.chunk(2)), start=u.new_zeros(()))
        self.distances.append(apart.detach())
        return nt_xent(u, self.spec.temperature) + self.spec.weight * apart

    def _distance(self, u: Tensor) -> Tensor:
        if self.spec.uniformity == "sliced":
            return sliced_uniformity(u, self.draw)
        return transport_uniformity(u, self.draw, scale=self.spec.price, later=self.masses)

    def combine(self, parts: Mapping[int, WeightsMessage]) -> dict[str, Tensor]:
        """Return Σ β_k θ_k of the weights, and the mean by samples of what is no weight."""
        names = [name for name, _ in self.model.named_parameters()]
        models = [{name: part.weights[name] for name in names} for part in parts.values()]
        beta = harmony(models, self.start)
        return {**super().combine(parts), **weighted_mean(list(zip(beta, models, strict=True)))}

    def own_log(self) -> RoundLog:
        """Return the mean distance from uniform over the round."""
        apart = [value / 2 for value in torch.stack(self.distances).tolist()] if self.distances else []
        return {"uniformity": sum(apart) / len(apart) if apart else float("nan")}


def harmony(models: Sequence[Mapping[str, Tensor]], start: Mapping[str, Tensor]) -> list[float]:
    """Return β on the simplex, β_k ∝ α_k/‖δ_k‖, for models that came from `start`; equal parts if one stood still."""
    deltas = torch.stack([torch.cat([(start[k] - model[k]).flatten() for k in model]) for model in models])
    deltas = precise(deltas)
    lengths = deltas.norm(dim=1)
    if not bool((lengths > 0).all()):
        return [1 / len(models)] * len(models)
    v = deltas / lengths[:, None]
    beta = min_norm_weights(v @ v.mT) / lengths
    return list((beta / beta.sum()).tolist())


def sliced_uniformity(u: Tensor, draw: torch.Generator, *, points: int = 6, directions: int = 6) -> Tensor:
    """Return how far unit vectors u (n, D) are from uniform: squared sliced Wasserstein distance in tangent spaces.

    Both u and as many uniform draws s are mapped to the tangent space at each of some random points p, projected onto
    random Gaussian directions, sorted and compared. About π²/2 for n equal points; a floor of order 1/n remains for
    uniform ones.
    """
    n, D = u.shape
    drawn = sphere(n, D, draw), sphere(points, D, draw), torch.randn(points, D, directions, generator=draw)
    s, p, theta = (moved(x.to(u.dtype), u.device) for x in drawn)
    ours, theirs = ((log_map(p, x) @ theta).sort(1).values for x in (u, s))
    return (ours - theirs).square().mean()


def log_map(p: Tensor, x: Tensor) -> Tensor:
    """Return log_p(x), (M, n, D): at points p (M, D) of the sphere, the tangents that lead to points x (n, D).

    Their length is the angle between p and x.
    """
    cosine = (p @ x.mT).clamp(-1 + 1e-6, 1 - 1e-6)[..., None]
    away = x - cosine * p[:, None]
    return cosine.arccos() * normalize(away, dim=-1)


def transport_uniformity(
    u: Tensor, draw: torch.Generator, *, scale: float = 1.0, later: list[Tensor] | None = None
) -> Tensor:
    """Return ⟨π, C⟩, C_ij = ‖u_i − s_j‖², s uniform on the sphere, π the unbalanced plan between them, held constant.

    The price τ of mass that is not moved is `scale` times the mean of C: a fixed one would be right for one dimension.

    Args:
        later: where to add the mass that is moved, for `check_masses` once a round; left out, it is checked at once.
    """
    s = moved(sphere(len(u), u.shape[1], draw).to(u.dtype), u.device)
    C = torch.cdist(u, s).square()
    plan = unbalanced_plan(C.detach(), scale * precise(C.detach().mean()))
    if later is None:
        check_masses([plan.sum()], scale)
    else:
        later.append(plan.sum())
    return (plan * C).sum()


def check_masses(masses: Sequence[Tensor], price: float) -> None:
    """Refuse a price for which some plan moved next to nothing; once a round, because the host waits for it."""
    if masses and (least := float(torch.stack(list(masses)).min())) < LEAST_MASS:
        raise RatemeshError(
            f"method.price must be high enough for mass to be moved; with {price:g} only {least:.2g} of 1 is, and the "
            "regulariser is as good as off. Raise it; 1 is usual."
        )


@torch.no_grad()
def unbalanced_plan(C: Tensor, tau: float | Tensor, *, steps: int = 20) -> Tensor:
    """Return π (n, m) that makes ⟨π, C⟩ + τ [KL(π1 | a) + KL(πᵀ1 | b)] small, a and b uniform, from π = a bᵀ.

    Each step minimises an upper bound of the objective that touches it at π, so that it never rises.
    """
    n, m = C.shape
    kernel = (-C / (2 * tau)).exp()
    plan = torch.full_like(C, 1 / (n * m))
    for _ in range(steps):
        marginals = n * plan.sum(1, keepdim=True) * m * plan.sum(0)
        plan = plan * kernel / marginals.sqrt().clamp(min=torch.finfo(C.dtype).tiny)
    return plan

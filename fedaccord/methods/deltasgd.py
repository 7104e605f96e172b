"""DeltaSGD: clients that find their own rate (Kim, Toghani, Uribe and Kyrillidis, 2024, Algorithm 1).

A client's rate follows the local smoothness that its last two steps have met: with gradients g_k at x_k,
    eta_k = min( gamma ||x_k - x_{k-1}|| / (2 ||g_k - g_{k-1}||),  sqrt(1 + delta theta_{k-1}) eta_{k-1} )
    theta_k = eta_k / eta_{k-1};                    x_{k+1} = x_k - eta_k g_k
anew in every round, from eta_0 = lr and theta_0 = 1. So lr (the paper's is 0.2) is where a client begins; a tuner that
chooses it chooses no more than that.
"""

import torch
from torch import Tensor

from fedaccord.core.protocols import THE_GRADIENTS, Built, ClientPart, Part, Step
from fedaccord.core.records import Hyper
from fedaccord.core.settings import above, at_least


class AutoTuned(ClientPart):
    """Scales each gradient by eta_k / lr, so that the optimizer's step is one of eta_k."""

    def __init__(self, gamma: float, delta: float):
        self.gamma, self.delta = gamma, delta

    def corrects(self, hyper: Hyper) -> str:
        return THE_GRADIENTS

    def correct(self, step: Step) -> None:
        past = step.memory
        here = {"x": [each.clone() for each in step.weights], "g": [each.clone() for each in step.gradients]}
        if past:
            moved, turned = (lengths(torch._foreach_sub(here[name], past[name]), step.stacked) for name in ("x", "g"))
            smooth = self.gamma * moved / (2 * turned)  # infinite where the gradient has not changed
            eta = torch.minimum(smooth, (1 + self.delta * past["theta"]).sqrt() * past["eta"])
            eta = torch.where(moved > 0, eta, past["eta"])  # a step that led nowhere says nothing
            past |= {"theta": eta / past["eta"], "eta": eta}
            torch._foreach_mul_(step.gradients, [fitting(eta / step.hyper.lr, each) for each in step.gradients])
        else:
            clients = len(step.weights[0]) if step.stacked else 1
            one = torch.ones(clients, dtype=step.weights[0].dtype, device=step.weights[0].device)
            past |= {"theta": one, "eta": step.hyper.lr * one}
        past |= here


def lengths(tensors: tuple[Tensor, ...], stacked: bool) -> Tensor:
    """The norm over all tensors, of each client of a stack: (clients,), or (1,) for a single one."""
    if not stacked:
        return torch.stack(torch._foreach_norm(tensors)).norm().unsqueeze(0)
    return torch.stack([each.flatten(1).norm(dim=1) for each in tensors]).norm(dim=0)


def fitting(eta: Tensor, tensor: Tensor) -> Tensor:
    """One factor per client, in a shape that multiplies this tensor."""
    return eta.view(-1, *(1,) * (tensor.dim() - 1)) if len(eta) > 1 else eta


class DeltaSGD(Part):
    name = "DeltaSGD"
    about = "every client finds its own rate from the smoothness that its last steps have met"
    settings = (
        above(0, "delta_gamma", 2.0, "gamma, the share of the local smoothness that DeltaSGD's rate takes."),
        at_least(0, "delta_growth", 0.1, "delta, how fast DeltaSGD's rate may grow."),
    )

    def client(self, built: Built) -> ClientPart:
        return AutoTuned(built.settings["delta_gamma"], built.settings["delta_growth"])

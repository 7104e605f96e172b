"""DeltaSGD: clients that find their own rate (Kim, Toghani, Uribe and Kyrillidis, 2024, Algorithm 1).

A client's rate follows the local smoothness that its last step met: with g_k(x) the gradient of the k-th mini-batch,
    eta_k = min( gamma ||x_k - x_{k-1}|| / (2 ||g_k(x_k) - g_k(x_{k-1})||),  sqrt(1 + delta theta_{k-1}) eta_{k-1} )
    theta_k = eta_k / eta_{k-1};                    x_{k+1} = x_k - eta_k g_k(x_k)
anew in every round, from eta_0 = lr and theta_0 = 1. Algorithm 1 is printed without delta, which its experiments bring.
So lr (its code's is 0.2) is where a client begins; a tuner that chooses it chooses no more than that. Both gradients
are of the same mini-batch, as in its code, so each is run twice: with those of two mini-batches the noise between them
would pass for roughness, and a rate shrink by a third per step.
It is a rule for plain SGD, and other parts' terms in the gradient are scaled by eta_k if they come before it in the
method's name.
"""

import torch
from torch import Tensor

from fedaccord.core.errors import SettingsError
from fedaccord.core.params import by_client
from fedaccord.core.protocols import THE_GRADIENTS, Built, ClientPart, Part, Step
from fedaccord.core.records import Hyper
from fedaccord.core.settings import above, at_least


class AutoTuned(ClientPart):
    """The client side of DeltaSGD: gradients are scaled by eta_k / lr, so that the optimizer's step is one of eta_k."""

    stacks = True
    looks_back = True

    def __init__(self, gamma: float, delta: float):
        self.gamma, self.delta = gamma, delta

    def corrects(self, hyper: Hyper) -> str:
        return THE_GRADIENTS

    def correct(self, step: Step) -> None:
        past, here = step.memory, [each.clone() for each in step.weights]
        if past:
            moved = lengths(torch._foreach_sub(here, past["x"]), step.stacked)
            smooth = self.gamma * moved / (2 * lengths(tuple(step.turn), step.stacked))  # infinite where nothing turned
            eta = torch.minimum(smooth, (1 + self.delta * past["theta"]).sqrt() * past["eta"])
            # Delta-SGD's code: such a rate grows. HERE: it stays. WHY: a step that led nowhere says nothing.
            eta = torch.where(moved > 0, eta, past["eta"])
            past |= {"theta": eta / past["eta"], "eta": eta}
            times = eta / step.hyper.lr
            torch._foreach_mul_(step.gradients, [fitting(times, each, step.stacked) for each in step.gradients])
        else:
            # Delta-SGD's code: the first step has sqrt(1 + delta) eta_0. HERE: eta_0, which is what lr says.
            clients = len(step.weights[0]) if step.stacked else 1
            one = torch.ones(clients, dtype=step.weights[0].dtype, device=step.weights[0].device)
            past |= {"theta": one, "eta": step.hyper.lr * one}
        past["x"] = here


def lengths(tensors: tuple[Tensor, ...], stacked: bool) -> Tensor:
    """Return the norm over all tensors, for each client of a stack, (clients,), or for a single one, (1,)."""
    if not stacked:
        return torch.stack(torch._foreach_norm(tensors)).norm().unsqueeze(0)
    return torch.stack([by_client(each).norm(dim=1) for each in tensors]).norm(dim=0)


def fitting(eta: Tensor, tensor: Tensor, stacked: bool) -> Tensor:
    """Return one factor per client, in a shape that multiplies this tensor in place."""
    return eta.view(-1, *(1,) * (tensor.dim() - 1)) if stacked else eta.squeeze(0)


class DeltaSGD(Part):
    name = "DeltaSGD"
    about = "every client finds its own rate from the smoothness that its last step has met"
    cost = 2.65
    replaces = "what a client's steps add up to"
    settings = (
        above(0, "delta_gamma", 2.0, "gamma, the share of the local smoothness that DeltaSGD's rate takes."),
        # Delta-SGD's code: 0.02, and 0.1 in its example. HERE: 0.1.
        at_least(0, "delta_growth", 0.1, "delta, how fast DeltaSGD's rate may grow."),
    )

    def client(self, built: Built) -> ClientPart:
        if built.settings["optimizer"] != "sgd" or any(map(built.uses, ("momentum", "weight_decay", "clip_gradient"))):
            raise SettingsError(
                "DeltaSGD is a rule for plain SGD: leave out optimizer, momentum, weight_decay and clip_gradient"
            )
        return AutoTuned(built.settings["delta_gamma"], built.settings["delta_growth"])
